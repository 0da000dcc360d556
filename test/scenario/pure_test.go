// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

// TestDesired runs every story without a kernel.
func TestDesired(t *testing.T) {
	if kerneltest.UML() {
		t.Skip("needs no kernel")
	}
	Run(t, "", nil, nil)
}
