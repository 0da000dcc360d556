// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/slipstream-proxy/slipstream/backend"
	"github.com/slipstream-proxy/slipstream/desired"
	"github.com/slipstream-proxy/slipstream/lab"
	"github.com/slipstream-proxy/slipstream/test/kerneltest"
)

// world is the lab in which a story takes place.
type world struct {
	lab      *lab.Lab
	machines map[string]*lab.Machine
	nodes    map[string]*lab.Node
	owner    map[netip.Addr]string // which machine has an address
}

// require skips the story on a kernel that lacks what it needs.
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

// lab makes the machines, and a proxy on every node.
func (s *story) lab(t *testing.T, d *datadriven.TestData) string {
	config := backend.Config{MasqueradeAll: d.HasArg("masquerade-all"), MasqueradeBit: backend.DefaultMasqueradeBit}
	for _, a := range d.CmdArgs {
		if a.Key == "cluster-cidr" {
			config.ClusterCIDRs = prefixes(t, d, a.Vals)
		}
	}
	if s.mode != nil {
		l, err := lab.New()
		if err != nil {
			d.Fatalf(t, "lab: %v", err)
		}
		s.world = &world{l, map[string]*lab.Machine{}, map[string]*lab.Node{}, map[netip.Addr]string{}}
	}
	for _, line := range lines(d.Input) {
		words := strings.Fields(line)
		if words[0] == "node" {
			s.nodes = append(s.nodes, &node{
				name: words[1], config: config,
				state: desired.New(desired.Config{NodeName: words[1]}),
			})
		}
		if s.world == nil {
			continue
		}
		if err := s.world.machine(t, d, words); err != nil {
			d.Fatalf(t, "%s: %v", line, err)
		}
	}
	if s.world != nil {
		for _, n := range s.nodes {
			n.config.NetNS = s.world.nodes[n.name].Namespace().FD()
			s.start(t, d, n)
		}
	}
	return "ok\n"
}

// machine makes one machine of the lab from its line.
func (w *world) machine(t *testing.T, d *datadriven.TestData, words []string) error {
	kind, name, rest := words[0], words[1], words[2:]
	switch kind {
	case "node":
		addrs, pods := cut(rest, "pods")
		n, err := w.lab.Node(name, lab.NodeOptions{Addresses: prefixes(t, d, addrs), PodCIDRs: prefixes(t, d, pods)})
		if err != nil {
			return err
		}
		w.nodes[name] = n
		w.add(&n.Machine)
	case "pod":
		on, addrs := rest[1], rest[2:]
		var ips []netip.Addr
		for _, a := range addrs {
			ips = append(ips, netip.MustParseAddr(a))
		}
		p, err := w.nodes[on].Pod(name, ips...)
		if err != nil {
			return err
		}
		w.add(&p.Machine)
	case "host":
		addrs, via := cut(rest, "via")
		h, err := w.lab.Host(name, prefixes(t, d, addrs)...)
		if err != nil {
			return err
		}
		w.add(&h.Machine)
		if len(via) > 0 {
			for _, r := range prefixes(t, d, via[2:]) { // after "NODE for"
				if err := h.AddRoute(r, w.nodes[via[0]].Addr(r.Addr().Is6())); err != nil {
					return err
				}
			}
		}
	default:
		return fmt.Errorf("no such kind of machine")
	}
	return nil
}

func (w *world) add(m *lab.Machine) {
	w.machines[m.Name()] = m
	for _, a := range m.Addrs() {
		w.owner[a] = m.Name()
	}
}

func (s *story) serve(t *testing.T, d *datadriven.TestData) string {
	for _, line := range lines(d.Input) {
		if s.world == nil {
			break
		}
		words := strings.Fields(line)
		m := s.world.machines[words[0]]
		port, err := strconv.ParseUint(words[2], 10, 16)
		if err != nil || m == nil {
			d.Fatalf(t, "%s: no such machine or port", line)
		}
		if _, err := m.Serve(protocol(words[1]), netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(port))); err != nil {
			d.Fatalf(t, "%s: %v", line, err)
		}
	}
	return "ok\n"
}

// connect makes connections and tells what became of them.
func (w *world) connect(t *testing.T, d *datadriven.TestData) string {
	var from, to, proto string
	n := 40
	d.ScanArgs(t, "from", &from)
	d.ScanArgs(t, "to", &to)
	if d.HasArg("proto") {
		d.ScanArgs(t, "proto", &proto)
	}
	if d.HasArg("n") {
		d.ScanArgs(t, "n", &n)
	}
	m := w.machines[from]
	if m == nil {
		d.Fatalf(t, "no such machine: %s", from)
	}
	dest := netip.MustParseAddrPort(to)
	seen := map[string]map[string]bool{} // as whom -> by which servers
	failures := map[string]bool{}
	for i := 0; i < n; i++ {
		reply, err := m.Connect(protocol(proto), dest, lab.Timeout(time.Second))
		if err != nil {
			failures[lab.Outcome(err)] = true
			if len(failures) == 1 && len(seen) == 0 {
				n = min(n, 3) // the others would take as long to fail
			}
			continue
		}
		as := w.owner[reply.Seen.Addr().Unmap()]
		if as == "" {
			as = reply.Seen.Addr().String()
		}
		if seen[as] == nil {
			seen[as] = map[string]bool{}
		}
		seen[as][reply.Server] = true
	}
	var out []string
	for _, as := range slices.Sorted(maps.Keys(seen)) {
		out = append(out, strings.Join(slices.Sorted(maps.Keys(seen[as])), " ")+", seen as "+as)
	}
	out = append(out, slices.Sorted(maps.Keys(failures))...)
	return strings.Join(out, "\n") + "\n"
}

func protocol(name string) lab.Protocol {
	switch name {
	case "udp":
		return lab.UDP
	case "sctp":
		return lab.SCTP
	}
	return lab.TCP
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
