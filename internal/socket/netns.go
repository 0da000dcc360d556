// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/node/netif"
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

// Values of the map of namespaces. That of the node is one: a pod may be a node of another cluster.
const (
	podsNamespace  uint32 = 1
	nodesNamespace uint32 = 2
)

// client is what is known of a namespace.
type client struct {
	cookie uint64
	served bool
	ips    []netip.Addr // read if Options.Selected
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
		if seen[n] = true; b.namespaces[n] == nil {
			err = errors.Join(err, b.find(n, f))
		}
		_ = f.Close()
	}
	for n, c := range maps.Clone(b.namespaces) {
		if !seen[n] {
			delete(b.namespaces, n)
			_ = b.serve(c, false) // its cookie is not used again
		}
	}
	return err
}

// find adds a pod's namespace.
func (b *Balancer) find(n namespace, f *os.File) error {
	cookie, err := cookieOf(int(f.Fd()))
	if err != nil {
		return err
	}
	c := &client{cookie: cookie}
	b.namespaces[n] = c
	if b.options.Selected {
		return b.selectOne(c, f)
	}
	return b.serve(c, true)
}

// selectPods decides which pods are served, after a change of those that are selected. It reads the
// addresses of those that are not served yet: the runtime mounts a namespace before it has any.
// A pod for which that fails is not served.
func (b *Balancer) selectPods(ctx context.Context, change desired.SetChange) {
	if !b.options.Selected {
		return
	}
	var err error
	change.Note(b.selected)
	for n, c := range b.namespaces {
		if n == (namespace{}) {
			continue
		}
		if c.served {
			err = errors.Join(err, b.serve(c, b.isSelected(c)))
			continue
		}
		f, inode, is := open(filepath.Join(b.options.Pods, n.name))
		if !is {
			continue
		}
		if inode == n.inode { // else scan finds another pod
			err = errors.Join(err, b.selectOne(c, f))
		}
		_ = f.Close()
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Sockets: a pod could not be selected, so its connections are translated")
	}
}

// selectOne reads a pod's addresses, and decides whether it is served.
func (b *Balancer) selectOne(c *client, f *os.File) error {
	interfaces, err := netif.Namespace(f.Fd()).List()
	if err != nil {
		return fmt.Errorf("addresses in network namespace %s: %w", f.Name(), err)
	}
	c.ips = nil
	for _, i := range interfaces {
		c.ips = append(c.ips, i.Addresses...)
	}
	return b.serve(c, b.isSelected(c))
}

func (b *Balancer) isSelected(c *client) bool {
	return slices.ContainsFunc(c.ips, func(a netip.Addr) bool { return b.selected[a] })
}

func (b *Balancer) serve(c *client, served bool) error {
	if c.served == served {
		return nil
	}
	c.served = served
	switch m := b.objects.Namespaces; {
	case m == nil: // Reconcile does it
		return nil
	case served:
		return m.Put(c.cookie, podsNamespace)
	default:
		return m.Delete(c.cookie)
	}
}

// allow writes the namespaces that are served into a new map.
func (b *Balancer) allow(to *ebpf.Map) (err error) {
	for n, c := range b.namespaces {
		if c.served {
			err = errors.Join(err, to.Put(c.cookie, map[bool]uint32{true: nodesNamespace, false: podsNamespace}[n == namespace{}]))
		}
	}
	return err
}

// Run renews the lease and follows the pods' network namespaces until ctx ends. The runtime mounts that of a pod before
// its containers start. What fails is logged and repeated: without the lease the programs would do nothing any more.
func (b *Balancer) Run(ctx context.Context) {
	const pause = time.Second
	for ctx.Err() == nil {
		if err := b.follow(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Sockets: the programs will leave all connections to the rules until this is repeated without an error", "in", Lease)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// follow is Run until an error.
func (b *Balancer) follow(ctx context.Context) error {
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
			if err := b.renew(); err != nil {
				return err
			}
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
