// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// settle is how long further changes are collected, to be delivered together. Listing 500
// interfaces takes about 5 ms.
const settle = 20 * time.Millisecond

// ServiceAddresses is the interface of IPVS mode, which has addresses of Services. Watch shows
// it without them, and a change of them costs no listing: there are thousands.
const ServiceAddresses = "kube-ipvs0"

// WatchAddresses delivers the addresses of all interfaces, up or down, in order and without
// duplicates, except [ServiceAddresses]: first at once, and then whenever they differ. The receiver owns the slice.
// Errors are those of [Namespace.Watch].
func (n Namespace) WatchAddresses(ctx context.Context, deliver func([]netip.Addr)) error {
	var last []netip.Addr
	return n.Watch(ctx, func(interfaces []Interface) {
		all := []netip.Addr{}
		for _, i := range interfaces {
			all = append(all, i.Addresses...)
		}
		if all = inOrder(all); last == nil || !slices.Equal(all, last) {
			last = all
			deliver(slices.Clone(all))
		}
	})
}

// Watch delivers all interfaces by index: first at once, and then whenever they differ, after
// some milliseconds. The receiver must not modify the slice. Watch returns nil when ctx ends.
// It returns an error if interfaces cannot be listed first; it tries again after later errors.
func (n Namespace) Watch(ctx context.Context, deliver func([]Interface)) error {
	return keepWatching(ctx, n.watch, deliver)
}

// keepWatching calls watch again whenever it fails, unless it has delivered nothing yet.
func keepWatching(ctx context.Context, watch func(context.Context, func([]Interface)) error, deliver func([]Interface)) error {
	began := false
	backoff := newBackoff()
	for {
		err := watch(ctx, func(all []Interface) {
			began, backoff = true, newBackoff()
			deliver(all)
		})
		if ctx.Err() != nil {
			return nil
		}
		if !began {
			return err
		}
		delay := backoff.Step()
		klog.FromContext(ctx).Error(err, "Watching interfaces, will try again", "after", delay.Round(time.Millisecond))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(delay):
		}
	}
}

// newBackoff returns the delays after errors: from 10 ms to 10 s.
func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: 10 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 11, Cap: 10 * time.Second}
}

// watch lists the interfaces after notifications, until an error or ctx ends. It subscribes
// before it lists.
func (n Namespace) watch(ctx context.Context, deliver func([]Interface)) error {
	news, err := n.subscribe()
	if err != nil {
		return err
	}
	defer news.Close()
	defer context.AfterFunc(ctx, func() { _ = news.SetReadDeadline(time.Unix(1, 0)) })()
	s, err := n.open()
	if err != nil {
		return err
	}
	defer s.close()
	var last []Interface
	for {
		all, err := s.list()
		if err != nil {
			return err
		}
		services := -1
		for i := range all {
			if all[i].Name == ServiceAddresses {
				services, all[i].Addresses = all[i].Index, nil
			}
		}
		if last == nil || !reflect.DeepEqual(all, last) {
			last = all
			deliver(all)
		}
		if err := awaitChange(ctx, news, services); err != nil {
			return err
		}
	}
}

// subscribe opens a socket that receives a notification of each change.
func (n Namespace) subscribe() (*netlink.Conn, error) {
	news, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: int(n)})
	if err != nil {
		return nil, fmt.Errorf("netlink socket to rtnetlink: %w", err)
	}
	for _, g := range []uint32{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR} {
		if err := news.JoinGroup(g); err != nil {
			return nil, errors.Join(fmt.Errorf("subscribe to interfaces: %w", err), news.Close())
		}
	}
	return news, nil
}

// awaitChange waits for a notification, and discards others for the time settle. What they
// say does not matter, except that changes of addresses of one interface are not waited for, nor
// whether some are lost (ENOBUFS).
func awaitChange(ctx context.Context, news *netlink.Conn, except int) error {
	deadline := time.Time{}
	for {
		if err := news.SetReadDeadline(deadline); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err // it may have ended right before the deadline was set
		}
		all, err := news.Receive()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return ctx.Err()
		case err != nil && !errors.Is(err, unix.ENOBUFS):
			return fmt.Errorf("receive notifications of interfaces: %w", err)
		case err == nil && !slices.ContainsFunc(all, func(m netlink.Message) bool { return !isAddressOf(m, except) }):
		case deadline.IsZero():
			deadline = time.Now().Add(settle)
		}
	}
}

// isAddressOf reports whether a notification is about an address of an interface.
func isAddressOf(m netlink.Message, index int) bool {
	return (m.Header.Type == unix.RTM_NEWADDR || m.Header.Type == unix.RTM_DELADDR) && len(m.Data) >= unix.SizeofIfAddrmsg &&
		int(binary.NativeEndian.Uint32(m.Data[4:])) == index
}
