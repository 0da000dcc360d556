// SPDX-License-Identifier: Apache-2.0

// Package ipset creates, fills, lists and destroys the kernel's IP sets over netlink. It
// needs CAP_NET_ADMIN and CONFIG_IP_SET, and not the command ipset.
package ipset

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/sock"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// MaxNameLen is how long a set's name can be, in bytes (IPSET_MAXNAMELEN less the NUL).
const MaxNameLen = 31

// TypePorts is the type of a set of ports, which has no address family.
const TypePorts = "bitmap:port"

// Member is a member of a set. Which fields are set depends on the set's type:
//
//	hash:ip, hash:net   Net
//	hash:ip,port        AddrPort and Protocol
//	hash:ip,port,net    all
//	bitmap:port         the port of AddrPort
type Member struct {
	netip.AddrPort
	Protocol uint8
	Net      netip.Prefix // not of length 0, which the kernel refuses
}

// String is for messages.
func (m Member) String() string {
	switch {
	case !m.Addr().IsValid() && !m.Net.IsValid():
		return fmt.Sprint("port ", m.Port())
	case !m.Addr().IsValid():
		return m.Net.String()
	case !m.Net.IsValid():
		return fmt.Sprintf("%s protocol %d", m.AddrPort, m.Protocol)
	}
	return fmt.Sprintf("%s protocol %d %s", m.AddrPort, m.Protocol, m.Net)
}

// Port is a member of a set of ports.
func Port(port uint16) Member {
	return Member{AddrPort: netip.AddrPortFrom(netip.Addr{}, port)}
}

// Conn is a connection to the IP sets of one network namespace. It is for one goroutine at
// a time.
type Conn struct {
	handle *netlink.Handle
	socket *nl.NetlinkSocket // for requests that the handle lacks
}

// Dial connects in a network namespace, given by a file descriptor; 0 is the calling
// thread's. A kernel without IP sets gives an error for which nfnl.IsUnsupported is true.
func Dial(namespace int) (*Conn, error) {
	ns := sock.Namespace(namespace)
	handle, err := netlink.NewHandleAt(ns, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("netlink socket to netfilter: %w", err)
	}
	socket, err := nl.GetNetlinkSocketAt(ns, netns.None(), unix.NETLINK_NETFILTER)
	if err != nil {
		handle.Close()
		return nil, fmt.Errorf("netlink socket to netfilter: %w", err)
	}
	c := &Conn{handle, socket}
	if _, _, err := handle.IpsetProtocol(); err != nil {
		c.Close()
		return nil, fmt.Errorf("the kernel has no IP sets (CONFIG_IP_SET): %w", err)
	}
	return c, nil
}

// Close closes the connection.
func (c *Conn) Close() {
	c.handle.Close()
	c.socket.Close()
}

// Create creates a set of a type, as the command ipset names it, unless there is one like
// it.
func (c *Conn) Create(name, typ string, v6 bool) error {
	const maxMembers = 1 << 24 // of a set; the kernel reserves nothing for them
	o := netlink.IpsetCreateOptions{Replace: true, Family: unix.AF_INET, MaxElements: maxMembers}
	if v6 {
		o.Family = unix.AF_INET6
	}
	if typ == TypePorts {
		o = netlink.IpsetCreateOptions{Replace: true, PortFrom: 0, PortTo: 1<<16 - 1}
	}
	if err := c.handle.IpsetCreate(name, typ, o); err != nil {
		return fmt.Errorf("creating IP set %s of type %s: %w", name, typ, err)
	}
	return nil
}

// Add adds a member, unless the set has it.
func (c *Conn) Add(name string, m Member) error {
	return c.write(nl.IPSET_CMD_ADD, name, m, c.handle.IpsetAdd)
}

// Delete deletes a member, if the set has it.
func (c *Conn) Delete(name string, m Member) error {
	return c.write(nl.IPSET_CMD_DEL, name, m, c.handle.IpsetDel)
}

func (c *Conn) write(command int, name string, m Member, do func(string, *netlink.IPSetEntry) error) error {
	var err error
	if m.Addr().IsValid() || m.Net.IsValid() {
		err = do(name, m.encode())
	} else {
		// For a port, the library would send a protocol too, which the kernel refuses.
		r := c.request(command, name)
		data := nl.NewRtAttr(nl.IPSET_ATTR_DATA|int(nl.NLA_F_NESTED), nil)
		data.AddRtAttr(nl.IPSET_ATTR_PORT|int(nl.NLA_F_NET_BYTEORDER), binary.BigEndian.AppendUint16(nil, m.Port()))
		r.AddData(data)
		_, err = r.Execute(unix.NETLINK_NETFILTER, 0)
	}
	if err != nil {
		return fmt.Errorf("writing %s to IP set %s: %w", m, name, err)
	}
	return nil
}

