// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

// TestLayout compares the structs that both sides of the maps have.
func TestLayout(t *testing.T) {
	kerneltest.Layout(t, map[string]any{"flow": programFlow{}, "tuple": programTuple{}, "interface": programInterface{}})
}
