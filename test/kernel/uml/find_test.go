// SPDX-License-Identifier: Apache-2.0

package uml

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
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
	const script = "../build.sh"
	// The script looks for a cached kernel where a hash of files beside it says.
	t.Setenv("XDG_CACHE_HOME", filepath.Join(dir, "cache"))
	kernel := write("kernel", "a kernel "+configuration(t, ""), 0o700)
	other := write("other", "a kernel "+configuration(t, "CONFIG_FAILSLAB=y"), 0o700)
	plain := write("plain", "", 0o600)
	cached := write("cached", "#!/bin/sh\n[ \"$*\" = '--cached 6.1' ] && echo /cache/linux\n", 0o700)

	tests := []struct {
		name, script, version string
		named, named61        string // the variables
		path, err             string
		none                  bool
	}{
		{"named", script, "6.12", kernel, "", kernel, "", false},
		{"named, without an option", script, "6.12", other, "", "", "is not taken, as it was built without CONFIG_FAILSLAB=y", true},
		{"named, without a configuration", script, "6.12", script, "", "", "is not taken", true},
		{"named, of another version", script, "6.1", kernel, "", "", "SLIPSTREAM_TESTKERNEL_6_1 names", true},
		{"6.1 named", script, "6.1", plain, kernel, kernel, "", false},
		{"named but missing", script, "6.12", filepath.Join(dir, "missing"), "", "", "SLIPSTREAM_TESTKERNEL: ", true},
		{"6.1 named but missing", script, "6.1", "", filepath.Join(dir, "missing"), "", "SLIPSTREAM_TESTKERNEL_6_1: ", true},
		{"named but not executable", script, "6.12", plain, "", "", "not an executable file", true},
		{"named but a directory", script, "6.12", dir, "", "", "not an executable file", true},
		{"none", script, "6.12", "", "", "", "build.sh 6.12", true},
		{"unknown version", script, "2.6", kernel, kernel, "", "usage", true},
		{"cached", cached, "6.1", "", "", "/cache/linux", "", false},
		{"script fails", write("broken", "#!/bin/sh\nexit 2\n", 0o700), "6.1", "", "", "", "exit status 2", false},
		{"no script", filepath.Join(dir, "missing"), "6.1", "", "", "", "no such file", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("SLIPSTREAM_TESTKERNEL", test.named)
			t.Setenv("SLIPSTREAM_TESTKERNEL_6_1", test.named61)
			path, err := Find(t.Context(), test.script, test.version)
			if path != test.path {
				t.Errorf("path %q, want %q", path, test.path)
			}
			switch {
			case test.err == "" && err != nil:
				t.Errorf("error %v", err)
			case test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)):
				t.Errorf("error %v, want %q in it", err, test.err)
			}
			if got := errors.Is(err, ErrNoKernel); got != test.none {
				t.Errorf("error %v is ErrNoKernel: %v, want %v", err, got, test.none)
			}
		})
	}
}

// configuration is what CONFIG_IKCONFIG puts into a kernel that has all options but one.
func configuration(t *testing.T, without string) string {
	var b bytes.Buffer
	b.WriteString("IKCFG_ST")
	z := gzip.NewWriter(&b)
	for _, name := range []string{"kernel.config", "kernel-6.1.config", "kernel-6.12.config"} {
		text, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.TrimSpace(line) != without && !strings.Contains(line, "=n") {
				z.Write([]byte(line))
			}
		}
	}
	z.Close()
	return b.String() + "IKCFG_ED"
}

// A cached kernel is found as long as what it was made of is unchanged.
func TestFindCached(t *testing.T) {
	t.Setenv("SLIPSTREAM_TESTKERNEL", "")
	t.Setenv("SLIPSTREAM_TESTKERNEL_6_1", "")
	parts := map[string][]string{
		"6.12": {"fp-size.patch", "kernel.config", "kernel-6.12.config"},
		"6.1":  {"fp-size.patch", "kernel.config"},
	}
	for version, parts := range parts {
		for _, changed := range parts {
			t.Run(version+" "+changed, func(t *testing.T) {
				source, cache := t.TempDir(), t.TempDir()
				t.Setenv("XDG_CACHE_HOME", cache)
				copyFile(t, "../build.sh", source)
				for _, name := range parts {
					copyFile(t, "../"+name, source)
				}
				hash := sha256.New()
				for _, name := range parts {
					text, err := os.ReadFile(filepath.Join(source, name))
					if err != nil {
						t.Fatal(err)
					}
					hash.Write(text)
				}
				kernel := fmt.Sprintf("%s/slipstream/testkernel/%s.99-1-%x/linux", cache, version, hash.Sum(nil)[:6])
				if err := os.MkdirAll(filepath.Dir(kernel), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(kernel, nil, 0o700); err != nil {
					t.Fatal(err)
				}
				script := filepath.Join(source, "build.sh")
				if path, err := Find(t.Context(), script, version); path != kernel || err != nil {
					t.Errorf("found %q, error %v; want %s", path, err, kernel)
				}
				if err := os.WriteFile(filepath.Join(source, changed), []byte("other"), 0o600); err != nil {
					t.Fatal(err)
				}
				if path, err := Find(t.Context(), script, version); !errors.Is(err, ErrNoKernel) {
					t.Errorf("with another %s: found %q, error %v", changed, path, err)
				}
			})
		}
	}
}

func copyFile(t *testing.T, from, toDir string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(toDir, filepath.Base(from)), text, 0o700); err != nil {
		t.Fatal(err)
	}
}
