// SPDX-License-Identifier: Apache-2.0

package scenario

import "testing"

// TestDesired runs every story without a kernel.
func TestDesired(t *testing.T) {
	if onUML() {
		t.Skip("needs no kernel")
	}
	Run(t, "", nil, nil)
}
