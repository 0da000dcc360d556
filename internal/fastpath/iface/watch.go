// SPDX-License-Identifier: Apache-2.0

package iface

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

// settle is how long after a change more are waited for, to be one update.
const settle = 2 * time.Millisecond

// socketBuffer is the size asked for the socket's queue of notifications, in
// bytes: some thousand of them.
const socketBuffer = 4 << 20

// Update says what is different.
type Update struct {
	Full    bool // Changed is all that there is
	Changed []Interface
	Gone    []int // indexes
}

// Watch delivers the interfaces of the network namespace that the file descriptor
// names, or of the calling thread's when netns is 0: all of them at once, and then
// what changes, within milliseconds. It ends when ctx does, with nil; it fails when
// interfaces cannot be listed to begin with, and tries again after later errors.
func Watch(ctx context.Context, netns int, addresses bool, deliver func(Update)) error {
	began := false
	backoff := newBackoff()
	for {
		err := watch(ctx, netns, addresses, func(u Update) {
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
			continue // more has changed at once than the kernel keeps for us
		}
		delay := backoff.Step()
		klog.ErrorS(err, "Watching interfaces, will try again", "after", delay.Round(time.Millisecond))
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

// watch lists the interfaces and then follows notifications until there is an
// error or ctx ends.
//
// It hears of changes from before the list was made. A notification can be older
// than what the list says, but then it is followed by all that lies between.
func watch(ctx context.Context, netns int, addresses bool, deliver func(Update)) error {
	news, err := dial(netns)
	if err != nil {
		return err
	}
	defer news.Close()
	_ = news.SetReadBuffer(socketBuffer) // without it, lists are made more often
	groups := []uint32{unix.RTNLGRP_LINK}
	if addresses {
		groups = append(groups, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	}
	for _, g := range groups {
		if err := news.JoinGroup(g); err != nil {
			return fmt.Errorf("subscribe to interfaces: %w", err)
		}
	}
	defer context.AfterFunc(ctx, func() { _ = news.SetReadDeadline(time.Unix(1, 0)) })()

	ask, err := dial(netns)
	if err != nil {
		return err
	}
	t, err := list(ask, addresses)
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

// follow waits for a change, and for those that come right after it.
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
			return fmt.Errorf("hear of interfaces: %w", err)
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
		if i, ok := t.links[index]; ok {
			u.Changed = append(u.Changed, t.with(i))
		} else {
			u.Gone = append(u.Gone, index)
		}
	}
	return u
}
