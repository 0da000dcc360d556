// SPDX-License-Identifier: Apache-2.0

package iface

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// List lists the interfaces of the network namespace that the file descriptor
// names, or of the calling thread's when netns is 0, with their addresses if they
// are asked for.
func List(netns int, addresses bool) ([]Interface, error) {
	conn, err := dial(netns)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	t, err := list(conn, addresses)
	if err != nil {
		return nil, err
	}
	return t.all(), nil
}

func dial(netns int) (*netlink.Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: netns, MessageBufferSize: 64 << 10})
	if err != nil {
		return nil, fmt.Errorf("netlink socket to rtnetlink: %w", err)
	}
	return conn, nil
}

// table is the interfaces that there are.
type table struct {
	links     map[int]Interface // without addresses
	addresses map[int][]netip.Addr
}

// with is an interface with its addresses.
func (t *table) with(i Interface) Interface {
	i.Addresses = t.addresses[i.Index]
	return i
}

func (t *table) all() (all []Interface) {
	for _, i := range t.links {
		all = append(all, t.with(i))
	}
	slices.SortFunc(all, func(a, b Interface) int { return a.Index - b.Index })
	return all
}

// apply takes a message of a list, or a notification, into the table, and returns
// the interface that is now different; 0 if none is.
func (t *table) apply(m netlink.Message) (index int) {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		i, ok := parseLink(m.Data)
		old, had := t.links[i.Index]
		switch {
		case !ok:
			return 0
		case m.Header.Type == unix.RTM_DELLINK:
			delete(t.links, i.Index)
			delete(t.addresses, i.Index)
			if !had {
				return 0
			}
		case had && same(&old, &i):
			return 0
		default:
			t.links[i.Index] = i
		}
		return i.Index
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		index, a, ok := parseAddress(m.Data)
		if !ok {
			return 0
		}
		// A new slice each time: the old one has been given away.
		all := t.addresses[index]
		at, had := slices.BinarySearchFunc(all, a, netip.Addr.Compare)
		if is := m.Header.Type == unix.RTM_NEWADDR; is == had {
			return 0
		} else if is {
			t.addresses[index] = slices.Insert(slices.Clone(all), at, a)
		} else {
			t.addresses[index] = slices.Delete(slices.Clone(all), at, at+1)
		}
		return index
	}
	return 0
}

// same compares all but addresses.
func same(a, b *Interface) bool {
	return a.Name == b.Name && a.Type == b.Type && a.MTU == b.MTU && a.Up == b.Up && a.Loopback == b.Loopback && a.PortOf == b.PortOf
}

// list reads a table. It tries again when interfaces came or went meanwhile.
func list(conn *netlink.Conn, addresses bool) (*table, error) {
	const tries = 100
	for try := 1; ; try++ {
		t := &table{links: map[int]Interface{}, addresses: map[int][]netip.Addr{}}
		err := t.read(conn, unix.RTM_GETLINK, linkRequest)
		if err == nil && addresses {
			err = t.read(conn, unix.RTM_GETADDR, make([]byte, unix.SizeofIfAddrmsg))
		}
		if err == nil || try == tries || !errors.Is(err, errInterrupted) {
			return t, err
		}
	}
}

// linkRequest asks for links without their statistics, which are most of what
// there is to say about them.
var linkRequest = func() []byte {
	const skipStats = 1 << 3 // RTEXT_FILTER_SKIP_STATS
	a := netlink.NewAttributeEncoder()
	a.Uint32(unix.IFLA_EXT_MASK, skipStats)
	b, _ := a.Encode() // a number, cannot fail
	return append(make([]byte, unix.SizeofIfInfomsg), b...)
}()

var errInterrupted = errors.New("interfaces changed while they were listed")

func (t *table) read(conn *netlink.Conn, typ netlink.HeaderType, request []byte) error {
	_, err := conn.Send(netlink.Message{
		Header: netlink.Header{Type: typ, Flags: netlink.Request | netlink.Dump},
		Data:   request,
	})
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	interrupted := false
	for m, err := range conn.ReceiveIter() {
		if err != nil {
			return fmt.Errorf("list interfaces: %w", err)
		}
		interrupted = interrupted || m.Header.Flags&netlink.DumpInterrupted != 0
		t.apply(m)
	}
	if interrupted {
		return errInterrupted
	}
	return nil
}
