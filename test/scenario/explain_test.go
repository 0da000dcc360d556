// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/iptables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// machine is where a story's machine is, for decisions.
type machine struct {
	node  *node
	class desired.Class
	addrs []netip.Addr
	link  string // of a pod, on its node
}

// place records a machine from its line of the directive lab.
func (s *story) place(words []string) {
	on := func(name string) *node {
		return s.nodes[slices.IndexFunc(s.nodes, func(n *node) bool { return n.name == name })]
	}
	name := words[1]
	switch words[0] {
	case "node":
		s.machines[name] = machine{node: on(name), class: desired.FromNode}
	case "pod":
		m := machine{node: on(words[3]), class: desired.FromPod}
		n := 1
		for _, other := range s.machines {
			if other.node == m.node && other.class == desired.FromPod {
				n++
			}
		}
		m.link = fmt.Sprintf("veth%d", n)
		for _, a := range words[4:] {
			m.addrs = append(m.addrs, netip.MustParseAddr(a))
		}
		s.machines[name] = m
	}
}

// decide returns the decision of the client's node about a connection. There is none for clients that
// are not on a node.
func (s *story) decide(t *testing.T, d *datadriven.TestData) (from desired.Origin, on *node, _ desired.Decision, ok bool) {
	var client, to, source, proto string
	for key, value := range map[string]*string{"from": &client, "to": &to, "source": &source, "proto": &proto} {
		if d.HasArg(key) {
			d.ScanArgs(t, key, value)
		}
	}
	m, known := s.machines[client]
	at, err := netip.ParseAddrPort(to)
	if !known || err != nil {
		return from, nil, desired.Decision{}, false
	}
	key := desired.FrontendKey{AddrPort: at, Protocol: desired.TCP}
	for _, p := range desired.Protocols {
		if strings.EqualFold(p.String(), proto) {
			key.Protocol = p
		}
	}
	from = desired.Origin{Class: m.class}
	for _, a := range m.addrs {
		if desired.FamilyOf(a) == desired.FamilyOf(at.Addr()) {
			from.Addr = a
		}
	}
	if source != "" {
		from.Addr = netip.MustParseAddr(source)
	}
	if m.class == desired.FromPod {
		from = m.node.state.Origin(from.Addr, m.link)
	}
	return from, m.node, m.node.state.Decide(from, key), true
}

// explain describes the decision about a connection.
func (s *story) explain(t *testing.T, d *datadriven.TestData) string {
	_, _, decision, ok := s.decide(t, d)
	if !ok {
		d.Fatalf(t, "explain takes from=POD or NODE, and to=ADDRESS:PORT")
	}
	return decision.String() + "\n"
}

// contradicts compares the results of connections with the decision about them. It returns what
// explain would have said wrongly, or "".
func (s *story) contradicts(t *testing.T, d *datadriven.TestData, got string) string {
	from, on, decision, ok := s.decide(t, d)
	if !ok || decision.Frontend == nil || d.HasArg("port") || d.HasArg("until") {
		return ""
	}
	said := "The decision is: " + decision.String()
	reached := strings.Contains(got, ", seen as ")
	switch {
	case decision.Allowed == desired.No || len(decision.Candidates) == 0 && decision.IfEmpty == desired.Drop:
		if reached || strings.Contains(got, "refused") {
			return said
		}
		return ""
	case decision.IfEmpty == desired.Pass && len(decision.Candidates) == 0:
		return "" // another node may serve it
	case len(decision.Candidates) == 0:
		if reached || !strings.Contains(got, "refused") {
			return said
		}
		return ""
	case !reached:
		return "" // the endpoint does not serve, or is another node's that does not answer
	}
	var may []string
	for _, c := range decision.Candidates {
		may = append(may, s.topology.owner[c.Addr()])
	}
	masqueraded := decision.Masquerade.Masqueraded()
	for line := range strings.Lines(strings.TrimSpace(got)) {
		servers, as, ok := strings.Cut(strings.TrimSpace(line), ", seen as ")
		if !ok {
			continue
		}
		for _, server := range strings.Fields(servers) {
			if servers != "always the same one" && !slices.Contains(may, server) {
				return said + " " + server + " is no candidate."
			}
			hairpin := from.Addr.IsValid() && s.topology.owner[from.Addr] == server
			here := server == on.name
			if client := s.topology.owner[from.Addr]; from.Class != desired.FromNode && !hairpin && (as == client) == (masqueraded && !here) {
				return said + " The endpoint saw " + as + "."
			}
		}
	}
	return ""
}

// readsOne reads one frontend from the kernel and compares it with the decision about it. In iptables
// mode that is another look at everything, with slow commands.
func (n *node) readsOne(t *testing.T) (string, error) {
	if _, slow := n.kernel.(*iptables.Dataplane); slow {
		return "", nil
	}
	for _, f := range n.state.Reported().Frontends {
		decision := n.state.Decide(desired.Origin{Class: desired.FromNode}, f.Key())
		return dataplane.Lasting(t.Context(), func() (string, error) {
			got, err := n.kernel.(dataplane.Reader).ReadFrontend(t.Context(), &decision.Content)
			if err != nil {
				return "", err
			}
			return dataplane.Difference(dataplane.ContentOf(&decision.Content), got), nil
		})
	}
	return "", nil
}
