// SPDX-License-Identifier: Apache-2.0

package nodeaddr

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// subscription hears when addresses change (rtnetlink(7), RTM_NEWADDR and
// RTM_DELADDR; also when only an address's flags do).
type subscription struct {
	socket *nl.NetlinkSocket
	some   chan struct{} // has one in it when something has changed
	failed chan error
}

func subscribe(ns netns.NsHandle) (*subscription, error) {
	socket, err := nl.SubscribeAt(ns, netns.None(), unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return nil, fmt.Errorf("subscribe to changes: %w", err)
	}
	s := &subscription{socket: socket, some: make(chan struct{}, 1), failed: make(chan error, 1)}
	go s.receive()
	return s, nil
}

// receive hears until the socket is closed or broken.
func (s *subscription) receive() {
	for {
		_, _, err := s.socket.Receive()
		// ENOBUFS: more has changed at once than the kernel keeps for us.
		// That something has is all we want to know.
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			s.failed <- fmt.Errorf("hear of changes: %w", err)
			return
		}
		select {
		case s.some <- struct{}{}:
		default:
		}
	}
}

// wait waits until something has changed since the last wait. It fails when that
// can no longer be known, or when ctx ends.
func (s *subscription) wait(ctx context.Context) error {
	select {
	case <-s.some:
		return nil
	case err := <-s.failed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *subscription) close() { s.socket.Close() }
