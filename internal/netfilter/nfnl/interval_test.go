// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"encoding/binary"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/sock"
	"golang.org/x/sys/unix"
)

// TestIntervalsAreWhole adds more intervals than one message holds, with keys of all lengths. No message
// begins with the end of an interval: Linux since 648946966a08 (7.0) takes the start that the message before
// ends with for an open interval, and refuses the end (EEXIST).
func TestIntervalsAreWhole(t *testing.T) {
	for length := 4; length <= 64; length += 4 {
		var b Batch
		set := &Set{Name: "s", KeyLen: uint32(length)}
		for i := range uint32(4000) {
			first, last := make([]byte, length), make([]byte, length)
			binary.BigEndian.PutUint32(first, 4*i)
			binary.BigEndian.PutUint32(last, 4*i+1)
			b.AddInterval(table, set, first, last)
		}
		n := 0
		for _, payload := range sock.Messages(b.Wire()) {
			n++
			list := Attr(payload[nfgenHeaderLen:], unix.NFTA_SET_ELEM_LIST_ELEMENTS)
			if Attr(Attr(list, unix.NFTA_LIST_ELEM), unix.NFTA_SET_ELEM_FLAGS) == nil {
				continue
			}
			t.Fatalf("keys of %d bytes: message %d begins with the end of an interval", length, n)
		}
		if n < 2 {
			t.Fatalf("keys of %d bytes: %d messages", length, n)
		}
	}
}
