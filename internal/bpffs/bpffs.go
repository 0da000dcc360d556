// SPDX-License-Identifier: Apache-2.0

// Package bpffs has the place where BPF programs, links and maps stay while no process has them.
package bpffs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// root is where the BPF file system is mounted on all distributions.
const root = "/sys/fs/bpf"

// place is root, or that of the node in a container that has the node's file system at /host, as those of
// "kubectl debug node" do.
func place() string {
	const ofNode = "/host" + root
	if !mounted(root) && mounted(ofNode) {
		return ofNode
	}
	return root
}

func mounted(path string) bool {
	var stat unix.Statfs_t
	return unix.Statfs(path, &stat) == nil && stat.Type == unix.BPF_FS_MAGIC
}

// Folder returns the folder of an owner's pins for a network namespace, given by file descriptor; 0 is
// the calling thread's. It does not make the folder.
func Folder(owner string, ns int) (string, error) {
	var stat unix.Stat_t
	var err error
	if ns == 0 {
		err = unix.Stat("/proc/thread-self/ns/net", &stat)
	} else {
		err = unix.Fstat(ns, &stat)
	}
	if err != nil {
		return "", fmt.Errorf("network namespace: %w", err)
	}
	return filepath.Join(place(), owner, strconv.FormatUint(stat.Ino, 10)), nil
}

// RemoveFolder removes a folder of pins, and then its owner's, if no other network namespace has one there.
func RemoveFolder(dir string) error {
	err := os.RemoveAll(dir)
	_ = os.Remove(filepath.Dir(dir))
	return err
}

// Mount mounts the BPF file system unless it is mounted. It needs CAP_SYS_ADMIN.
func Mount() error {
	if mounted(place()) {
		return nil
	}
	return os.NewSyscallError("mount", unix.Mount("bpf", root, "bpf", 0, "mode=0700"))
}

// Program reads the program that bpf2go has compiled for this machine's byte order.
func Program(compiled fs.FS) (*ebpf.CollectionSpec, error) {
	name := map[bool]string{true: "program_bpfeb.o", false: "program_bpfel.o"}[binary.NativeEndian.Uint16([]byte{0, 1}) == 1]
	object, err := fs.ReadFile(compiled, name)
	if err != nil {
		return nil, err
	}
	return ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
}

// Now is the time by the clock of programs, in nanoseconds.
func Now() uint64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &t) // Linux 2.6.32 has it
	return uint64(t.Nano())
}

// MapsOf returns the maps of a program; none if it is gone.
func MapsOf(id ebpf.ProgramID) (maps []ebpf.MapID) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return nil
	}
	defer p.Close()
	if info, err := p.Info(); err == nil {
		maps, _ = info.MapIDs()
	}
	return maps
}

// OpenMaps adds the maps of a program by name, except those of a name that is there.
func OpenMaps(id ebpf.ProgramID, to map[string]*ebpf.Map) {
	for _, id := range MapsOf(id) {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			continue // gone
		}
		if i, err := m.Info(); err == nil && to[i.Name] == nil {
			to[i.Name] = m
		} else {
			_ = m.Close()
		}
	}
}
