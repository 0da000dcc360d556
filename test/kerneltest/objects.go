// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Objects compiles the BPF program of the test's package from its sources, as doc.go has it for go generate,
// and compares the result with what is committed. Other versions of clang compile it differently: without that of
// Debian 12, the test is skipped.
func Objects(t *testing.T, sources ...string) {
	t.Helper()
	for _, tool := range []string{"clang", "llvm-strip"} {
		out, err := exec.Command(tool, "--version").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "version 14.") {
			t.Skipf("the BPF program was not compiled and compared: %s of version 14 (Debian 12) is not installed", tool)
		}
	}
	work := t.TempDir()
	for _, name := range sources {
		text, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(work, name), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, command, found := strings.Cut(string(doc), "//go:generate go run ")
	if !found {
		t.Fatal("doc.go has no //go:generate")
	}
	tool := filepath.Join(work, "bpf2go")
	first, rest, _ := strings.Cut(strings.TrimSpace(command), " ")
	if out, err := exec.Command("go", "build", "-o", tool, first).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	generate := exec.Command("sh", "-c", tool+" "+rest)
	generate.Dir = work
	if out, err := generate.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{"program_bpfel.o", "program_bpfeb.o", "program_bpfel.go", "program_bpfeb.go"} {
		got, err1 := os.ReadFile(filepath.Join(work, name))
		want, err2 := os.ReadFile(name)
		if err1 != nil || err2 != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what %s gives: run go generate in this package (%v, %v)", name, sources[0], err1, err2)
		}
	}
}
