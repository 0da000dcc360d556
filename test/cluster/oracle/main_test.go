// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"io"
	"os"
	"testing"

	"k8s.io/klog/v2"
)

// TestMain limits Slipstream's log to errors.
func TestMain(m *testing.M) {
	klog.LogToStderr(false) // but for errors
	klog.SetOutput(io.Discard)
	os.Exit(m.Run())
}
