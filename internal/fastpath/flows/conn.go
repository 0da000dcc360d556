// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Conn reads the conntrack table of one network namespace. It is not safe for concurrent
// use.
type Conn struct{ *ctnetlink.Conn }

// New opens a Conn, see [ctnetlink.Dial].
func New(netns int) (*Conn, error) {
	conn, err := ctnetlink.Dial(netns)
	return &Conn{conn}, err
}

// List returns the offloaded connections in order. The kernel walks its whole table for it.
// Before Linux 5.15 it reports all connections, and List removes the others.
func (c *Conn) List(ctx context.Context) (all []Flow, err error) {
	err = c.Each(ctx, func(f *Flow) { all = append(all, *f) })
	slices.SortFunc(all, func(a, b Flow) int { return a.Compare(&b) })
	return all, err
}

// Each calls visit with every offloaded connection, in no order. The Flow is valid
// only during the call.
func (c *Conn) Each(ctx context.Context, visit func(*Flow)) error {
	a := netlink.NewAttributeEncoder()
	a.Bytes(nl.CTA_STATUS, binary.BigEndian.AppendUint32(nil, ctnetlink.StatusOffload))
	a.Bytes(ctnetlink.StatusMask, binary.BigEndian.AppendUint32(nil, ctnetlink.StatusOffload))
	attributes, err := a.Encode()
	if err != nil {
		return err
	}
	var flow Flow
	err = c.Dump(ctx, unix.AF_UNSPEC, attributes, func(data []byte) {
		if flow.parse(data) {
			visit(&flow)
		}
	})
	if err != nil {
		return fmt.Errorf("list connections: %w", err)
	}
	return nil
}
