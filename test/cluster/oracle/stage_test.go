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
package oracle

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
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

// NewStage sets up a stage. The caller closes it.
func NewStage(ctx context.Context) (_ *Stage, err error) {
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
	f := familyOf(a)
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
	nodes, pods := map[string]*lab.Node{}, map[string]*lab.Pod{}
	for _, name := range []string{Node1, Node2} {
		plan := nodePlans[name]
		n, err := s.Lab.Node(name, lab.NodeOptions{Addresses: onFabric(plan.address), PodCIDRs: plan.pods[:]})
		if err != nil {
			return err
		}
		s.add(&n.Machine)
		nodes[name] = n
	}
	s.N1 = nodes[Node1]
	// The interfaces of n1's pods are named in this order, pod a's first.
	for _, p := range append([]Endpoint{{"a", Node1, podA}, {"f", Node2, podF}}, Endpoints...) {
		if p.Name == p.Node {
			continue
		}
		pod, err := nodes[p.Node].Pod(p.Name, p.Address[:]...)
		if err != nil {
			return err
		}
		s.add(&pod.Machine)
		pods[p.Name] = pod
	}
	return s.alias(pods["a"])
}

// alias gives a pod a whole range of addresses to connect from.
func (s *Stage) alias(pod *lab.Pod) error {
	for f, r := range aliases {
		if err := pod.AddLocalRange(r); err != nil {
			return err
		}
		// Through the pod's own address: the kernel bounds how many neighbors it keeps.
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

// address adds an address to a link of the machine that the kernel does not choose as a source
// for other machines: on lo it is of host scope, and an IPv6 one is deprecated.
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

// Firewall makes n1 accept and forward only packets that some rule accepts, by one variant of
// the iptables commands ("legacy" or "nft"). The rules that it adds itself accept, to n1, only
// answers, packets of n1 to itself, and what IPv6 needs.
func (s *Stage) Firewall(ctx context.Context, variant string) error {
	for _, command := range []string{"iptables-" + variant, "ip6tables-" + variant} {
		for _, args := range [][]string{
			{"-A", "INPUT", "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT"},
			{"-A", "INPUT", "-i", "lo", "-j", "ACCEPT"},
			{"-A", "INPUT", "-p", "ipv6-icmp", "-j", "ACCEPT"},
			{"-P", "INPUT", "DROP"},
			{"-P", "FORWARD", "DROP"},
		} {
			if _, err := s.N1.Run(ctx, command, append([]string{"-w", "60"}, args...)...); err != nil {
				return err
			}
		}
	}
	return nil
}

// The vantages: where clients are.
const (
	PodNoEndpoint = "a"        // a pod of n1
	PodEndpoint   = "b"        // a pod of n1 that is often an endpoint itself
	OnNode        = Node1      // n1 itself
	OtherPod      = "f"        // a pod of n2
	Outside       = "client"   // outside the cluster
	Stranger      = "stranger" // outside, from another range
)

// Vantage is a machine that makes connections.
type Vantage struct {
	Name    string
	Machine *lab.Machine

	sources Pair[netip.Prefix] // the addresses to take; not valid: the machine's own
	own     bool               // whether the first is the machine's own
}

func (s *Stage) vantages(context.Context) error {
	for _, v := range []*Vantage{
		{PodNoEndpoint, s.machines["a"], aliases, true},
		{PodEndpoint, s.machines["b"], Pair[netip.Prefix]{}, true},
		{OnNode, s.machines[Node1], Pair[netip.Prefix]{}, true},
		{OtherPod, s.machines["f"], Pair[netip.Prefix]{}, true},
		{Outside, s.machines["client"], Clients, false},
		{Stranger, s.machines["client"], Strangers, false},
	} {
		s.Vantages[v.Name] = v
	}
	return s.warm()
}

// Many says whether the vantage has any number of addresses to connect from.
func (v *Vantage) Many() bool { return v.sources[0].IsValid() }

// Source is the i-th address to connect from; the invalid address stands for the one
// that the kernel chooses.
func (v *Vantage) Source(family, i int) netip.Addr {
	if v.own {
		if i == 0 || !v.Many() {
			return netip.Addr{}
		}
		i--
	}
	return lab.Nth(v.sources[family], i+1)
}

// Connect makes one connection from the i-th address.
func (v *Vantage) Connect(p lab.Protocol, to netip.AddrPort, i int, opts ...lab.ConnectOption) (lab.Reply, error) {
	if source := v.Source(familyOf(to.Addr()), i); source.IsValid() {
		opts = append(opts, lab.Source(netip.AddrPortFrom(source, 0)))
	}
	return v.Machine.Connect(p, to, opts...)
}

// warm makes each vantage connect to each endpoint's own address once, so that no later
// connection has to wait for neighbor discovery.
func (s *Stage) warm() error {
	var all errgroup.Group
	const patience = 5 * time.Second // the first connections may have to be tried again
	for _, v := range s.Vantages {
		for _, e := range Endpoints {
			for _, a := range e.Address {
				all.Go(func() error {
					if _, err := v.Connect(lab.TCP, netip.AddrPortFrom(a, TargetPorts[0]), 0, lab.Timeout(patience)); err != nil {
						return fmt.Errorf("%s cannot talk to %s: %w", v.Name, e.Name, err)
					}
					return nil
				})
			}
		}
		for _, r := range VIPs {
			all.Go(func() error {
				reply, err := v.Connect(lab.TCP, netip.AddrPortFrom(r.Masked().Addr().Next().Next(), 1), 0, lab.Timeout(patience))
				if err != nil || reply.Server != Elsewhere {
					return fmt.Errorf("%s is not led elsewhere without a proxy: %v %v", v.Name, reply.Server, err)
				}
				return nil
			})
		}
	}
	return all.Wait()
}
