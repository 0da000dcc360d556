// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/netip"
)

// answer is the line of JSON that a server sends first: who it is, and what it
// sees of the connection.
type answer struct {
	Server string         `json:"server"`
	Client netip.AddrPort `json:"client"` // as the server sees it
	Local  netip.AddrPort `json:"local"`  // the server's own, after any DNAT
}

func (a answer) line() []byte {
	b, _ := json.Marshal(a) // plain data, cannot fail
	return append(b, '\n')
}

func parseAnswer(line []byte) (answer, error) {
	var a answer
	if err := json.Unmarshal(line, &a); err != nil {
		return a, fmt.Errorf("answer is not a lab server's: %w", err)
	}
	return a, nil
}

// lineReader reads lines. A line that a deadline interrupts continues with the next call.
type lineReader struct {
	r    *bufio.Reader
	part []byte // of a line
}

// next returns a line with its newline.
func (l *lineReader) next() ([]byte, error) {
	rest, err := l.r.ReadBytes('\n')
	l.part = append(l.part, rest...)
	if err != nil {
		return nil, err
	}
	line := l.part
	l.part = nil
	return line, nil
}
