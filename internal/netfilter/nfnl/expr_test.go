// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"bytes"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// TestCtDirectionIsAByte: the kernel logs a line for each direction of another length.
func TestCtDirectionIsAByte(t *testing.T) {
	original := OriginalDestination(IPv6, 8)
	for name, e := range map[string]expr.Any{
		"address":           original[0],
		"port":              original[2],
		"CtSource":          CtSource.Load(IPv4, Original, 8),
		"CtDestinationPort": CtDestinationPort.Load(IPv4, Original, 8),
	} {
		b, err := encode(IPv4, e)
		if err != nil {
			t.Fatal(err)
		}
		if direction := Attr(Attr(b, unix.NFTA_EXPR_DATA), unix.NFTA_CT_DIRECTION); !bytes.Equal(direction, []byte{Original}) {
			t.Errorf("%s: direction %v", name, direction)
		}
	}
}
