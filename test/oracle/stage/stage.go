// SPDX-License-Identifier: Apache-2.0

// Package stage is the lab in which a proxy is looked at: always the same machines and
// addresses, so that two proxies on two stages can be compared.
//
//	client   outside; reaches Service addresses through n1, from many addresses
//	n1       the node with the proxy: pods a (no endpoint), b, c; a second address; a
//	         load balancer's address on lo
//	n2       a node without a proxy: pods d, e, f (no endpoint)
//	elsewhere gets what n1 forwards to Service addresses, and answers on every port: it
//	         shows packets that the proxy should have dropped or refused
//
// All of them have IPv4 and IPv6.
package stage

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/slipstream-proxy/slipstream/test/lab"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Stage is the machines.
type Stage struct {
	Lab      *lab.Lab
	N1       *lab.Node
	Vantages map[string]*Vantage // by name

	machines map[string]*lab.Machine
	owners   map[netip.Addr]string
}

// New sets up a stage. The caller closes it.
func New(ctx context.Context) (_ *Stage, err error) {
	l, err := lab.New()
	if err != nil {
		return nil, err
	}
	s := &Stage{
		Lab: l, Vantages: map[string]*Vantage{},
		machines: map[string]*lab.Machine{}, owners: map[netip.Addr]string{},
	}
	for _, step := range []func(context.Context) error{s.nodes, s.outside, s.extraAddresses, s.routes, s.elsewhere, s.serve, s.vantages} {
		if err := step(ctx); err != nil {
			s.Close()
			return nil, fmt.Errorf("stage: %w", err)
		}
	}
	return s, nil
}

// Close ends everything on the stage.
func (s *Stage) Close() error { return s.Lab.Close() }

// Owner names the machine that has an address, or the address itself.
func (s *Stage) Owner(a netip.Addr) string {
	a = a.Unmap()
	if name, ok := s.owners[a]; ok {
		return name
	}
	f := Family(a)
	switch {
	case aliases[f].Contains(a):
		return "a"
	case Clients[f].Contains(a):
		return "client"
	case Strangers[f].Contains(a):
		return "stranger"
	}
	return a.String()
}

func (s *Stage) add(m *lab.Machine) {
	s.machines[m.Name()] = m
	for _, a := range m.Addrs() {
		s.owners[a] = m.Name()
	}
}

