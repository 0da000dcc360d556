// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

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
