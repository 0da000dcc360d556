// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// What is a question of membership is asked of the kernel's IP sets, each of which
// there is for both families. A rule that uses one is never changed, and an element
// costs microseconds where a rule in iptables-legacy costs a copy of the table. They
// are written over netlink: it needs no command.

// setKind is one of the sets.
type setKind int

const (
	setExternal   setKind = iota // frontends that are no ClusterIPs
	setLocal                     // those of them with a pool for traffic from outside
	setRestricted                // those for which it matters who connects
	setReject                    // frontends without backends whose traffic is refused,
	setDrop                      // and those where it is dropped, or that from outside
	frontendSets                 // the sets above are of frontends

	setSources setKind = iota - 1 // who may connect to restricted frontends
	setClusterIPs
	setHairpin // addresses of endpoints that may be on this node
	setServiceCIDRs
	setHealthChecks // ports of the node
	setKinds
)

// setTypes are the names of the sets, and the kernel's of their types.
var setTypes = [setKinds]struct{ name, typ string }{
	setExternal:     {"EXTERNAL", "hash:ip,port"},
	setLocal:        {"LOCAL", "hash:ip,port"},
	setRestricted:   {"RESTRICTED", "hash:ip,port"},
	setReject:       {"REJECT", "hash:ip,port"},
	setDrop:         {"DROP", "hash:ip,port"},
	setSources:      {"SOURCES", "hash:ip,port,net"},
	setClusterIPs:   {"CLUSTER-IPS", "hash:ip"},
	setHairpin:      {"HAIRPIN", "hash:ip"},
	setServiceCIDRs: {"SERVICE-CIDRS", "hash:net"},
	setHealthChecks: {"HEALTH-CHECKS", typePorts},
}

// typePorts is the type of a set of ports, which is of no family.
const typePorts = "bitmap:port"

// maxMembers is how many elements a set may have; it costs nothing.
const maxMembers = 1 << 24

// setName is a set's name: "SLIP-4-EXTERNAL".
func setName(f desired.Family, k setKind) string {
	if f == desired.IPv4 {
		return prefix + "4-" + setTypes[k].name
	}
	return prefix + "6-" + setTypes[k].name
}

// member is an element of a set: a frontend, an address, a range of addresses, a
// frontend and a range, or a port (a frontend without an address).
type member struct {
	frontend desired.FrontendKey
	prefix   netip.Prefix
}

func (m member) String() string {
	switch {
	case !m.frontend.IsValid() && !m.prefix.IsValid():
		return fmt.Sprint("port ", m.frontend.Port())
	case !m.prefix.IsValid():
		return m.frontend.String()
	case !m.frontend.IsValid():
		return m.prefix.String()
	}
	return m.frontend.String() + " " + m.prefix.String()
}

func portMember(port uint16) member {
	return member{frontend: desired.FrontendKey{AddrPort: netip.AddrPortFrom(netip.Addr{}, port)}}
}

func addrMember(a netip.Addr) member { return member{prefix: netip.PrefixFrom(a, a.BitLen())} }

// entry is the member as the kernel wants it.
func (m member) entry(k setKind) *netlink.IPSetEntry {
	e := &netlink.IPSetEntry{Replace: true}
	if m.frontend.IsValid() {
		proto, port := uint8(m.frontend.Protocol), m.frontend.Port()
		e.IP, e.Protocol, e.Port = net.IP(m.frontend.Addr().AsSlice()), &proto, &port
	}
	if !m.prefix.IsValid() {
		return e
	}
	ip, bits := net.IP(m.prefix.Addr().AsSlice()), uint8(m.prefix.Bits())
	switch {
	case m.frontend.IsValid():
		e.IP2, e.CIDR2 = ip, bits
	case k == setServiceCIDRs:
		e.IP, e.CIDR = ip, bits
	default:
		e.IP = ip
	}
	return e
}

// split replaces a range of all addresses, which sets cannot have, by two.
func split(all []netip.Prefix) (out []netip.Prefix) {
	for _, p := range all {
		if p.Bits() > 0 {
			out = append(out, p)
			continue
		}
		high := p.Addr().AsSlice()
		high[0] = 0x80
		a, _ := netip.AddrFromSlice(high)
		out = append(out, netip.PrefixFrom(p.Addr(), 1), netip.PrefixFrom(a, 1))
	}
	return out
}

