// SPDX-License-Identifier: Apache-2.0

// Package labtest has what tests need around package lab, so that lab itself
// does not import package testing.
package labtest

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/lab"
)

// New makes a lab that is closed at the end of the test. It skips the test
// where the process may not make network namespaces.
func New(t testing.TB) *lab.Lab {
	t.Helper()
	l, err := lab.New()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) {
		t.Skipf("SKIPPED, NOTHING WAS TESTED: this test needs root (uid is %d): %v", os.Geteuid(), err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close lab: %v", err)
		}
	})
	return l
}