// encode is the member as the library has it.
func (m Member) encode() *netlink.IPSetEntry {
	e := &netlink.IPSetEntry{Replace: true}
	n, bits := net.IP(m.Net.Addr().AsSlice()), uint8(max(m.Net.Bits(), 0))
	if !m.Addr().IsValid() {
		e.IP, e.CIDR = n, bits
		return e
	}
	port := m.Port()
	e.IP, e.Protocol, e.Port, e.IP2, e.CIDR2 = net.IP(m.Addr().AsSlice()), &m.Protocol, &port, n, bits
	return e
}

// decode is the inverse of encode.
func decode(e *netlink.IPSetEntry) (m Member) {
	ip, hasIP := netip.AddrFromSlice(e.IP)
	switch {
	case !hasIP && e.Port != nil:
		return Port(*e.Port)
	case e.Port == nil || e.Protocol == nil:
		m.Net = prefix(ip, e.CIDR)
		return m
	}
	m.AddrPort, m.Protocol = netip.AddrPortFrom(ip, *e.Port), *e.Protocol
	if ip2, ok := netip.AddrFromSlice(e.IP2); ok {
		m.Net = prefix(ip2, e.CIDR2)
	}
	return m
}

func prefix(a netip.Addr, bits uint8) netip.Prefix {
	if bits == 0 {
		bits = uint8(a.BitLen())
	}
	return netip.PrefixFrom(a, int(bits))
}

// List lists a set's members. For a set that does not exist the error wraps ENOENT.
func (c *Conn) List(name string) (map[Member]bool, error) {
	got, err := c.handle.IpsetList(name)
	if err != nil {
		return nil, fmt.Errorf("listing IP set %s: %w", name, err)
	}
	all := make(map[Member]bool, len(got.Entries))
	for i := range got.Entries {
		all[decode(&got.Entries[i])] = true
	}
	return all, nil
}

const (
	flagListHeader = 1 << 2 // IPSET_FLAG_LIST_HEADER: list no members
	attrElements   = nl.IPSET_ATTR_ELEMENTS | nl.NLA_F_NET_BYTEORDER
)

// Count returns how many members a set has, at the same cost for any number. For a set
// that does not exist the error wraps ENOENT.
func (c *Conn) Count(name string) (n int, err error) {
	request := c.request(nl.IPSET_CMD_LIST, name)
	request.AddData(&nl.Uint32Attribute{Type: nl.IPSET_ATTR_FLAGS | nl.NLA_F_NET_BYTEORDER, Value: flagListHeader})
	answers, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return 0, fmt.Errorf("reading header of IP set %s: %w", name, err)
	}
	for _, a := range answers {
		for attr := range nl.ParseAttributes(a[4:]) {
			if attr.Type != nl.IPSET_ATTR_DATA|nl.NLA_F_NESTED {
				continue
			}
			for in := range nl.ParseAttributes(attr.Value) {
				if in.Type == attrElements {
					n = int(in.Uint32())
				}
			}
		}
	}
	return n, nil
}

// request is a message about a set.
func (c *Conn) request(command int, name string) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(command|unix.NFNL_SUBSYS_IPSET<<8, nl.GetIpsetFlags(command))
	r.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: c.socket}}
	r.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_NETLINK, Version: nl.NFNETLINK_V0})
	r.AddData(nl.NewRtAttr(nl.IPSET_ATTR_PROTOCOL, nl.Uint8Attr(nl.IPSET_PROTOCOL)))
	r.AddData(nl.NewRtAttr(nl.IPSET_ATTR_SETNAME, nl.ZeroTerminated(name)))
	return r
}

// Destroy destroys those sets that exist in the calling thread's network namespace, see
// [Conn.Destroy].
func Destroy(ctx context.Context, names ...string) error {
	conn, err := Dial(0)
	if nfnl.IsUnsupported(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.Destroy(ctx, names...)
}

// Destroy destroys those sets that exist. The kernel frees rules of nf_tables a little after
// their removal; so while sets are in use Destroy waits, up to two seconds in all.
func (c *Conn) Destroy(ctx context.Context, names ...string) error {
	const destroyTimeout = 2 * time.Second // how long to wait for rules to let go of sets
	ctx, cancel := context.WithTimeout(ctx, destroyTimeout)
	defer cancel()
	var errs []error
	for _, name := range names {
		if err := c.destroy(ctx, name); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("destroying IP set %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func (c *Conn) destroy(ctx context.Context, name string) error {
	for {
		err := c.handle.IpsetDestroy(name)
		if !errors.Is(err, nl.IPSetError(nl.IPSET_ERR_BUSY)) || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}
