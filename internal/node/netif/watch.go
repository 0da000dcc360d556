// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// settle is how long further changes are collected, to be delivered together.
const settle = 2 * time.Millisecond

// socketBuffer is the size of the socket's queue, in bytes. It holds some thousand
// notifications.
const socketBuffer = 4 << 20

// Watch delivers all interfaces at once, and then changes, within milliseconds. It returns nil
// when ctx ends. It returns an error if interfaces cannot be listed first; it tries again
// after later errors.
func (n Namespace) Watch(ctx context.Context, deliver func(Update)) error {
	return keepWatching(ctx, n.watch, deliver)
}

// keepWatching calls watch again whenever it fails, unless it has delivered nothing yet.
func keepWatching(ctx context.Context, watch func(context.Context, func(Update)) error, deliver func(Update)) error {
	began := false
	backoff := newBackoff()
	for {
		err := watch(ctx, func(u Update) {
			began, backoff = true, newBackoff()
			deliver(u)
		})
		if ctx.Err() != nil {
			return nil
		}
		if !began {
			return err
		}
		if errors.Is(err, unix.ENOBUFS) {
			continue // more changed at once than the socket's queue holds
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

// watch lists the interfaces and then follows notifications until an error or ctx ends. It
// subscribes before it lists. A notification can be older than the list, but then all later
// changes follow it.
func (n Namespace) watch(ctx context.Context, deliver func(Update)) error {
	news, err := n.dial()
	if err != nil {
		return err
	}
	defer news.Close()
	_ = news.SetReadBuffer(socketBuffer) // without it, lists are made more often
	for _, g := range []uint32{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR} {
		if err := news.JoinGroup(g); err != nil {
			return fmt.Errorf("subscribe to interfaces: %w", err)
		}
	}
	defer context.AfterFunc(ctx, func() { _ = news.SetReadDeadline(time.Unix(1, 0)) })()

	ask, err := n.dial()
	if err != nil {
		return err
	}
	t, err := list(ask)
	_ = ask.Close()
	if err != nil {
		return err
	}
	deliver(Update{Full: true, Changed: t.all()})
	for {
		changed := map[int]bool{}
		if err := t.follow(ctx, news, changed); err != nil {
			return err
		}
		if len(changed) > 0 {
			deliver(t.update(changed))
		}
	}
}

// follow waits for a change, and for others within settle.
func (t *table) follow(ctx context.Context, news *netlink.Conn, changed map[int]bool) error {
	deadline := time.Time{}
	for {
		if err := news.SetReadDeadline(deadline); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err // it may have ended right before the deadline was set
		}
		messages, err := news.Receive()
		if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("receive notifications of interfaces: %w", err)
		}
		for _, m := range messages {
			if index := t.apply(m); index != 0 {
				changed[index] = true
			}
		}
		if deadline.IsZero() && len(changed) > 0 {
			deadline = time.Now().Add(settle)
		}
	}
}

func (t *table) update(changed map[int]bool) (u Update) {
	for index := range changed {
		if i, ok := t.get(index); ok {
			u.Changed = append(u.Changed, i)
		} else {
			u.Gone = append(u.Gone, index)
		}
	}
	return u
}
