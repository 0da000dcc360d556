// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/slipstream-proxy/slipstream/test/lab"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// addresses adds and removes a node's addresses, and passes them to its proxy.
func (s *story) addresses(t *testing.T, d *datadriven.TestData) string {
	n := s.node(t, d)
	for _, line := range lines(d.Input) {
		words, link := cut(strings.Fields(line), "on")
		if len(words) != 2 || words[0] != "add" && words[0] != "remove" {
			d.Fatalf(t, "%s: must be add or remove, and an address", line)
		}
		p, add := prefixes(t, d, words[1:])[0], words[0] == "add"
		if add {
			n.addrs = append(n.addrs, p.Addr())
		} else {
			n.addrs = slices.DeleteFunc(n.addrs, func(a netip.Addr) bool { return a == p.Addr() })
		}
		if s.topology == nil {
			continue
		}
		if err := s.topology.address(n.name, p, add, append(link, "eth0")[0]); err != nil {
			d.Fatalf(t, "%s: %v", line, err)
		}
	}
	n.state.SetNodeAddresses(n.addrs)
	return s.program(t, d)
}

// address adds an address to a node's link, or removes it.
func (top *topology) address(node string, p netip.Prefix, add bool, link string) error {
	if err := setAddress(&top.nodes[node].Machine, p, add, link); err != nil {
		return err
	}
	if !add {
		delete(top.owner, p.Addr())
		return nil
	}
	top.owner[p.Addr()] = node
	if link != "eth0" {
		return nil
	}
	for _, h := range top.hosts {
		if h.Addr(p.Addr().Is6()).IsValid() {
			if err := awaitNeighbor(&h.Machine, p.Addr()); err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitNeighbor waits until a machine finds the neighbor with an address: IPv6 joins
// an address's multicast group in the background.
func awaitNeighbor(m *lab.Machine, a netip.Addr) error {
	const unused = 9 // the port of the discard protocol
	for range 20 {
		_, err := m.Connect(lab.TCP, netip.AddrPortFrom(a, unused))
		if errors.Is(err, lab.ErrRefused) {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("%s does not answer %s", a, m.Name())
}

// setAddress adds an address to a machine's link, or removes it.
func setAddress(m *lab.Machine, p netip.Prefix, add bool, link string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %s: %s: %w", m.Name(), link, p, err)
		}
	}()
	handle := m.Netlink()
	l, err := handle.LinkByName(link)
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(p.String())
	if err != nil {
		return err
	}
	if !add {
		return handle.AddrDel(l, addr)
	}
	if p.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	if err := handle.AddrAdd(l, addr); err != nil {
		return err
	}
	return awaitLocalRoute(handle, p.Addr())
}

// awaitLocalRoute waits until packets to an address stay in the namespace: IPv6 adds the
// route in the background.
func awaitLocalRoute(handle *netlink.Handle, a netip.Addr) error {
	for range 1000 {
		routes, err := handle.RouteGet(a.AsSlice())
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("no local route to %s", a)
}
