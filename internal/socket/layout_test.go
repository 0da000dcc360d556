// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

// TestLayout compares the structs that both sides of the maps have.
func TestLayout(t *testing.T) {
	kerneltest.Layout(t, map[string]any{"address": programAddress{}, "pool": programPool{}, "slot": programSlot{}})
}
