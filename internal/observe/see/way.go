// SPDX-License-Identifier: Apache-2.0

package see

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/firewall"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/plain"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// This file follows a packet from the client to the endpoints: routes, neighbors, kernel
// parameters, and the rules of others.

// hop is the last part of the path to an endpoint.
type hop struct {
	desired.Candidate
	out   string // interface
	local bool   // the endpoint's address is this node's
}

// sockets says whether a process of the client skips the translation.
func (x *explainer) sockets() {
	var pod netip.Addr
	if x.client.Class != desired.FromNode {
		pod = x.client.Addr
	}
	if b := x.view.Sockets; b != nil && x.client.Class != desired.FromOutside && b.Connects(x.decision.Frontend, pod) {
		x.direct = true
		x.step("Sockets", "", "connect() of a process there goes straight to the endpoint (socketLoadBalancing): its packets have that destination from the start, are not translated or masqueraded, and conntrack has no connection to %s. What follows is for clients that are not served, such as containers with a network namespace of their own, and for sockets that are bound to a port first, such as the probe of --trace.", x.to)
	}
}

// path examines the path to the endpoints that may be chosen.
func (x *explainer) path(all []desired.Candidate) {
	if entries, err := number("net/netfilter/nf_conntrack_count"); err == nil {
		if limit, err := number("net/netfilter/nf_conntrack_max"); err == nil && entries >= limit && limit > 0 {
			x.stop(ConntrackFull, false, "Conntrack", "net.netfilter.nf_conntrack_max", "The table of connections is full: %d of %d. Packets of new connections are dropped.", entries, limit)
		}
	}
	in := ""
	if x.client.Class != desired.FromNode && x.client.Addr.IsValid() {
		in = x.arrival()
	} else if to := x.to.Addr(); x.client.Class == desired.FromNode && !to.IsUnspecified() && !x.direct {
		// The kernel looks for a route before it translates the destination.
		if routes, err := netlink.RouteGet(to.AsSlice()); err != nil || len(routes) == 0 {
			x.stop(NoRoute, false, "Route", fmt.Sprintf("ip route get %s", to), "This node has no route to %s itself, not even a default one, so it cannot connect: %v.", to, routeError(err))
		}
	}
	var hops []hop
	before, arriving := len(x.Steps), in
	if slices.ContainsFunc(x.Steps, func(s Step) bool { return s.Cause == ReversePath }) {
		arriving = "" // the kernel's answer would be that again; since Linux 6.13 it does not say so
	}
	for _, c := range all[:min(len(all), maxEndpoints)] {
		if h, ok := x.hop(c, arriving, len(all) > 1); ok {
			hops = append(hops, h)
		}
	}
	// What stops the way to each endpoint is certain.
	unreachable := func(s Step) bool { return s.Cause == NoRoute || s.Cause == NoNeighbor }
	if steps := slices.DeleteFunc(slices.Clone(x.Steps[before:]), func(s Step) bool { return !unreachable(s) }); len(steps) == len(all) {
		for i := range x.Steps[before:] {
			s := &x.Steps[before+i]
			s.Possible = s.Possible && !unreachable(*s)
		}
	}
	if x.client.Class != desired.FromNode && slices.ContainsFunc(hops, func(h hop) bool { return !h.local }) {
		x.forwarding(in, hops)
	}
	x.firewalls(in, hops)
}

// clientLink returns the interface on which packets of a client arrive: the one on which it is a
// neighbor, or else that of the route to it; "" if it is not known.
func clientLink(a netip.Addr) string {
	neighbors, err := netlink.NeighList(0, nl.GetIPFamily(a.AsSlice()))
	if err == nil {
		for _, n := range neighbors {
			if n.IP.Equal(net.IP(a.AsSlice())) && n.State&(netlink.NUD_FAILED|netlink.NUD_INCOMPLETE) == 0 {
				return linkName(n.LinkIndex)
			}
		}
	}
	return routeLink(a)
}

func routeLink(a netip.Addr) string {
	routes, err := netlink.RouteGet(a.AsSlice())
	if err != nil || len(routes) == 0 {
		return ""
	}
	return linkName(routes[0].LinkIndex)
}

func linkName(index int) string {
	l, err := net.InterfaceByIndex(index)
	if err != nil {
		return ""
	}
	return l.Name
}

