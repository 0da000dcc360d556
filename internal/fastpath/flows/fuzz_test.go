// SPDX-License-Identifier: Apache-2.0

package flows

import "testing"

// FuzzEntry: no entry of conntrack, however odd, ends the process, and one without addresses and ports is none.
func FuzzEntry(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 8, 0, 3, 0, 0, 0, 0, 1})
	f.Add([]byte{2, 0, 0, 0, 12, 0, 1, 0x80, 8, 0, 1, 0x80, 4, 0, 1, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		var flow Flow
		if flow.Parse(data) && (!flow.Source.IsValid() || !flow.Destination.IsValid() || !flow.Backend.IsValid()) {
			t.Errorf("%+v", flow)
		}
		flow.Both()
		flow.Frontend()
	})
}
