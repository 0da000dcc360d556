// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// List lists the interfaces.
func (n Namespace) List() ([]Interface, error) {
	conn, err := n.dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	t, err := list(conn)
	if err != nil {
		return nil, err
	}
	return t.all(), nil
}

func (n Namespace) dial() (*netlink.Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: int(n), MessageBufferSize: 64 << 10})
	if err != nil {
		return nil, fmt.Errorf("netlink socket to rtnetlink: %w", err)
	}
	return conn, nil
}

// table is the interfaces of a namespace.
type table struct {
	links     map[int]Interface // without addresses
	addresses map[int]map[address]bool
}

func newTable() *table {
	return &table{links: map[int]Interface{}, addresses: map[int]map[address]bool{}}
}

// get returns an interface with its addresses.
func (t *table) get(index int) (i Interface, ok bool) {
	i, ok = t.links[index]
	for a := range t.addresses[index] {
		i.Addresses = append(i.Addresses, a.local)
	}
	slices.SortFunc(i.Addresses, netip.Addr.Compare)
	i.Addresses = slices.Compact(i.Addresses)
	return i, ok
}

func (t *table) all() (all []Interface) {
	for index := range t.links {
		i, _ := t.get(index)
		all = append(all, i)
	}
	slices.SortFunc(all, func(a, b Interface) int { return a.Index - b.Index })
	return all
}

// apply applies a message of a dump, or a notification. It returns the index of the interface
// that has changed, or 0.
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
		case had && reflect.DeepEqual(old, i): // neither has addresses
			return 0
		default:
			t.links[i.Index] = i
		}
		return i.Index
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		index, a, usable, ok := parseAddress(m.Data)
		has := usable && m.Header.Type == unix.RTM_NEWADDR
		if !ok || has == t.addresses[index][a] {
			return 0
		}
		if !has {
			delete(t.addresses[index], a)
			return index
		}
		if t.addresses[index] == nil {
			t.addresses[index] = map[address]bool{}
		}
		t.addresses[index][a] = true
		return index
	}
	return 0
}

// list reads a table. It tries again if interfaces have changed meanwhile.
func list(conn *netlink.Conn) (*table, error) {
	const tries = 100
	for try := 1; ; try++ {
		t := newTable()
		err := t.read(conn, unix.RTM_GETLINK, linkRequest)
		if err == nil {
			err = t.read(conn, unix.RTM_GETADDR, make([]byte, unix.SizeofIfAddrmsg))
		}
		if err == nil || try == tries || !errors.Is(err, errInterrupted) {
			return t, err
		}
	}
}

// linkRequest asks for links without statistics, which make up most of the answer.
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
