// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kerneltest"
)

func TestObjects(t *testing.T) { kerneltest.Objects(t, "flow.c", "kernel.h") }