// arrival examines whether the node accepts packets of the client, and returns their interface.
func (x *explainer) arrival() string {
	in, back := clientLink(x.client.Addr), routeLink(x.client.Addr)
	filter, name := 0, ""
	for _, scope := range []string{"all", in} {
		if n, err := number("net/ipv4/conf/" + scope + "/rp_filter"); err == nil && n > filter && in != "" && x.family() == desired.IPv4 {
			filter, name = n, scope
		}
	}
	rule := "net.ipv4.conf." + name + ".rp_filter"
	const strict = 1
	switch {
	case filter == strict && in != back:
		x.stop(ReversePath, false, "Reverse path", rule, "Packets of %s arrive on %s, but the route back to it uses %s, so the kernel drops them.", x.client.Addr, in, cmp.Or(back, "none"))
	case filter > strict && back == "":
		x.stop(ReversePath, false, "Reverse path", rule, "There is no route back to %s, so the kernel drops its packets.", x.client.Addr)
	case back == "":
		x.stop(NoRoute, false, "Reverse path", fmt.Sprintf("ip route get %s", x.client.Addr), "There is no route back to %s, so it gets no reply.", x.client.Addr)
	}
	return in
}

// routeError names the routes that the kernel reports by errors of other meanings.
func routeError(err error) error {
	switch {
	case errors.Is(err, unix.EINVAL):
		return errors.New("its route is a blackhole")
	case errors.Is(err, unix.EACCES):
		return errors.New("its route prohibits it")
	}
	return err
}

// forwarded looks up the route of a packet that arrives on an interface and may have a mark, by which rules of routing (ip rule)
// may select. command shows the same.
func forwarded(from, to netip.Addr, in string, mark uint32) (routes []netlink.Route, command string, err error) {
	command = fmt.Sprintf("ip route get %s", to)
	if mark != 0 {
		command += fmt.Sprintf(" mark %#x", mark)
	}
	routes, err = netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{Mark: mark})
	if err != nil || in == "" || !from.IsValid() {
		return routes, command, err
	}
	all, failed := netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{Iif: in, SrcAddr: from.AsSlice(), Mark: mark})
	on, off := number("net/ipv4/conf/" + in + "/forwarding")
	if errors.Is(failed, unix.EXDEV) || errors.Is(failed, unix.EHOSTUNREACH) && (on == 0 || off != nil) { // rp_filter and forwarding have steps of their own
		return routes, command, nil
	}
	return all, fmt.Sprintf("%s from %s iif %s", command, from, in), failed
}

// hop examines the route and the neighbor for an endpoint, and the route of its replies. several says that there are others.
func (x *explainer) hop(c desired.Candidate, in string, several bool) (h hop, ok bool) {
	h = hop{Candidate: c}
	routes, command, err := forwarded(x.client.Addr, c.Addr(), in, 0)
	if err != nil || len(routes) == 0 {
		x.stop(NoRoute, several, "Route", command, "There is no route to endpoint %s: %v.", c.Addr(), routeError(err))
		return h, false
	}
	r := routes[0]
	h.out, h.local = linkName(r.LinkIndex), r.Type == unix.RTN_LOCAL
	if r.Type != unix.RTN_UNICAST && !h.local {
		x.stop(NoRoute, several, "Route", command, "The route to endpoint %s discards packets (type %d).", c.Addr(), r.Type)
		return h, false
	}
	next, via := c.Addr(), ""
	if gateway, ok := netip.AddrFromSlice(r.Gw); ok {
		next = gateway.Unmap()
		via = " via " + next.String()
	}
	neighbors, err := netlink.NeighList(r.LinkIndex, nl.GetIPFamily(next.AsSlice()))
	if err != nil {
		x.step("Route", "", "Neighbors could not be read: %v", err)
	}
	for _, n := range neighbors {
		if n.IP.Equal(net.IP(next.AsSlice())) && n.State&(netlink.NUD_FAILED|netlink.NUD_INCOMPLETE) != 0 {
			x.stop(NoNeighbor, several, "Route", fmt.Sprintf("ip neigh show %s dev %s", next, h.out), "%s does not answer on %s, which leads to endpoint %s. Is the pod or its node there?", next, h.out, c.Addr())
			return h, true
		}
	}
	if h.local {
		x.step("Route", "", "Endpoint %s is on this node itself.", c.Addr())
	} else {
		if all, err := netlink.RouteGetWithOptions(c.Addr().AsSlice(), &netlink.RouteGetOptions{FIBMatch: true}); err == nil && len(all) > 0 && isDefault(all[0].Dst) {
			via += ", by the default route"
		}
		x.step("Route", "", "Packets to endpoint %s leave on %s%s.", c.Addr(), h.out, via)
		x.back(&h, in, several)
	}
	return h, true
}

func isDefault(to *net.IPNet) bool {
	if to == nil {
		return true
	}
	ones, _ := to.Mask.Size()
	return ones == 0
}

