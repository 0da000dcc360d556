// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/slipstream-proxy/slipstream/internal/bpffs"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"golang.org/x/sys/unix"
)

// Remove removes what a Balancer that is closed has left, for a network namespace; 0 is the calling
// thread's. It has to see the pins, or to have CAP_SYS_ADMIN. It does nothing if there is nothing, without any
// right, and fails if programs remain.
func Remove(ns int) error {
	dir, err := bpffs.Folder(pins, ns)
	if err != nil {
		return err
	}
	err = remove(dir)
	unseen := detachUnseen(ns)   // also if nothing answers: this process may be in another cgroup
	const most = 2 * time.Second // until the kernel detaches what has no pin any more
	for start := time.Now(); answers(ns); time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > most {
			return fmt.Errorf("BPF programs of socketLoadBalancing are still attached: stop the proxy that uses them, "+
				"and run 'slipstream cleanup' where the node's BPF file system is mounted at /sys/fs/bpf or /host/sys/fs/bpf, or with CAP_SYS_ADMIN: %w", errors.Join(err, unseen))
		}
	}
	return err
}

// remove detaches the programs with pins in a folder, and removes it. The kernel would detach them
// some time after their pins are gone.
func remove(dir string) (err error) {
	for _, p := range slices.Backward(attachTypes) { // while connect6 is attached, connect4 says so
		if l, failed := link.LoadPinnedLink(filepath.Join(dir, p.name), nil); failed == nil {
			err = errors.Join(err, l.Detach(), l.Close())
		}
	}
	return errors.Join(err, bpffs.RemoveFolder(dir))
}

// question is the address to which answer in connect.c replies.
var question = [4]byte{0, 83, 76, 80}

// answers reports whether programs are attached that a Balancer for this network namespace has loaded. They say so
// themselves, so that it needs no right, pin or cgroup.
func answers(ns int) (yes bool) {
	_ = dataplane.Inside(ns, func() error {
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		if err := unix.Connect(s, &unix.SockaddrInet4{Addr: question, Port: 1}); err != nil {
			return err
		}
		peer, err := unix.Getpeername(s)
		if a, is := peer.(*unix.SockaddrInet4); is {
			yes = a.Addr != question
		}
		return err
	})
	return yes
}

// detachUnseen detaches the programs of Balancers for a network namespace, wherever their pins are.
func detachUnseen(ns int) error {
	cookie, err := cookieOf(ns)
	if err != nil {
		return err
	}
	maps := map[link.ID][]ebpf.MapID{} // of programs at cgroups
	own := map[ebpf.MapID]bool{}       // all programs of a Balancer have one in common
	var links link.Iterator
	defer links.Close()
	for links.Next() {
		info, err := links.Link.Info()
		if err != nil || info.Cgroup() == nil {
			continue
		}
		of := bpffs.MapsOf(info.Program)
		maps[links.ID] = of
		if isFor(of, cookie) {
			for _, id := range of {
				own[id] = true
			}
		}
	}
	err = links.Err()
	for id, of := range maps {
		if !slices.ContainsFunc(of, func(m ebpf.MapID) bool { return own[m] }) {
			continue
		}
		l, failed := link.NewFromID(id)
		if failed == nil {
			failed = errors.Join(l.Detach(), l.Close())
		}
		err = errors.Join(err, failed)
	}
	return err
}

// isFor reports whether maps are those of a Balancer for a network namespace.
func isFor(maps []ebpf.MapID, cookie uint64) bool {
	return slices.ContainsFunc(maps, func(id ebpf.MapID) bool {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return false
		}
		defer m.Close()
		info, err := m.Info()
		var kind uint32
		return err == nil && info.Name == "namespaces" && info.KeySize == 8 && info.ValueSize == 4 &&
			m.Lookup(cookie, &kind) == nil && kind == nodesNamespace
	})
}
