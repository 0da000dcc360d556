// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// attachTypes are the programs and where they are attached.
var attachTypes = []struct {
	name string
	at   ebpf.AttachType
	of   func(*programObjects) *ebpf.Program
}{
	{"getpeername4", ebpf.AttachCgroupInet4GetPeername, func(o *programObjects) *ebpf.Program { return o.Getpeername4 }},
	{"getpeername6", ebpf.AttachCgroupInet6GetPeername, func(o *programObjects) *ebpf.Program { return o.Getpeername6 }},
	{"connect4", ebpf.AttachCGroupInet4Connect, func(o *programObjects) *ebpf.Program { return o.Connect4 }},
	{"connect6", ebpf.AttachCGroupInet6Connect, func(o *programObjects) *ebpf.Program { return o.Connect6 }},
}

// Reconcile loads the programs with maps that have exactly this content, and replaces those that
// are attached, also those of an earlier Balancer, each at once. If it fails, no programs are attached: all connections
// are left to the dataplane.
func (b *Balancer) Reconcile(ctx context.Context, full *desired.Change) (stats dataplane.Stats, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer func() {
		if err != nil {
			err = errors.Join(err, b.closeLinks(), remove(b.dir))
		}
	}()
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return stats, fmt.Errorf("BPF file system: %w", err)
	}
	c := newContent()
	u := c.apply(full)
	objects, err := b.load(c, ebpf.PinByName)
	if err != nil {
		return stats, err
	}
	if err = u.write(&objects); err == nil {
		clear(b.selected)
		b.selectPods(ctx, full.Sets[desired.DirectIPs])
		err = errors.Join(b.allow(objects.Namespaces), b.extend(objects.Lease))
	}
	if err == nil {
		err = b.attach(&objects)
	}
	if err != nil {
		return stats, errors.Join(err, objects.Close())
	}
	former := b.objects
	b.objects, b.content = objects, c
	return dataplane.Stats{Elements: u.size()}, former.Close()
}

// Apply writes a change into the maps. After an error, only Reconcile may follow, and it has to
// follow soon.
func (b *Balancer) Apply(ctx context.Context, change *desired.Change) (dataplane.Stats, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.links) == 0 || change.Rebuild {
		return dataplane.Stats{}, errors.New("sockets: no successful Reconcile before this change")
	}
	u := b.content.apply(change)
	if d := change.Sets[desired.DirectIPs]; len(d.Added)+len(d.Removed) > 0 {
		b.selectPods(ctx, d)
	}
	return dataplane.Stats{Elements: u.size()}, u.write(&b.objects)
}

// attach attaches the programs, or replaces those that are attached.
func (b *Balancer) attach(objects *programObjects) error {
	for _, p := range attachTypes {
		pin := filepath.Join(b.dir, p.name)
		l := b.links[p.name]
		if l == nil {
			l, _ = link.LoadPinnedLink(pin, nil) // of an earlier Balancer
		}
		if l != nil && b.attached(l, pin) {
			if err := l.Update(p.of(objects)); err != nil {
				return err
			}
			b.links[p.name] = l
			continue
		}
		if l != nil {
			_ = l.Close()
		}
		delete(b.links, p.name)
		if err := os.Remove(pin); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		l, err := link.AttachCgroup(link.CgroupOptions{Path: b.options.CGroup, Attach: p.at, Program: p.of(objects)})
		if err != nil {
			return fmt.Errorf("BPF program %s at cgroup %s: %w", p.name, b.options.CGroup, err)
		}
		if err := l.Pin(pin); err != nil {
			return errors.Join(fmt.Errorf("BPF program %s: %w", p.name, err), l.Close())
		}
		b.links[p.name] = l
	}
	return nil
}

// attached reports whether a link is pinned and still attached to the cgroup.
func (b *Balancer) attached(l link.Link, pin string) bool {
	if _, err := os.Stat(pin); err != nil {
		return false
	}
	info, err := l.Info()
	return err == nil && info.Cgroup() != nil && info.Cgroup().CgroupId == b.cgroup
}

// Check returns an error that wraps dataplane.ErrDamaged if another program has detached a program
// or removed its pin.
func (b *Balancer) Check(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range attachTypes {
		l := b.links[p.name]
		if l == nil || !b.attached(l, filepath.Join(b.dir, p.name)) {
			return fmt.Errorf("%w: %s", dataplane.ErrDamaged, b.detached(p.name))
		}
	}
	return nil
}

func (b *Balancer) detached(program string) string {
	return fmt.Sprintf("the BPF program %s is not at cgroup %s", program, b.options.CGroup)
}

func (b *Balancer) closeLinks() (err error) {
	for name, l := range b.links {
		err = errors.Join(err, l.Close())
		delete(b.links, name)
	}
	return err
}

// Close closes the Balancer. The programs remain in the kernel, and act until the lease ends.
func (b *Balancer) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return errors.Join(b.closeLinks(), b.objects.Close())
}
