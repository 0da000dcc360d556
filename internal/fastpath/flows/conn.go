// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"encoding/binary"
	"errors"
	"fmt"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Conn is a netlink socket to the conntrack table of one network namespace. It is
// for one goroutine at a time.
type Conn struct{ sock *netlink.Conn }

// New opens a socket in the network namespace that the file descriptor names, or
// in the calling thread's when netns is 0. To use it takes CAP_NET_ADMIN there and
// CONFIG_NF_CT_NETLINK.
func New(netns int) (*Conn, error) {
	sock, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{
		NetNS: netns,
		// As much as the kernel puts into one datagram of a dump is 32 KiB.
		MessageBufferSize: 64 << 10,
	})
	if err != nil {
		return nil, fmt.Errorf("netlink socket to conntrack: %w", err)
	}
	return &Conn{sock}, nil
}

// Close closes the socket.
func (c *Conn) Close() error { return c.sock.Close() }

// List lists the offloaded connections in order. The kernel walks its whole table
// of connections for it, and reports those that are offloaded (from Linux 5.15 on;
// before, it reports all and the rest is left out here).
func (c *Conn) List() (all []Flow, err error) {
	err = c.Each(func(f *Flow) { all = append(all, *f) })
	slices.SortFunc(all, func(a, b Flow) int { return a.Compare(&b) })
	return all, err
}

// Each calls visit with every offloaded connection, in no order. The Flow is valid
// only during the call.
func (c *Conn) Each(visit func(*Flow)) error {
	a := netlink.NewAttributeEncoder()
	a.Bytes(ctnetlink.Status, binary.BigEndian.AppendUint32(nil, ctnetlink.StatusOffload))
	a.Bytes(ctnetlink.StatusMask, binary.BigEndian.AppendUint32(nil, ctnetlink.StatusOffload))
	attributes, err := a.Encode()
	if err != nil {
		return err
	}
	_, err = c.sock.Send(netlink.Message{
		Header: netlink.Header{Type: ctnetlink.MsgGet, Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0}, attributes...),
	})
	if err != nil {
		return fmt.Errorf("list connections: %w", err)
	}
	var flow Flow
	var failed error
	for m, err := range c.sock.ReceiveIter() {
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("list connections: %w", err))
			break
		}
		if flow.parse(m.Data) {
			visit(&flow)
		}
	}
	return failed
}
