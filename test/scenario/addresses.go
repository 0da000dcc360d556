// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
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
	handle := top.nodes[node].Netlink()
	l, err := handle.LinkByName(link)
	if err != nil {
		return fmt.Errorf("%s: %w", link, err)
	}
	addr, err := netlink.ParseAddr(p.String())
	if err != nil {
		return err
	}
	if !add {
		delete(top.owner, p.Addr())
		return handle.AddrDel(l, addr)
	}
	top.owner[p.Addr()] = node
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
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		routes, err := handle.RouteGet(a.AsSlice())
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("no local route to %s", a)
}