// back examines the way of an endpoint's replies to a client that is not this node.
func (x *explainer) back(h *hop, in string, several bool) {
	if in == "" || h.out == "" {
		return
	}
	self := x.client.Addr == h.Addr()
	if l, err := netlink.LinkByName(in); err == nil && l.Type() == "bridge" && h.out == in {
		name := "net/bridge/bridge-nf-call-" + firewall.Command(x.family() == desired.IPv6)
		n, err := number(name)
		passes := err == nil && n == 1
		if port := portOf(l, h.Addr()); self && passes && port != "" {
			x.stop(Hairpin, several, "Bridge", "ip link set "+port+" type bridge_slave hairpin on", "Endpoint %s is the client itself, and its port %s of bridge %s sends no packet back to where it comes from (hairpin).", h.Addr(), port, in)
		} else if !self && !passes && !x.decision.Masquerade.Masqueraded() {
			x.stop(Bridge, true, "Bridge", strings.ReplaceAll(name, "/", "."), "The client and endpoint %s are on bridge %s, and its packets do not pass the node's rules. So replies go straight to the client, as from another address than it has connected to.", h.Addr(), in)
		}
	}
	if _, command, err := forwarded(h.Addr(), x.client.Addr, h.out, 0); err != nil && !self && strings.Contains(command, " iif ") { // arrival has asked without
		x.stop(NoRoute, several, "Route", command, "There is no route for replies of endpoint %s to %s: %v.", h.Addr(), x.client.Addr, routeError(err))
	}
}

// portOf returns the port of a bridge behind which a neighbor is, if that port sends no packet back; "" if it does, or is not known.
func portOf(bridge netlink.Link, neighbor netip.Addr) string {
	known, _ := netlink.NeighList(bridge.Attrs().Index, nl.GetIPFamily(neighbor.AsSlice()))
	learned, _ := netlink.NeighList(0, unix.AF_BRIDGE)
	i := slices.IndexFunc(known, func(n netlink.Neigh) bool { return n.IP.Equal(net.IP(neighbor.AsSlice())) })
	for _, l := range learned {
		if i >= 0 && l.MasterIndex == bridge.Attrs().Index && bytes.Equal(l.HardwareAddr, known[i].HardwareAddr) {
			if port, err := netlink.LinkByIndex(l.LinkIndex); err == nil {
				if info, err := netlink.LinkGetProtinfo(port); err == nil && !info.Hairpin {
					return port.Attrs().Name
				}
			}
		}
	}
	return ""
}

// forwarding checks the kernel's parameters for it.
func (x *explainer) forwarding(in string, hops []hop) {
	all := []string{"net/ipv4/ip_forward"}
	if x.family() == desired.IPv6 {
		all = []string{"net/ipv6/conf/all/forwarding"}
	} else {
		for _, link := range []string{in, hops[0].out} {
			all = append(all, "net/ipv4/conf/"+cmp.Or(link, "all")+"/forwarding")
		}
	}
	for _, name := range all {
		if n, err := number(name); err == nil && n == 0 {
			x.stop(Forwarding, false, "Forwarding", strings.ReplaceAll(name, "/", "."), "The node does not forward packets to endpoints such as %s, or their replies.", hops[0].Addr())
			return
		}
	}
}

// hooks are the hooks that a packet passes.
var hooks = map[uint32]string{
	unix.NF_INET_PRE_ROUTING: "prerouting", unix.NF_INET_LOCAL_IN: "input", unix.NF_INET_FORWARD: "forward",
	unix.NF_INET_LOCAL_OUT: "output", unix.NF_INET_POST_ROUTING: "postrouting",
}

// packetAt returns the packet to an endpoint at a hook, and whether it passes there.
func (x *explainer) packetAt(hook uint32, priority int32, in string, h hop) (p firewall.Packet, passes bool) {
	p = firewall.Packet{Protocol: uint8(x.to.Protocol), Src: netip.AddrPortFrom(x.client.Addr, 0), Dst: netip.AddrPortFrom(h.Addr(), h.Port())}
	defer func() { p.Translated = p.Dst != x.to.AddrPort && !x.view.IPVS }()
	outside := firewall.Link{Name: in, Known: in != ""}
	leaves := firewall.Link{Name: h.out, Known: true}
	node, virtual := x.client.Class == desired.FromNode, x.view.IPVS
	if virtual && hook == unix.NF_INET_LOCAL_IN && !node {
		p.Dst, p.In, p.Out = x.to.AddrPort, outside, firewall.Link{Known: true}
		return p, true
	}
	switch hook {
	case unix.NF_INET_PRE_ROUTING:
		if p.In, p.Out = outside, (firewall.Link{Known: true}); virtual || priority < firewall.PriorityDNAT {
			p.Dst = x.to.AddrPort
		}
		return p, !node
	case unix.NF_INET_FORWARD:
		p.In, p.Out = outside, leaves
		return p, !node && !h.local && !virtual
	case unix.NF_INET_LOCAL_IN:
		if p.In, p.Out = outside, (firewall.Link{Known: true}); node {
			p.In = firewall.Link{Name: "lo", Known: true}
		}
		return p, h.local
	case unix.NF_INET_LOCAL_OUT:
		if p.In, p.Out = (firewall.Link{Known: true}), leaves; node && priority < firewall.PriorityDNAT {
			p.Dst = x.to.AddrPort
		}
		return p, node || virtual
	case unix.NF_INET_POST_ROUTING:
		p.In, p.Out = firewall.Link{}, leaves
		return p, !h.local || node
	}
	return p, false
}

