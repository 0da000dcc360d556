// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kerneltest"
)

func TestObjects(t *testing.T) { kerneltest.Objects(t, "connect.c") }
