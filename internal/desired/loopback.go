// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
)

// LoopbackNodePorts says what happens to connections to NodePorts on loopback addresses.
// The kernel does not forward packets with a loopback source address to other machines.
type LoopbackNodePorts uint8

const (
	// LoopbackIgnored leaves them alone, so they reach this node's own programs. In
	// iptables mode, NodePortAddresses.Loopback may serve IPv4 ones.
	LoopbackIgnored LoopbackNodePorts = iota
	// LoopbackRelayed serves TCP and UDP by a relay in user space, at 127.0.0.1 and ::1, and refuses SCTP.
	LoopbackRelayed
	// LoopbackRefused refuses all of them.
	LoopbackRefused
)

// loopbacks are the addresses of relays, by family.
var loopbacks = [families]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}

// Relay is a NodePort on a loopback address that is served in user space. It replaces the previous Relay of its key.
type Relay struct {
	FrontendKey

	// Service is the Service port, or the zero value if no Service has the NodePort any more.
	Service ServicePort

	// Backends are the endpoints for new connections, in no order. Without any, connections are refused.
	Backends []Backend

	// Weights are those of the backends that differ from DefaultWeight.
	Weights []Weight
	Balance

	// Serving are the endpoints that keep their flows of UDP. Flows to others end.
	Serving []Backend

	// Affinity is how many seconds a client's address keeps its backend after its
	// last new connection; 0 without affinity.
	Affinity uint32
}

// relays reports whether NodePorts of a protocol are relayed in a family.
func (c *Config) relays(f Family, p Protocol) bool {
	return c.LoopbackNodePorts[f] == LoopbackRelayed && p != SCTP
}

// relayed reports whether a frontend is a Relay, and so not part of a Change.
func (c *Config) relayed(key FrontendKey) bool {
	return key.Addr().IsLoopback() && c.relays(FamilyOf(key.Addr()), key.Protocol)
}

// refuse adds n Services' claims of the NodePorts that are refused at loopback addresses.
func (s *State) refuse(spec *serviceSpec, ports []*port, n int) {
	for f, handled := range s.config.LoopbackNodePorts {
		for _, p := range ports {
			if f := Family(f); p.nodePort != 0 && handled != LoopbackIgnored && spec.has(f) && !s.config.relays(f, p.protocol) {
				s.sets[RefusedNodePorts].use(PortOf(f, p.protocol, p.nodePort), n)
			}
		}
	}
}

// relay describes how a relayed frontend is served now.
func (s *State) relay(f *frontend) Relay {
	r := Relay{FrontendKey: f.key}
	if len(f.claims) == 0 {
		return r
	}
	now := s.frontend(f.claims[0], f.key)
	r.Service, r.Affinity = now.Service, now.Affinity
	pool := s.pools[now.Pool] // as for all external traffic that starts on this node
	full := pool.full()
	r.Backends, r.Weights, r.Balance = full.Added, full.Weights, full.Balance
	if pool.of.flows != nil {
		r.Serving = pool.of.servingBackends()
	}
	return r
}
