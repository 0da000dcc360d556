// SPDX-License-Identifier: Apache-2.0

package loopback

import (
	"encoding/binary"
	"fmt"
	"testing"
)

// TestParseSocket parses addresses of /proc/net/tcp and tcp6 on a little-endian machine.
func TestParseSocket(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the texts are of little-endian machines")
	}
	for text, want := range map[string]string{
		"0A00600A:0035":                         "10.96.0.10:53",
		"B80D0120000000000000000010000000:0050": "[2001:db8::10]:80",
		"0000000000000000FFFF00000A00600A:0035": "10.96.0.10:53",
		"0A00600A:x":                            "invalid",
		"0A0060:0035":                           "invalid",
	} {
		got, ok := parseSocket(text)
		if name := fmt.Sprint(got); ok && name != want || !ok && want != "invalid" {
			t.Errorf("%s: %v %v", text, got, ok)
		}
	}
}
