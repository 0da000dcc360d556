// SPDX-License-Identifier: Apache-2.0

package uml

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFind(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	kernel := write("kernel", "", 0o700)
	plain := write("plain", "", 0o600)
	cached := write("cached", "#!/bin/sh\n[ \"$*\" = --cached ] && echo /cache/linux\n", 0o700)
	none := write("none", "#!/bin/sh\nexit 1\n", 0o700)
	broken := write("broken", "#!/bin/sh\nexit 2\n", 0o700)

	tests := []struct {
		name, variable, script string
		path, err              string
	}{
		{"named", kernel, none, kernel, ""},
		{"named goes before cached", kernel, cached, kernel, ""},
		{"named but missing", filepath.Join(dir, "missing"), cached, "", KernelVariable},
		{"named but not executable", plain, cached, "", "not an executable file"},
		{"named but a directory", dir, cached, "", "not an executable file"},
		{"cached", "", cached, "/cache/linux", ""},
		{"none", "", none, "", ErrNoKernel.Error()},
		{"script fails", "", broken, "", "exit status 2"},
		{"no script", "", filepath.Join(dir, "missing"), "", "no such file"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv(KernelVariable, test.variable)
			path, err := Find(t.Context(), test.script)
			if path != test.path {
				t.Errorf("path %q, want %q", path, test.path)
			}
			switch {
			case test.err == "" && err != nil:
				t.Errorf("error %v", err)
			case test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)):
				t.Errorf("error %v, want %q in it", err, test.err)
			}
		})
	}
}
