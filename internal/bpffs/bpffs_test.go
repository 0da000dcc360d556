// SPDX-License-Identifier: Apache-2.0

package bpffs

import (
	"os"
	"path/filepath"
	"testing"
)

// TestRemoveFolder: the owner's folder stays while another network namespace has one there, and no longer.
func TestRemoveFolder(t *testing.T) {
	owner := filepath.Join(t.TempDir(), "owner")
	folders := []string{filepath.Join(owner, "1"), filepath.Join(owner, "2")}
	for _, f := range folders {
		if err := os.MkdirAll(filepath.Join(f, "pin"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for i, f := range append(folders, folders[1]) { // the last one is gone already
		err := RemoveFolder(f)
		_, gone := os.Stat(f)
		_, parent := os.Stat(owner)
		if err != nil || gone == nil || (parent == nil) != (i == 0) {
			t.Errorf("%s: %v; it is there: %t, its owner's: %t", f, err, gone == nil, parent == nil)
		}
	}
}
