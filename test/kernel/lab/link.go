// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// usableTimeout bounds the wait for a new link; only a broken machine gets there.
const usableTimeout = time.Minute

// addVeth makes a veth pair, one end here under name, the other as eth0 in the namespace
// peer, and sets both up.
func (n *Namespace) addVeth(name string, peer *Namespace) (here, there netlink.Link, err error) {
	fd := peer.FD()
	if n.FD() < 0 || fd < 0 {
		return nil, nil, fmt.Errorf("veth %s: %w", name, ErrClosed)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace = "eth0", netlink.NsFd(fd)
	if err := n.nl.LinkAdd(veth); err != nil {
		return nil, nil, fmt.Errorf("make veth %s: %w", name, err)
	}
	there, err = peer.nl.LinkByName(veth.PeerName)
	if err != nil {
		return nil, nil, fmt.Errorf("find %s: %w", veth.PeerName, err)
	}
	err = errors.Join(
		n.repeatSolicitations(name), peer.repeatSolicitations(veth.PeerName),
		n.nl.LinkSetUp(veth), peer.nl.LinkSetUp(there),
	)
	if err != nil {
		return nil, nil, fmt.Errorf("set veth %s up: %w", name, err)
	}
	return veth, there, nil
}

// repeatSolicitations has ARP and ND requests on a link repeated after 20 ms instead of a
// second. The first one may be too early: IPv6 joins multicast groups in the background.
func (n *Namespace) repeatSolicitations(link string) error {
	return n.Do(func() error {
		for _, family := range []string{"ipv4", "ipv6"} {
			for _, kv := range [][2]string{{"retrans_time_ms", "20"}, {"mcast_solicit", "500"}, {"ucast_solicit", "500"}} {
				// In a user namespace these sysctls do not exist.
				err := writeSysctl(family+"/neigh/"+link+"/"+kv[0], kv[1])
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					return err
				}
			}
		}
		return nil
	})
}

// addAddr puts an address on a link, without duplicate address detection.
func (n *Namespace) addAddr(link netlink.Link, p netip.Prefix, scope netlink.Scope) error {
	addr := &netlink.Addr{IPNet: ipNet(p), Scope: int(scope)}
	if p.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	if err := n.nl.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("add address %v to %s: %w", p, link.Attrs().Name, err)
	}
	return nil
}

// addRoute adds or replaces a route; only the fields that are set matter.
func (n *Namespace) addRoute(r netlink.Route) error {
	if err := n.nl.RouteReplace(&r); err != nil {
		return fmt.Errorf("add route to %v: %w", r.Dst, err)
	}
	return nil
}

// defaultRoute returns the prefix of everything in the address's family.
func defaultRoute(a netip.Addr) netip.Prefix {
	p, _ := a.Prefix(0)
	return p
}

