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

// TestObjects compiles the BPF programs from their sources, as the doc.go beside them has it for go generate, and
// compares the results with what is committed. Other versions of clang compile them differently: without that of
// Debian 12, the test is skipped.
func TestObjects(t *testing.T) {
	for _, tool := range []string{"clang", "llvm-strip"} {
		out, err := exec.Command(tool, "--version").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "version 14.") {
			t.Skipf("no BPF program was compiled and compared: %s of version 14 (Debian 12) is not installed", tool)
		}
	}
	for dir, sources := range map[string][]string{"fastpath/ebpf": {"flow.c", "kernel.h"}, "socket": {"connect.c"}} {
		t.Run(dir, func(t *testing.T) { compareObjects(t, filepath.Join("../../../internal", dir), sources) })
	}
}

func compareObjects(t *testing.T, dir string, sources []string) {
	work := t.TempDir()
	for _, name := range sources {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(work, name), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	doc, err := os.ReadFile(filepath.Join(dir, "doc.go"))
	if err != nil {
		t.Fatal(err)
	}
	_, command, found := strings.Cut(string(doc), "//go:generate go run ")
	if !found {
		t.Fatal("doc.go has no //go:generate")
	}
	tool := filepath.Join(work, "bpf2go")
	command, _, _ = strings.Cut(command, "\n")
	first, rest, _ := strings.Cut(command, " ")
	if out, err := exec.Command("go", "build", "-o", tool, first).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	generate := exec.Command("sh", "-c", tool+" "+rest)
	generate.Dir = work
	if out, err := generate.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range objects {
		got, err1 := os.ReadFile(filepath.Join(work, name))
		want, err2 := os.ReadFile(filepath.Join(dir, name))
		if err1 != nil || err2 != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what %s gives: run go generate in its package (%v, %v)", name, sources[0], err1, err2)
		}
	}
}