func (s *Stage) nodes(context.Context) error {
	for _, name := range []string{Node1, Node2} {
		plan := nodePlans[name]
		n, err := s.Lab.Node(name, lab.NodeOptions{Addresses: onFabric(plan.address), PodCIDRs: plan.pods[:]})
		if err != nil {
			return err
		}
		s.add(&n.Machine)
		if name == Node1 {
			s.N1 = n
		}
		for _, p := range podsOn(name) {
			pod, err := n.Pod(p.Name, p.Address[:]...)
			if err != nil {
				return err
			}
			s.add(&pod.Machine)
			if p.Name == "a" {
				if err := s.alias(pod); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// podsOn returns a node's pods, those that are not endpoints first.
func podsOn(node string) []Endpoint {
	pods := []Endpoint{{"a", Node1, podA}, {"f", Node2, podF}}
	var all []Endpoint
	for _, e := range append(pods, Endpoints...) {
		if e.Node == node && e.Name != node {
			all = append(all, e)
		}
	}
	return all
}

// alias gives a pod a whole range of addresses to connect from.
func (s *Stage) alias(pod *lab.Pod) error {
	for f, r := range aliases {
		if err := pod.AddLocalRange(r); err != nil {
			return err
		}
		// Through the pod's own address: n1 would have to find out the link address
		// of each alias otherwise, and the kernel bounds how many it keeps.
		handle := s.N1.Netlink()
		link, err := handle.LinkByName(pod.NodeLink())
		if err != nil {
			return err
		}
		dst, err := netlink.ParseIPNet(r.String())
		if err != nil {
			return err
		}
		err = handle.RouteAdd(&netlink.Route{
			LinkIndex: link.Attrs().Index, Dst: dst, Gw: podA[f].AsSlice(),
			Flags: int(netlink.FLAG_ONLINK), Src: NodeAddress(Node1)[f].AsSlice(),
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Stage) outside(context.Context) error {
	for name, address := range map[string]Pair[netip.Addr]{"client": client, Elsewhere: elsewhere} {
		h, err := s.Lab.Host(name, onFabric(address)...)
		if err != nil {
			return err
		}
		s.add(&h.Machine)
		if err := h.RouteToPods(); err != nil {
			return err
		}
	}
	return nil
}

// extraAddresses adds the addresses that the lab does not know of.
func (s *Stage) extraAddresses(context.Context) error {
	for f := range Second {
		if err := address(&s.N1.Machine, "eth0", netip.PrefixFrom(Second[f], nodeRange[f].Bits())); err != nil {
			return err
		}
		s.owners[Second[f]] = "n1 (second address)"
		if err := address(&s.N1.Machine, "lo", netip.PrefixFrom(LocalVIP[f], LocalVIP[f].BitLen())); err != nil {
			return err
		}
		s.owners[LocalVIP[f]] = "n1 (load balancer's address)"
		for _, r := range []netip.Prefix{Clients[f], Strangers[f]} {
			if err := s.machines["client"].AddLocalRange(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// routes lead the outside host, and n2's pods, to Service addresses through n1, answers
// the same way back, and what n1 does not keep to elsewhere.
func (s *Stage) routes(context.Context) error {
	n1, n2, outside := &s.N1.Machine, s.machines[Node2], s.machines["client"]
	for f := range VIPs {
		via1 := NodeAddress(Node1)[f]
		for _, r := range []struct {
			on     *lab.Machine
			prefix netip.Prefix
			via    netip.Addr
		}{
			{outside, ServiceCIDRs[f], via1}, {outside, VIPs[f], via1},
			{n2, VIPs[f], via1}, {n2, Clients[f], via1}, {n2, Strangers[f], via1},
			{n1, Clients[f], client[f]}, {n1, Strangers[f], client[f]},
			{n1, ServiceCIDRs[f], elsewhere[f]}, {n1, VIPs[f], elsewhere[f]},
			{s.machines[Elsewhere], Clients[f], via1}, {s.machines[Elsewhere], Strangers[f], via1},
		} {
			if err := r.on.AddRoute(r.prefix, r.via); err != nil {
				return err
			}
		}
	}
	return nil
}

// discard is the port to which elsewhere redirects connections to any port.
const discard = 9

func (s *Stage) elsewhere(ctx context.Context) error {
	m := s.machines[Elsewhere]
	for f := range VIPs {
		for _, r := range []netip.Prefix{ServiceCIDRs[f], VIPs[f]} {
			if err := m.AddLocalRange(r); err != nil {
				return err
			}
		}
	}
	rules := fmt.Sprintf(`table inet elsewhere {
		chain prerouting {
			type nat hook prerouting priority dstnat
			meta l4proto { tcp, udp } redirect to :%d
		}
	}`, discard)
	if _, err := m.Run(ctx, "nft", rules); err != nil {
		return err
	}
	for _, p := range []lab.Protocol{lab.TCP, lab.UDP} {
		if _, err := m.Serve(p, netip.AddrPortFrom(netip.IPv6Unspecified(), discard)); err != nil {
			return err
		}
	}
	return nil
}

// serve has all endpoints answer.
func (s *Stage) serve(context.Context) error {
	for _, e := range Endpoints {
		for _, port := range TargetPorts {
			for _, p := range []lab.Protocol{lab.TCP, lab.UDP} {
				if _, err := s.machines[e.Name].Serve(p, netip.AddrPortFrom(netip.IPv6Unspecified(), port)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// forever is the kernel's INFINITY_LIFE_TIME, in seconds.
const forever = 1<<32 - 1

// address adds an address to a link of the machine's, such that the kernel does not
// choose it as a source for other machines: on lo it is of host scope, and an IPv6 one
// is deprecated.
func address(m *lab.Machine, link string, p netip.Prefix) error {
	a, err := netlink.ParseAddr(p.String())
	if err != nil {
		return err
	}
	if link == "lo" && p.Addr().Is4() {
		a.Scope = int(netlink.SCOPE_HOST)
	}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
		a.ValidLft, a.PreferedLft = forever, 0
	}
	handle := m.Netlink()
	l, err := handle.LinkByName(link)
	if err == nil {
		err = handle.AddrAdd(l, a)
	}
	if err != nil {
		return fmt.Errorf("%s: address %v on %s: %w", m.Name(), p, link, err)
	}
	return nil
}

func onFabric(p Pair[netip.Addr]) []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(p[0], nodeRange[0].Bits()), netip.PrefixFrom(p[1], nodeRange[1].Bits())}
}
