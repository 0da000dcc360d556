// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/cilium/ebpf"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// PodNamespaces is the folder in which container runtimes mount the network namespaces of pods:
// containerd as cni-UUID, CRI-O as UUID. Those of Docker's containers are elsewhere.
const PodNamespaces = "/run/netns"

var podNamespace = regexp.MustCompile(`^(cni-)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// namespace is a pod's network namespace; the zero value is the node's.
type namespace struct {
	name  string
	inode uint64
}

// cookieOf returns the number of a network namespace, which the kernel never uses again (Linux 5.14).
func cookieOf(ns int) (cookie uint64, err error) {
	err = dataplane.Inside(ns, func() error {
		s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		cookie, err = unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	if err != nil {
		err = fmt.Errorf("cookie of the network namespace (Linux 5.14): %w", err)
	}
	return cookie, err
}

// open opens a pod's network namespace, which the runtime may not have mounted yet: then is is false.
func open(path string) (f *os.File, inode uint64, is bool) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, false
	}
	var fs unix.Statfs_t
	var stat unix.Stat_t
	if unix.Fstatfs(int(f.Fd()), &fs) != nil || fs.Type != unix.NSFS_MAGIC || unix.Fstat(int(f.Fd()), &stat) != nil {
		_ = f.Close()
		return nil, 0, false
	}
	return f, stat.Ino, true
}

// scan updates the namespaces of pods.
func (b *Balancer) scan() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	entries, err := os.ReadDir(b.options.Pods)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	err = nil
	seen := map[namespace]bool{{}: true}
	for _, e := range entries {
		if !podNamespace.MatchString(e.Name()) {
			continue
		}
		f, inode, is := open(filepath.Join(b.options.Pods, e.Name()))
		if !is {
			continue
		}
		n := namespace{e.Name(), inode}
		if seen[n] = true; b.namespaces[n] == 0 {
			cookie, failed := cookieOf(int(f.Fd()))
			if failed == nil {
				b.namespaces[n] = cookie
				failed = b.put(cookie)
			}
			err = errors.Join(err, failed)
		}
		_ = f.Close()
	}
	for n, cookie := range maps.Clone(b.namespaces) {
		if !seen[n] {
			delete(b.namespaces, n)
			if b.objects.Namespaces != nil {
				_ = b.objects.Namespaces.Delete(cookie) // it is not used again
			}
		}
	}
	return err
}

func (b *Balancer) put(cookie uint64) error {
	if b.objects.Namespaces == nil {
		return nil // Reconcile does it
	}
	return b.objects.Namespaces.Put(cookie, uint32(1))
}

// allow writes all namespaces into a new map.
func (b *Balancer) allow(to *ebpf.Map) (err error) {
	for _, cookie := range b.namespaces {
		err = errors.Join(err, to.Put(cookie, uint32(1)))
	}
	return err
}

// Run follows the pods' network namespaces until ctx ends. The runtime mounts that of a pod before
// its containers start.
func (b *Balancer) Run(ctx context.Context) error {
	// Not by os.Open: Go's own polling of the file would take the events.
	mounts, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(mounts)
	const wait, pause = 500 * time.Millisecond, 20 * time.Millisecond
	for {
		if err := b.scan(); err != nil {
			klog.FromContext(ctx).Error(err, "Sockets: network namespaces of pods could not be read")
		}
		for n := 0; n == 0; { // until a mount changes
			poll := []unix.PollFd{{Fd: int32(mounts), Events: unix.POLLPRI}}
			if n, err = unix.Poll(poll, int(wait.Milliseconds())); err != nil && !errors.Is(err, unix.EINTR) {
				return err
			}
			n = max(n, 0)
			if ctx.Err() != nil {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}
