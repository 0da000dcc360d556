// SPDX-License-Identifier: Apache-2.0

package xtables

import "testing"

// FuzzTable: no table, however odd, ends the process, and chains are inside of it.
func FuzzTable(f *testing.F) {
	entry := func(target string, length int) []byte {
		b := make([]byte, IPv4.entryLen+length)
		b[IPv4.targetOffset], b[IPv4.targetOffset+2] = byte(IPv4.entryLen), byte(len(b))
		copy(b[IPv4.entryLen+targetNameAt:], target)
		return b
	}
	f.Add(false, uint32(0), append(append(entry("", 40), entry("ERROR", 64)...), entry("", 40)...))
	f.Add(true, uint32(0), make([]byte, 400))
	f.Fuzz(func(t *testing.T, six bool, hook uint32, blob []byte) {
		table := &Table{Name: "nat", family: IPv4, blob: blob}
		if six {
			table.family = IPv6
		}
		table.ValidHooks, table.HookEntry[1] = 2, hook
		if table.parse() != nil {
			return
		}
		for _, c := range table.Chains() {
			if c.First > c.Last || c.Last >= len(table.entries) {
				t.Fatalf("chain %+v of %d entries", c, len(table.entries))
			}
			for i := c.First; i <= c.Last; i++ {
				table.Jump(i)
				table.Packets(i)
			}
		}
		_, _, _, _ = table.without(func(i int) bool { return i%2 == 1 })
	})
}