// single returns the prefix of only this address.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// Nth returns the n-th address of a range, 0 being the first.
func Nth(p netip.Prefix, n int) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	end := b[len(b)-4:]
	binary.BigEndian.PutUint32(end, binary.BigEndian.Uint32(end)+uint32(n))
	a, _ := netip.AddrFromSlice(b)
	return a
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// waitUsable waits until the link has a carrier and each neighbor answers ARP or ND on it:
// changes of links take effect some time after the calls. No packet of a protocol above is
// sent.
func (n *Namespace) waitUsable(link netlink.Link, neighbors ...netip.Addr) error {
	deadline := time.Now().Add(usableTimeout)
	index, name := link.Attrs().Index, link.Attrs().Name
	for {
		l, err := n.nl.LinkByIndex(index)
		if err != nil {
			return fmt.Errorf("look at %s: %w", name, err)
		}
		if l.Attrs().OperState == netlink.OperUp {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: link state is %v after %v", name, l.Attrs().OperState, usableTimeout)
		}
		time.Sleep(time.Millisecond)
	}
	for _, a := range neighbors {
		if err := n.waitNeighbor(index, a, deadline); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (n *Namespace) waitNeighbor(index int, a netip.Addr, deadline time.Time) error {
	const answered = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE
	family := unix.AF_INET
	if a.Is6() {
		family = unix.AF_INET6
	}
	// This makes the kernel ask for the neighbor's link address. netlink.NeighSet always sends a link address of its own.
	request := nl.NewNetlinkRequest(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	request.AddData(&netlink.Ndmsg{Family: uint8(family), Index: uint32(index), Flags: netlink.NTF_USE})
	request.AddData(nl.NewRtAttr(netlink.NDA_DST, a.AsSlice()))
	if err := n.Do(func() error { _, err := request.Execute(unix.NETLINK_ROUTE, 0); return err }); err != nil {
		return fmt.Errorf("resolve %v: %w", a, err)
	}
	for {
		list, err := n.nl.NeighList(index, family)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return fmt.Errorf("list neighbors: %w", err)
		}
		for _, found := range list {
			if found.IP.Equal(a.AsSlice()) && found.State&answered != 0 {
				return nil
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("neighbor %v did not answer in %v", a, usableTimeout)
		}
		time.Sleep(time.Millisecond)
	}
}

// fabric is the network between nodes and outside hosts: a bridge in a namespace of its own.
// The bridge's address, the first of the subnet, is the nodes' default gateway. It forwards no
// packets, so that without a proxy a ClusterIP has a route, as on a real node, but no answer.
type fabric struct {
	*Namespace
	bridge  netlink.Link
	subnets [2]netip.Prefix // by familyIndex; taken from the first machine
	ports   int
}

func newFabric() (*fabric, error) {
	ns, err := newNamespace("fabric", endProfile)
	if err != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "fabric"
	// Without a multicast querier, snooping may withhold ND from ports.
	snooping := false
	f := &fabric{Namespace: ns, bridge: &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}}
	err = ns.nl.LinkAdd(f.bridge)
	if err == nil {
		err = ns.repeatSolicitations(attrs.Name)
	}
	// Without a forwarding sysctl IPv4 is silent, but IPv6 answers packets that
	// have no route with an ICMP error.
	for _, a := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if err == nil {
			err = ns.addRoute(netlink.Route{Dst: ipNet(defaultRoute(a)), Type: unix.RTN_BLACKHOLE})
		}
	}
	if err != nil {
		return nil, errors.Join(ns.wrap(err), ns.Close())
	}
	return f, nil
}

// gateway returns the fabric's own address in the family of a.
func (f *fabric) gateway(a netip.Addr) netip.Addr {
	return f.subnets[familyIndex(a)].Addr().Next()
}

// attach gives the machine an eth0 on the fabric, with these addresses.
func (f *fabric) attach(m *Machine, addrs []netip.Prefix) error {
	var fresh []netip.Prefix
	for _, p := range addrs {
		subnet := f.subnets[familyIndex(p.Addr())]
		switch {
		case !subnet.IsValid():
			f.subnets[familyIndex(p.Addr())] = p.Masked()
			fresh = append(fresh, p)
		case p.Masked() != subnet:
			return fmt.Errorf("address %v: not in the fabric's subnet %v", p, subnet)
		}
		if p.Addr() == f.gateway(p.Addr()) {
			return fmt.Errorf("address %v: is the fabric gateway's", p)
		}
		for _, other := range m.lab.onFabric() {
			if other.Addr(p.Addr().Is6()) == p.Addr() {
				return fmt.Errorf("address %v: is taken by %s", p, other.name)
			}
		}
	}
	f.ports++
	port, eth0, err := f.addVeth(fmt.Sprintf("port%d", f.ports), m.Namespace)
	if err != nil {
		return err
	}
	// The bridge goes up only now: set up without a port, it would start to send
	// when the kernel next looks at carrier changes, up to a second later.
	if err := errors.Join(f.nl.LinkSetMaster(port, f.bridge), f.nl.LinkSetUp(f.bridge)); err != nil {
		return fmt.Errorf("add %s to the bridge: %w", port.Attrs().Name, err)
	}
	for _, p := range fresh {
		gw := netip.PrefixFrom(f.gateway(p.Addr()), p.Bits())
		if err := f.addAddr(f.bridge, gw, netlink.SCOPE_UNIVERSE); err != nil {
			return err
		}
	}
	var gateways []netip.Addr
	for _, p := range addrs {
		if err := m.addAddr(eth0, p, netlink.SCOPE_UNIVERSE); err != nil {
			return err
		}
		m.addrs[familyIndex(p.Addr())] = p.Addr()
		gateways = append(gateways, f.gateway(p.Addr()))
	}
	m.link, m.onFabric = eth0, true
	if err := m.waitUsable(eth0, gateways...); err != nil {
		return err
	}
	return f.waitUsable(f.bridge, m.Addrs()...)
}
