// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// onOwnNetNS runs f on a thread in a network namespace of its own. The thread
// ends with f, and the namespace with it.
func onOwnNetNS(t *testing.T, f func()) {
	t.Helper()
	failed := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			f()
		}
		failed <- err
	}()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
}
