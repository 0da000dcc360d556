// SPDX-License-Identifier: Apache-2.0

// Package netif lists and watches a node's network interfaces and their addresses.
package netif

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/sock"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Namespace is a file descriptor of a network namespace, or 0 for the calling thread's.
type Namespace int

// Interface is a network interface.
type Interface struct {
	Index int
	Name  string

	// Type is the kind of a virtual interface, as "ip link add type" names it
	// (veth, bridge, vxlan ...), and "device" for others.
	Type string

	// Addresses are the addresses on which the kernel answers, in order and without
	// zones: not IPv6 addresses during duplicate address detection (RFC 4862, 5.4),
	// or after it has found a duplicate.
	Addresses []netip.Addr

	MTU      int  // bytes
	Up       bool // set up (IFF_UP), with or without a carrier
	Loopback bool
	Ethernet bool // packets have Ethernet headers

	Alias string // a text that programs and people may set
	Netns int    // identifies the namespace of the other end of a veth or the like; -1 if that is this one, or there is none

	// PortOf is the type of the interface of which this one is a port (bridge, bond,
	// team ...); "" for none.
	PortOf string
}

// List lists the interfaces by index.
func (n Namespace) List() ([]Interface, error) {
	s, err := n.open()
	if err != nil {
		return nil, err
	}
	defer s.close()
	return s.list()
}

// sockets are those to rtnetlink.
type sockets struct {
	addresses *netlink.Handle
	links     *nl.NetlinkSocket
}

func (n Namespace) open() (s sockets, err error) {
	ns := sock.Namespace(int(n))
	if s.addresses, err = netlink.NewHandleAt(ns, unix.NETLINK_ROUTE); err == nil {
		if s.links, err = nl.GetNetlinkSocketAt(ns, netns.None(), unix.NETLINK_ROUTE); err != nil {
			s.addresses.Close()
		}
	}
	if err != nil {
		return s, fmt.Errorf("netlink socket to rtnetlink: %w", err)
	}
	return s, nil
}

func (s sockets) close() {
	s.addresses.Close()
	s.links.Close()
}

// listLinks lists interfaces without statistics and without the virtual functions of network
// cards, which netlink.LinkList asks drivers for while it blocks all other changes of
// interfaces.
func (s sockets) listLinks() (all []netlink.Link, err error) {
	const skipStats = 1 << 3 // RTEXT_FILTER_SKIP_STATS
	r := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	r.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s.links}}
	r.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	r.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStats)))
	messages, err := r.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		l, err := netlink.LinkDeserialize(nil, m)
		if err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}

func (s sockets) list() ([]Interface, error) {
	links, err := Complete(s.listLinks)
	var addresses []netlink.Addr
	if err == nil {
		addresses, err = Complete(func() ([]netlink.Addr, error) { return s.addresses.AddrList(nil, netlink.FAMILY_ALL) })
	}
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	return interfaces(links, addresses), nil
}

// Complete calls list again, up to 100 times, if the kernel's objects have changed meanwhile
// (netlink.ErrDumpInterrupted). The returned list may lack some of them then.
func Complete[T any](list func() ([]T, error)) (all []T, err error) {
	for range 100 {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

func interfaces(links []netlink.Link, addresses []netlink.Addr) (all []Interface) {
	types := map[int]string{}
	for _, l := range links {
		types[l.Attrs().Index] = l.Type()
		if _, is := l.(*netlink.Tuntap); is {
			types[l.Attrs().Index] = "tun" // the kernel's name; the library has its own
		}
	}
	byIndex := map[int][]netip.Addr{}
	for _, a := range addresses {
		if addr, ok := netip.AddrFromSlice(a.IP); ok && answers(a.Flags) {
			byIndex[a.LinkIndex] = append(byIndex[a.LinkIndex], addr)
		}
	}
	for _, l := range links {
		a := l.Attrs()
		all = append(all, Interface{
			Index: a.Index, Name: a.Name, Type: types[a.Index], Addresses: inOrder(byIndex[a.Index]), MTU: a.MTU,
			Up: a.Flags&net.FlagUp != 0, Loopback: a.Flags&net.FlagLoopback != 0, Ethernet: a.EncapType == "ether", PortOf: types[a.MasterIndex], Alias: a.Alias, Netns: a.NetNsID,
		})
	}
	slices.SortFunc(all, func(a, b Interface) int { return a.Index - b.Index })
	return all
}

// answers reports whether the kernel answers on an address with some flags.
func answers(flags int) bool {
	tentative := flags&unix.IFA_F_TENTATIVE != 0 && flags&unix.IFA_F_OPTIMISTIC == 0
	return !tentative && flags&unix.IFA_F_DADFAILED == 0
}

// inOrder sorts addresses and removes duplicates: an interface can have the same address
// with several prefixes or peers.
func inOrder(all []netip.Addr) []netip.Addr {
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}
