// SPDX-License-Identifier: Apache-2.0

package bpffs

import (
	"bytes"
	"encoding/binary"
	"io/fs"

	"github.com/cilium/ebpf"
)

// Program reads the program that bpf2go has compiled for this machine's byte order.
func Program(compiled fs.FS) (*ebpf.CollectionSpec, error) {
	name := "program_bpfel.o"
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		name = "program_bpfeb.o"
	}
	object, err := fs.ReadFile(compiled, name)
	if err != nil {
		return nil, err
	}
	return ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
}