// replyAt returns the reply from an endpoint at a hook, and whether it passes there.
func (x *explainer) replyAt(hook uint32, priority int32, in string, h hop) (p firewall.Packet, passes bool) {
	const prioritySNAT = 100
	p = firewall.Packet{Protocol: uint8(x.to.Protocol), Established: true, Reply: true, Translated: !x.view.IPVS, Src: netip.AddrPortFrom(h.Addr(), h.Port()), Dst: netip.AddrPortFrom(x.client.Addr, 0)}
	node, arrives, leaves := x.client.Class == desired.FromNode, firewall.Link{Name: h.out, Known: true}, firewall.Link{Name: in, Known: in != ""}
	switch hook {
	case unix.NF_INET_PRE_ROUTING:
		if p.In, p.Out = arrives, (firewall.Link{Known: true}); priority < firewall.PriorityDNAT && !node && x.decision.Masquerade.Masqueraded() {
			p.Dst = netip.AddrPort{} // an address of this node
		}
		return p, !h.local
	case unix.NF_INET_FORWARD:
		p.In, p.Out = arrives, leaves
		return p, !node && !h.local
	case unix.NF_INET_LOCAL_IN:
		p.In, p.Out = arrives, firewall.Link{Known: true}
		return p, node && !h.local
	case unix.NF_INET_LOCAL_OUT:
		p.In, p.Out = firewall.Link{Known: true}, leaves
		return p, !node && h.local
	}
	if p.Out = leaves; priority >= prioritySNAT {
		p.Src = x.to.AddrPort
	}
	return p, hook == unix.NF_INET_POST_ROUTING && !node
}

// firewalls lists the base chains that the packet meets, and the rules and policies of other tables
// that drop it, or its reply, or keep it from being translated.
func (x *explainer) firewalls(in string, hops []hop) {
	conn, err := nfnl.Dial(0)
	if err != nil {
		x.step("Firewalls", "", "Other tables could not be read: %v", err)
		return
	}
	defer conn.Close()
	chains, err := firewall.Chains(x.ctx, conn, x.family() == desired.IPv6, nil)
	met, found, replies := []string{}, map[firewall.Dropping][]string{}, map[firewall.Dropping][]string{}
	drop := func(c *firewall.Chain, at func(uint32, int32, string, hop) (firewall.Packet, bool), by map[firewall.Dropping][]string) (passes bool) {
		for _, h := range hops {
			if p, ok := at(c.Hook, c.Priority, in, h); ok {
				passes = true
				for _, d := range c.Drops(&p) {
					by[d] = append(by[d], h.Backend.String())
				}
			}
		}
		return passes
	}
	for _, c := range chains {
		drop(&c, x.replyAt, replies)
		if drop(&c, x.packetAt, found) {
			policy := map[bool]string{true: "drop", false: "accept"}[c.Policy]
			met = append(met, fmt.Sprintf("%s chain %s (%s, priority %d, policy %s)", c.Table, c.Name, hooks[c.Hook], c.Priority, policy))
		}
	}
	if err != nil {
		x.step("Firewalls", "", "Not all rules of other tables could be read: %v", err)
	}
	if len(met) > 0 {
		x.step("Firewalls", strings.Join(met, "\n"), "The packet meets %s.", plain.Number(len(met), "base chain"))
	}
	maps.DeleteFunc(replies, func(d firewall.Dropping, _ []string) bool { // what drops the packet, there is no reply to
		return found[firewall.Dropping{Rule: d.Rule, Certain: true}] != nil || found[firewall.Dropping{Rule: d.Rule}] != nil
	})
	there, back, marks := zones(found), zones(replies), ""
	maps.DeleteFunc(replies, func(d firewall.Dropping, _ []string) bool { return there[d.Zone] })
	maps.DeleteFunc(found, func(d firewall.Dropping, _ []string) bool {
		if d.Diverts == firewall.Marked {
			marks = d.Rule
		}
		return d.Diverts == firewall.Marked || back[d.Zone]
	})
	if marks != "" {
		x.marked(marks, in, hops)
	}
	x.dropped(found, len(hops), "the connection", "to")
	x.dropped(replies, len(hops), "the replies", "from")
}