// unsplit is the inverse of split. Ranges are in order.
func unsplit(all []netip.Prefix) []netip.Prefix {
	if len(all) == 2 && all[0].Bits() == 1 && all[1].Bits() == 1 {
		return []netip.Prefix{netip.PrefixFrom(all[0].Addr(), 0)}
	}
	return all
}

// sets is the way to the kernel's sets.
type sets struct {
	handle *netlink.Handle
	socket *nl.NetlinkSocket // for what the handle cannot do
}

// openSets opens it, in the namespace of the calling thread.
func openSets() (*sets, error) {
	h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("netlink socket to netfilter: %w", err)
	}
	socket, err := nl.GetNetlinkSocketAt(-1, -1, unix.NETLINK_NETFILTER)
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("netlink socket to netfilter: %w", err)
	}
	s := &sets{h, socket}
	if _, _, err := h.IpsetProtocol(); err != nil {
		s.close()
		return nil, fmt.Errorf("the kernel has no IP sets (CONFIG_IP_SET): %w", err)
	}
	return s, nil
}

func (s *sets) close() {
	s.handle.Close()
	s.socket.Close()
}

// create makes the sets of a family that there are not.
func (s *sets) create(f desired.Family) error {
	o := netlink.IpsetCreateOptions{Replace: true, Family: unix.AF_INET, MaxElements: maxMembers}
	if f == desired.IPv6 {
		o.Family = unix.AF_INET6
	}
	ports := netlink.IpsetCreateOptions{Replace: true, PortFrom: 0, PortTo: 1<<16 - 1}
	for k := range setKinds {
		o := o
		if setTypes[k].typ == typePorts {
			o = ports
		}
		if err := s.handle.IpsetCreate(setName(f, k), setTypes[k].typ, o); err != nil {
			return fmt.Errorf("IP set %s of type %s: %w", setName(f, k), setTypes[k].typ, err)
		}
	}
	return nil
}

// write adds a member or deletes it. A member that is there already, or not any more,
// is no error.
func (s *sets) write(f desired.Family, k setKind, m member, add bool) error {
	var err error
	switch {
	case k == setHealthChecks:
		err = s.writePort(setName(f, k), m.frontend.Port(), add)
	case add:
		err = s.handle.IpsetAdd(setName(f, k), m.entry(k))
	default:
		err = s.handle.IpsetDel(setName(f, k), m.entry(k))
	}
	if err != nil {
		return fmt.Errorf("IP set %s: %s: %w", setName(f, k), m, err)
	}
	return nil
}

// read lists a set's members; a set that is not there has none.
func (s *sets) read(f desired.Family, k setKind) (map[member]bool, error) {
	got, err := s.handle.IpsetList(setName(f, k))
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("IP set %s: %w", setName(f, k), err)
	}
	all := make(map[member]bool, len(got.Entries))
	for i := range got.Entries {
		all[decode(&got.Entries[i])] = true
	}
	return all, nil
}

// decode is the inverse of entry.
func decode(e *netlink.IPSetEntry) (m member) {
	ip, hasIP := netip.AddrFromSlice(e.IP)
	if !hasIP && e.Port != nil {
		return portMember(*e.Port)
	}
	if e.Port != nil && e.Protocol != nil {
		m.frontend = desired.FrontendKey{AddrPort: netip.AddrPortFrom(ip, *e.Port), Protocol: desired.Protocol(*e.Protocol)}
		if ip2, ok := netip.AddrFromSlice(e.IP2); ok {
			m.prefix = prefixOf(ip2, e.CIDR2)
		}
		return m
	}
	m.prefix = prefixOf(ip, e.CIDR)
	return m
}

// prefixOf is a range; the kernel leaves the length of a single address out.
func prefixOf(a netip.Addr, bits uint8) netip.Prefix {
	if bits == 0 {
		bits = uint8(a.BitLen())
	}
	return netip.PrefixFrom(a, int(bits))
}

// destroyTries is how often a set is tried to be destroyed: nf_tables lets go of what
// rules use a little after them.
const destroyTries = 100

// destroy deletes all sets of a family.
func (s *sets) destroy(f desired.Family) error {
	for k := range setKinds {
		err := s.handle.IpsetDestroy(setName(f, k))
		for try := 0; errors.Is(err, nl.IPSetError(nl.IPSET_ERR_BUSY)) && try < destroyTries; try++ {
			time.Sleep(10 * time.Millisecond)
			err = s.handle.IpsetDestroy(setName(f, k))
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("IP set %s: %w", setName(f, k), err)
		}
	}
	return nil
}
