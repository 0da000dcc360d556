// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
)

// maxLine bounds a line of the lab's protocol, in bytes.
const maxLine = 4096

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

var errLongLine = errors.New("line is too long")

// lineReader reads lines. Unlike bufio's, a line broken off by a deadline goes
// on with the next call.
type lineReader struct {
	r    io.Reader
	buf  [maxLine]byte
	have int // bytes in buf
	used int // bytes in buf returned by the last call
}

// next returns a line without its newline, valid until the next call.
func (l *lineReader) next() ([]byte, error) {
	l.have = copy(l.buf[:], l.buf[l.used:l.have])
	l.used = 0
	for looked := 0; ; {
		for ; looked < l.have; looked++ {
			if l.buf[looked] == '\n' {
				l.used = looked + 1
				return l.buf[:looked], nil
			}
		}
		if l.have == len(l.buf) {
			return nil, errLongLine
		}
		n, err := l.r.Read(l.buf[l.have:])
		l.have += n
		if n == 0 && err != nil {
			return nil, err
		}
	}
}