// zones are the zones of conntrack, other than the default, into which rules put packets.
func zones(found map[firewall.Dropping][]string) map[uint16]bool {
	all := map[uint16]bool{}
	for d := range found {
		if d.Zone != 0 {
			all[d.Zone] = true
		}
	}
	return all
}

// marked examines the routes by rules of routing that select by a mark, as a rule of another table sets one.
func (x *explainer) marked(rule, in string, hops []hop) {
	rules, _ := netlink.RuleList(nl.GetIPFamily(x.to.Addr().AsSlice())) // a kernel can lack them
	for _, r := range rules {
		for _, h := range hops {
			if r.Mark == 0 {
				continue
			}
			if _, command, err := forwarded(x.client.Addr, h.Addr(), in, r.Mark); err != nil {
				x.stop(NoRoute, true, "Route", rule, "A rule of another table marks packets, and those with the mark %#x have no route to endpoint %s (%s): %v.", r.Mark, h.Addr(), command, routeError(err))
				return
			}
		}
	}
}

// dropped adds what drops packets to or from endpoints.
func (x *explainer) dropped(found map[firewall.Dropping][]string, all int, what, direction string) {
	for _, d := range slices.SortedFunc(maps.Keys(found), func(a, b firewall.Dropping) int { return strings.Compare(a.Rule, b.Rule) }) {
		endpoints := fmt.Sprintf("%s %s", direction, strings.Join(found[d], ", "))
		suffix := map[bool]string{false: ", if it matches, which depends on more than addresses and ports"}[d.Certain]
		certain := d.Certain && len(found[d]) == all
		switch d.Diverts {
		case firewall.NotTracked:
			here := hasAddress(x.to.Addr()) // NodeLocal DNSCache's way
			x.stop(Firewall, !certain || here, "Firewalls", d.Rule, "A rule of another table keeps the packets from being tracked (notrack)%s. So %s is not translated; that is meant if a program on this node has the address, as NodeLocal DNSCache does.", suffix, x.to)
		case firewall.Zoned:
			x.stop(Firewall, !certain, "Firewalls", d.Rule, "A rule of another table puts packets of %s into zone %d of conntrack%s, and those of the other direction are not in it. So replies are not translated back.", what, d.Zone, suffix)
		case firewall.Redirected:
			x.stop(Firewall, !certain, "Firewalls", d.Rule, "A rule of another table translates the destination before Slipstream does%s.", suffix)
		default:
			x.stop(Firewall, !certain, "Firewalls", d.Rule, "A rule of another table drops or rejects %s (%s)%s.", what, endpoints, suffix)
		}
	}
}

// probe connects to endpoints over TCP, from this node, and closes the connections.
func (x *explainer) probe(all []desired.Candidate, onlyHere bool) {
	if onlyHere {
		if all = slices.DeleteFunc(slices.Clone(all), func(c desired.Candidate) bool { return !x.here(c.Backend) }); len(all) == 0 || x.to.Protocol != desired.TCP {
			return
		}
	}
	if x.to.Protocol != desired.TCP {
		x.step("Probe", "", "Only TCP endpoints are probed.")
		return
	}
	x.Unchecked = x.Unchecked[1:] // whether endpoints listen
	all = all[:min(len(all), maxEndpoints)]
	results := make([]error, len(all))
	var probing sync.WaitGroup
	for i, c := range all {
		probing.Go(func() {
			const probeTimeout = 2 * time.Second // of a connection
			ctx, cancel := context.WithTimeout(x.ctx, probeTimeout)
			defer cancel()
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.Backend.String())
			if results[i] = err; err == nil {
				conn.Close()
			}
		})
	}
	probing.Wait()
	for i, err := range results {
		switch b := all[i].Backend; {
		case err == nil:
			x.step("Probe", "", "Endpoint %s accepts connections from this node.", b)
		case errors.Is(err, unix.ECONNREFUSED):
			x.stop(NotListening, len(all) > 1, "Probe", "", "Endpoint %s refuses connections: no process listens there. Check targetPort.", b)
		default:
			x.stop(NoAnswer, len(all) > 1, "Probe", "", "Endpoint %s does not answer: %v.", b, err)
		}
	}
}
