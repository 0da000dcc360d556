// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	rtnetlink "github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/sock"
	"github.com/slipstream-proxy/slipstream/internal/node/netif"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Interface is the name of the dummy interface, kube-proxy's.
const Interface = "kube-ipvs0"

// alias is the first word of the interface's alias. It marks the interface as in use by
// Slipstream, whether it or kube-proxy has made it.
// disowned is before it on an interface that cleanup has left to kube-proxy.
const alias, disowned = "slipstream", "was-"

func (d *dummy) isOurs() bool {
	first, _, _ := strings.Cut(d.link.Attrs().Alias, " ")
	return first == alias
}

// Owned reports whether IPVS mode of an earlier run has left its interface in the calling
// thread's network namespace. kube-proxy's has no mark.
func Owned() (is bool, err error) {
	err = withOwn(func(d *dummy) error { is = d.isOurs(); return nil })
	return is, err
}

// dummy is the interface that has the addresses of Services. It stays down: an address of an
// interface that is down is the node's all the same, and nothing is sent through it.
type dummy struct {
	handle *netlink.Handle
	routes *rtnetlink.Conn // for addresses, many in one system call
	link   netlink.Link    // nil until it exists
}

func openDummy(ns int) (*dummy, error) {
	h, err := netlink.NewHandleAt(sock.Namespace(ns), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink socket to interfaces: %w", err)
	}
	// Not by sock.Dial: the library looks for the kernel's words behind the refused request, which is not repeated then.
	routes, err := rtnetlink.Dial(unix.NETLINK_ROUTE, &rtnetlink.Config{NetNS: ns})
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("netlink socket to addresses: %w", err)
	}
	return &dummy{handle: h, routes: routes}, nil
}

func (d *dummy) close() error {
	d.handle.Close()
	return d.routes.Close()
}

// find looks for the interface, which may not exist.
func (d *dummy) find() error {
	link, err := d.handle.LinkByName(Interface)
	switch {
	case errors.As(err, &netlink.LinkNotFoundError{}):
		d.link = nil
		return nil
	case err != nil:
		return fmt.Errorf("looking for interface %s: %w", Interface, err)
	case link.Type() != "dummy":
		return fmt.Errorf("interface %s exists and is of type %s, not dummy", Interface, link.Type())
	}
	d.link = link
	return nil
}

// ensure makes the interface unless it exists, and marks it.
func (d *dummy) ensure() error {
	if err := d.find(); err != nil {
		return err
	}
	if d.link == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = Interface
		if err := d.handle.LinkAdd(&netlink.Dummy{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("making interface %s (needs CONFIG_DUMMY): %w", Interface, err)
		}
		if err := d.find(); err != nil {
			return err
		}
	}
	return d.mark(formerValues(d.link.Attrs().Alias))
}

// addresses returns the addresses of the interface, without those that the kernel assigns, which
// are link-local and not alone in their network.
func (d *dummy) addresses() (map[netip.Addr]bool, error) {
	all := map[netip.Addr]bool{}
	if d.link == nil {
		return all, nil
	}
	list, err := netif.Complete(func() ([]netlink.Addr, error) { return d.handle.AddrList(d.link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("listing addresses of interface %s: %w", Interface, err)
	}
	for _, a := range list {
		bits, size := a.Mask.Size()
		if addr, ok := netip.AddrFromSlice(a.IP); ok && (bits == size || !a.IP.IsLinkLocalUnicast()) {
			all[addr.Unmap()] = true
		}
	}
	return all, nil
}

// compare returns the change after which the interface has these addresses and no others.
func (d *dummy) compare(all []desired.Member) (c desired.SetChange, err error) {
	has, err := d.addresses()
	if err != nil {
		return c, err
	}
	for _, m := range all {
		if !has[m.Addr] {
			c.Added = append(c.Added, m)
		}
		delete(has, m.Addr)
	}
	for a := range has {
		c.Removed = append(c.Removed, desired.Address(a))
	}
	return c, nil
}

// change adds and removes addresses, and calls failed for those that the kernel refuses to add. Those that exist
// already, or no longer exist, are not errors. An IPv6 address is usable at once, without duplicate address
// detection.
func (d *dummy) change(ctx context.Context, c *desired.SetChange, failed func(a netip.Addr, err error)) error {
	var all []rtnetlink.Message
	add := func(command rtnetlink.HeaderType, flags rtnetlink.HeaderFlags, a netip.Addr) error {
		family := byte(unix.AF_INET)
		if a.Is6() {
			family = unix.AF_INET6
		}
		attrs, err := rtnetlink.MarshalAttributes([]rtnetlink.Attribute{{Type: unix.IFA_LOCAL, Data: a.AsSlice()}, {Type: unix.IFA_ADDRESS, Data: a.AsSlice()}})
		data := binary.NativeEndian.AppendUint32([]byte{family, byte(a.BitLen()), unix.IFA_F_NODAD, unix.RT_SCOPE_UNIVERSE}, uint32(d.link.Attrs().Index))
		all = append(all, rtnetlink.Message{Header: rtnetlink.Header{Type: command, Flags: rtnetlink.Request | flags}, Data: append(data, attrs...)})
		return err
	}
	var errs []error
	for _, a := range c.Removed {
		errs = append(errs, add(unix.RTM_DELADDR, 0, a.Addr))
	}
	for _, a := range c.Added {
		errs = append(errs, add(unix.RTM_NEWADDR, rtnetlink.Create|rtnetlink.Excl, a.Addr))
	}
	err := sock.Execute(ctx, d.routes, all, func(i int, err error) {
		switch i -= len(c.Removed); {
		case i >= 0 && !errors.Is(err, unix.EEXIST):
			failed(c.Added[i].Addr, fmt.Errorf("adding %s to interface %s: %w", c.Added[i], Interface, err))
		case i < 0 && !errors.Is(err, unix.EADDRNOTAVAIL):
			a := c.Removed[i+len(c.Removed)]
			errs = append(errs, fmt.Errorf("removing %s from interface %s: %w", a, Interface, err))
		}
	})
	return errors.Join(append(errs, err)...)
}

// isLocal reports whether an address is on any interface of the node.
func (d *dummy) isLocal(a netip.Addr) bool {
	routes, err := d.handle.RouteGetWithOptions(a.AsSlice(), nil)
	return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
}

// remove deletes the interface with its addresses.
func (d *dummy) remove() error {
	if err := d.find(); err != nil || d.link == nil {
		return err
	}
	if err := d.handle.LinkDel(d.link); err != nil {
		return fmt.Errorf("removing interface %s: %w", Interface, err)
	}
	d.link = nil
	return nil
}
