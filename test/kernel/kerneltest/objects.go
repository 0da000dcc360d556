// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
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
		want, err2 := os.ReadFile(name)
		if err1 != nil || err2 != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what %s gives: run go generate in this package (%v, %v)", name, sources[0], err1, err2)
		}
	}
}

// objects are what bpf2go makes, by byte order.
var objects = []string{"program_bpfel.o", "program_bpfeb.o"}

// Layout compares Go structs, by their names in the program, with the types of the program's objects.
func Layout(t *testing.T, structs map[string]any) {
	t.Helper()
	for _, name := range objects {
		spec, err := ebpf.LoadCollectionSpec(name)
		if err != nil {
			t.Fatal(err)
		}
		for c, value := range structs {
			var want *btf.Struct
			if err := spec.Types.TypeByName(c, &want); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			typ := reflect.TypeOf(value)
			if typ.Size() != uintptr(want.Size) {
				t.Errorf("%s: struct %s has %d bytes, and %d in Go", name, c, want.Size, typ.Size())
			}
			fields := reflect.VisibleFields(typ)
			fields = slices.DeleteFunc(fields, func(f reflect.StructField) bool { return f.Name == "_" })
			if len(fields) != len(want.Members) {
				t.Fatalf("%s: struct %s has %d members, and %d in Go", name, c, len(want.Members), len(fields))
			}
			for i, m := range want.Members {
				size, err := btf.Sizeof(m.Type)
				is := strings.ReplaceAll(m.Name, "_", "")
				if f := fields[i]; err != nil || !strings.EqualFold(f.Name, is) || f.Offset != uintptr(m.Offset.Bytes()) || f.Type.Size() != uintptr(size) {
					t.Errorf("%s: member %s of struct %s is at %d with %d bytes, and in Go %s at %d with %d (%v)",
						name, m.Name, c, m.Offset.Bytes(), size, f.Name, f.Offset, f.Type.Size(), err)
				}
			}
		}
	}
}
