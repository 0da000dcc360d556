// SPDX-License-Identifier: Apache-2.0

// Package nodeaddr watches the addresses of a node's interfaces.
package nodeaddr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// settle is how long after a change the addresses are listed: what comes within
// that time is one delivery.
const settle = 5 * time.Millisecond

// Watcher watches the addresses in one network namespace.
type Watcher struct {
	ns netns.NsHandle
}

// New makes a Watcher of a network namespace, given by file descriptor; 0 is the
// one of the thread that calls Run.
func New(ns int) *Watcher {
	if ns == 0 {
		return &Watcher{netns.None()}
	}
	return &Watcher{netns.NsHandle(ns)}
}

// Run delivers the addresses on all interfaces, whether those are up or not:
// the complete list, in order, without duplicates or zones, first at once and
// then whenever it differs. Left out are IPv6 addresses on which the kernel does
// not answer, as it has yet to find out whether another machine has them
// (RFC 4862, 5.4), or has found one.
//
// The slice is the receiver's. Run ends when ctx does, with nil; it fails when
// addresses cannot be listed to begin with, and tries again after later errors.
func (w *Watcher) Run(ctx context.Context, deliver func([]netip.Addr)) error {
	return keepWatching(ctx, w.watch, deliver)
}

// keepWatching calls watch again whenever it has failed, and passes on what
// differs of what it delivers.
func keepWatching(ctx context.Context, watch func(context.Context, func([]netip.Addr)) error, deliver func([]netip.Addr)) error {
	var last []netip.Addr
	began := false
	backoff := newBackoff()
	for {
		err := watch(ctx, func(all []netip.Addr) {
			backoff = newBackoff()
			if !began || !slices.Equal(all, last) {
				began, last = true, all
				deliver(slices.Clone(all))
			}
		})
		if ctx.Err() != nil {
			return nil
		}
		if !began {
			return err
		}
		delay := backoff.Step()
		klog.ErrorS(err, "Watching the addresses of interfaces, will try again", "after", delay.Round(time.Millisecond))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(delay):
		}
	}
}

// newBackoff is how long to wait after errors: from 10 ms to 10 s.
func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: 10 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 11, Cap: 10 * time.Second}
}

// watch lists the addresses, and again after each change, until there is an
// error or ctx ends.
//
// A notification only says that it is time to list. What it says itself is not
// used: it and a part of a list that says otherwise may come in either order.
func (w *Watcher) watch(ctx context.Context, deliver func([]netip.Addr)) error {
	h, err := netlink.NewHandleAt(w.ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	changes, err := subscribe(w.ns)
	if err != nil {
		return err
	}
	defer changes.close()
	for {
		all, err := list(h)
		switch {
		case err == nil:
			deliver(all)
			err = changes.wait(ctx)
		case errors.Is(err, netlink.ErrDumpInterrupted):
			err = nil // interfaces have come or gone meanwhile; we do not hear of those
		}
		if err != nil {
			return err
		}
		select {
		case <-time.After(settle):
		case <-ctx.Done():
			return nil
		}
	}
}

// list lists the addresses that the kernel answers on.
func list(h *netlink.Handle) ([]netip.Addr, error) {
	found, err := h.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	var all []netip.Addr
	for _, a := range found {
		if a.IPNet == nil || !usable(a.Flags) {
			continue
		}
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			all = append(all, ip)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all), nil
}

// usable says whether the kernel answers on an address with these IFA_F_ flags.
// It does on a deprecated one.
func usable(flags int) bool {
	if flags&unix.IFA_F_DADFAILED != 0 {
		return false
	}
	return flags&unix.IFA_F_TENTATIVE == 0 || flags&unix.IFA_F_OPTIMISTIC != 0
}
