// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// topology is the lab with a story's machines.
type topology struct {
	lab      *lab.Lab
	machines map[string]*lab.Machine
	nodes    map[string]*lab.Node
	owner    map[netip.Addr]string // which machine has an address
}

// require skips the story on a kernel that lacks a feature.
func require(t *testing.T, d *datadriven.TestData) {
	for _, a := range d.CmdArgs {
		i := slices.IndexFunc(kerneltest.Features(), func(f kerneltest.Feature) bool {
			return strings.ReplaceAll(f.String(), " ", "-") == a.Key
		})
		if i < 0 {
			d.Fatalf(t, "no such feature: %s", a.Key)
		}
		kerneltest.Require(t, kerneltest.Features()[i])
	}
}

// wholeChange is so many endpoints and slots that a story's changes are not divided.
const wholeChange = 1 << 20

// lab makes the machines, and a proxy on every node.
func (s *story) lab(t *testing.T, d *datadriven.TestData) string {
	config := options(t, d)
	config.IPVS = s.inIPVS()
	config.Balancing.Algorithm, config.MaxTable = s.algorithm, desired.TableSizes()[0]
	config.NamespaceChange = wholeChange
	s.machines = map[string]machine{}
	if s.mode != nil {
		s.topology = &topology{
			lab: kerneltest.NewLab(t), machines: map[string]*lab.Machine{}, nodes: map[string]*lab.Node{}, owner: map[netip.Addr]string{},
		}
	}
	for _, line := range lines(d.Input) {
		words := strings.Fields(line)
		if words[0] == "node" {
			s.nodes = append(s.nodes, newNode(t, d, words, config))
		}
		s.place(words)
		if s.topology == nil {
			continue
		}
		if err := s.topology.machine(t, d, words); err != nil {
			d.Fatalf(t, "%s: %v", line, err)
		}
	}
	for _, n := range s.nodes {
		if s.topology != nil {
			n.config.NetNS = s.topology.nodes[n.name].FD()
			n.in = s.topology.nodes[n.name].Do
		}
		for _, other := range s.nodes {
			if other != n {
				n.others = append(n.others, other)
			}
		}
		n.learn(nil)
		n.start(t, d, s.mode)
	}
	return "ok\n"
}

// options returns the proxy's options, from the arguments of the directive lab.
func options(t *testing.T, d *datadriven.TestData) (config desired.Config) {
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "masquerade-all":
			config.MasqueradeAll = true
		case "loopback-relays":
			config.LoopbackNodePorts = [2]desired.LoopbackNodePorts{desired.LoopbackRelayed, desired.LoopbackRelayed}
		case "no-external-ips":
			config.NoExternalIPs = true
		case "cluster-cidr":
			config.DetectLocal.CIDRs = prefixes(t, d, a.Vals)
		case "detect-local":
			config.DetectLocal = detectLocal(t, d, a.Vals[0])
		case "nodeport-addresses":
			isPrimary := func(text string) bool { return text == "primary" }
			config.NodePorts.Primary = slices.ContainsFunc(a.Vals, isPrimary)
			config.NodePorts.CIDRs = prefixes(t, d, slices.DeleteFunc(a.Vals, isPrimary))
		default:
			d.Fatalf(t, "no such option: %s", a.Key)
		}
	}
	return config
}

func detectLocal(t *testing.T, d *datadriven.TestData, text string) desired.DetectLocal {
	mode, name, _ := strings.Cut(text, ":")
	modes := map[string]desired.DetectLocalMode{
		"NodeCIDR":            desired.ByNodeCIDR,
		"BridgeInterface":     desired.ByBridgeInterface,
		"InterfaceNamePrefix": desired.ByInterfaceNamePrefix,
	}
	m, ok := modes[mode]
	if !ok {
		d.Fatalf(t, "no such mode: %s", text)
	}
	return desired.DetectLocal{Mode: m, Interface: name}
}

// newNode makes a node's proxy from the node's line.
func newNode(t *testing.T, d *datadriven.TestData, words []string, config desired.Config) *node {
	n := &node{name: words[1], config: dataplane.Config{MasqueradeBit: dataplane.DefaultMasqueradeBit, Step: wholeChange}, desired: config}
	n.desired.NodeName = n.name
	addrs, _ := cut(words[2:], "pods")
	n.addrs = []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
	for _, p := range prefixes(t, d, addrs) {
		n.addrs = append(n.addrs, p.Addr())
	}
	return n
}

// machine makes one machine of the lab from its line.
func (top *topology) machine(t *testing.T, d *datadriven.TestData, words []string) error {
	kind, name, rest := words[0], words[1], words[2:]
	switch kind {
	case "node":
		addrs, pods := cut(rest, "pods")
		n, err := top.lab.Node(name, lab.NodeOptions{Addresses: prefixes(t, d, addrs), PodCIDRs: prefixes(t, d, pods)})
		if err != nil {
			return err
		}
		top.nodes[name] = n
		top.add(&n.Machine)
	case "pod":
		on, addrs := rest[1], rest[2:]
		var ips []netip.Addr
		for _, a := range addrs {
			ips = append(ips, netip.MustParseAddr(a))
		}
		p, err := top.nodes[on].Pod(name, ips...)
		if err != nil {
			return err
		}
		top.add(&p.Machine)
	case "host":
		addrs, via := cut(rest, "via")
		h, err := top.lab.Host(name, prefixes(t, d, addrs)...)
		if err != nil {
			return err
		}
		top.add(&h.Machine)
		if len(via) > 0 {
			for _, r := range prefixes(t, d, via[2:]) { // after "NODE for"
				if err := h.AddRoute(r, top.nodes[via[0]].Addr(r.Addr().Is6())); err != nil {
					return err
				}
			}
		}
	default:
		return fmt.Errorf("no such kind of machine")
	}
	return nil
}

func (top *topology) add(m *lab.Machine) {
	top.machines[m.Name()] = m
	for _, a := range m.Addrs() {
		top.owner[a] = m.Name()
	}
}

func (s *story) serve(t *testing.T, d *datadriven.TestData) string {
	for _, line := range lines(d.Input) {
		if s.topology == nil {
			break
		}
		words := strings.Fields(line)
		m := s.topology.machines[words[0]]
		port, err := strconv.ParseUint(words[2], 10, 16)
		if err != nil || m == nil {
			d.Fatalf(t, "%s: no such machine or port", line)
		}
		if _, err := m.Serve(lab.Protocol(strings.ToUpper(words[1])), netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(port))); err != nil {
			d.Fatalf(t, "%s: %v", line, err)
		}
	}
	return "ok\n"
}

// routes adds routes: lines of MACHINE via NODE for RANGE...
func (s *story) routes(t *testing.T, d *datadriven.TestData) string {
	for _, line := range lines(d.Input) {
		words := strings.Fields(line)
		for _, r := range prefixes(t, d, words[4:]) {
			if s.topology == nil {
				continue
			}
			if err := s.topology.machines[words[0]].AddRoute(r, s.topology.nodes[words[2]].Addr(r.Addr().Is6())); err != nil {
				d.Fatalf(t, "%s: %v", line, err)
			}
		}
	}
	return "ok\n"
}

func prefixes(t *testing.T, d *datadriven.TestData, texts []string) (all []netip.Prefix) {
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		all = append(all, p)
	}
	return all
}

// cut splits words at the first that is sep.
func cut(words []string, sep string) (before, after []string) {
	if i := slices.Index(words, sep); i >= 0 {
		return words[:i], words[i+1:]
	}
	return words, nil
}

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
