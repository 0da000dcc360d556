// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"testing"
)

// FuzzSave: no output of iptables-save, however odd, ends the process.
func FuzzSave(f *testing.F) {
	f.Add([]byte(":SLIP-SERVICES - [0:0]\n-A SLIP-SERVICES -d 10.96.0.1/32 ! -p tcp -m comment --comment \"a b\" -g SLIP-SVC-X\n-A PREROUTING -j SLIP-SERVICES\n"))
	f.Add([]byte("# Table `nat' is incompatible, use 'nft' tool.\n-A SLIP-\n-A  -j SLIP-\n:SLIP-"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s := parseSave(text)
		if s.registry(); len(s.chains) > bytes.Count(text, []byte(":")) {
			t.Errorf("%d chains in %q", len(s.chains), text)
		}
		for _, rules := range s.rules {
			for line := range bytes.Lines(rules) {
				parseRule(string(line))
			}
		}
	})
}
