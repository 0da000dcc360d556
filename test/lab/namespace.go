// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Namespace is an unnamed network namespace. It lives as long as the file
// descriptor held here, the sockets made in it and the processes started in it.
type Namespace struct {
	nl *netlink.Handle

	mu     sync.RWMutex
	file   *os.File // nil once closed
	procs  map[*Process]struct{}
	number uint64 // inode number, as in "net:[4026531840]"
}

// NewNamespace makes a namespace outside any lab, with nothing in it but lo. The
// caller closes it.
func NewNamespace() (*Namespace, error) { return newNamespace(endProfile) }

// newNamespace makes a namespace with lo up and the sysctls of the profile.
func newNamespace(p profile) (*Namespace, error) {
	n := &Namespace{procs: map[*Process]struct{}{}}
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make network namespace: %w", err)
		}
		f, err := openThreadNamespace()
		if err != nil {
			return err
		}
		n.file = f
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return fmt.Errorf("stat network namespace: %w", err)
		}
		n.number = st.Ino
		if err := p.apply(); err != nil {
			return err
		}
		n.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open netlink: %w", err)
		}
		lo, err := n.nl.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("find lo: %w", err)
		}
		if err := n.nl.LinkSetUp(lo); err != nil {
			return fmt.Errorf("set lo up: %w", err)
		}
		return nil
	})
	if err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// Do runs fn on a thread that is in the namespace and returns fn's error. Only
// fn's own goroutine is there, not the ones it starts; sockets that fn opens
// belong to the namespace for good, whoever uses them later. The error is
// ErrClosed after Close.
func (n *Namespace) Do(fn func() error) error {
	return onThread(func() error {
		if err := n.enter(); err != nil {
			return err
		}
		return fn()
	})
}

// enter moves the calling thread into the namespace.
func (n *Namespace) enter() error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.file == nil {
		return fmt.Errorf("network namespace: %w", ErrClosed)
	}
	if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	return nil
}

// FD returns a file descriptor of the namespace, for netlink libraries. It
// belongs to the namespace: do not close it, and do not use it after Close.
// It is -1 after Close.
func (n *Namespace) FD() int {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.file == nil {
		return -1
	}
	return int(n.file.Fd())
}

// Inode returns the namespace's number in /proc/PID/ns/net.
func (n *Namespace) Inode() uint64 { return n.number }

// SetSysctl writes a value below /proc/sys/net of the namespace, with the key
// in slashes: "ipv4/ip_forward". Keys that the kernel shows only in the root
// namespace give fs.ErrNotExist.
func (n *Namespace) SetSysctl(key, value string) error {
	return n.Do(func() error { return writeSysctl(key, value) })
}

// Sysctl reads a value below /proc/sys/net of the namespace.
func (n *Namespace) Sysctl(key string) (value string, err error) {
	err = n.Do(func() error { value, err = readSysctl(key); return err })
	return value, err
}

// Close kills the processes that were started in the namespace, waits for
// their end and releases the namespace. Calls after the first do nothing.
func (n *Namespace) Close() error {
	n.mu.Lock()
	file := n.file
	n.file = nil
	procs := make([]*Process, 0, len(n.procs))
	for p := range n.procs {
		procs = append(procs, p)
	}
	n.mu.Unlock()
	if file == nil {
		return nil
	}
	var errs []error
	for _, p := range procs {
		errs = append(errs, p.Kill())
	}
	for _, p := range procs {
		<-p.Done()
	}
	if n.nl != nil {
		n.nl.Close()
	}
	return errors.Join(append(errs, closeNow(file))...)
}
