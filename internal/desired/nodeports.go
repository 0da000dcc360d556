// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"iter"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// This file is about NodePorts that are one frontend for all addresses of the node ([FrontendKey.OnNode]). Another
// frontend with one of these addresses and the same port and protocol overrides the NodePort there, unless it is an
// external IP, which is not served then: a tenant may write any into a Service.

// unspecified are the addresses of NodePorts, by family.
var unspecified = [families]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}

// eachNodePort calls do for each NodePort.
func (s *State) eachNodePort(do func(*frontend)) {
	for _, svc := range s.services {
		for _, p := range svc.ports {
			svc.spec.eachNodePort(p, unspecified[:], func(key FrontendKey, _ AddressKind, _ *port) {
				if f := s.frontends[key]; f.claims[0].port == p {
					do(f)
				}
			})
		}
	}
}

// beside yields the frontends that claim the port of a NodePort at some addresses.
func (s *State) beside(nodePort *frontend, addrs []netip.Addr) iter.Seq[*frontend] {
	return func(yield func(*frontend) bool) {
		for _, ip := range addrs {
			e := s.frontends[nodePort.key.At(ip)]
			if FamilyOf(ip) == FamilyOf(nodePort.key.Addr()) && e != nil && len(e.claims) > 0 && !yield(e) {
				return
			}
		}
	}
}

// rank returns the claims that win and lose the address of a frontend with a NodePort beside it.
func rank(e, nodePort *frontend) (winner, loser claim) {
	if e.claims[0].kind > NodePort {
		e, nodePort = nodePort, e
	}
	return e.claims[0], nodePort.claims[0]
}

// serves reports whether a frontend is programmed.
func (s *State) serves(f *frontend) bool {
	return f != nil && len(f.claims) > 0 && (f.claims[0].kind <= NodePort || s.nodePortAt(f.key) == nil && !s.isAPIServer(f.key)) &&
		(f.winner == nil || !f.winner.key.IsRange()) && !s.isNodes(f)
}

// apiServer is the Service whose endpoints are the API servers.
var apiServer = types.NamespacedName{Namespace: "default", Name: "kubernetes"}

// isAPIServer reports whether a frontend would cut the node off from an API server.
func (s *State) isAPIServer(key FrontendKey) (is bool) {
	if svc := s.services[apiServer]; svc != nil {
		for _, sl := range svc.slices {
			sl.eachAddress(func(k FrontendKey) { is = is || k.Overlaps(key) })
		}
	}
	return is || slices.ContainsFunc(s.config.APIServers, func(a netip.AddrPort) bool { return key.Overlaps(FrontendKey{AddrPort: a, Protocol: TCP}) })
}

// eachAddress calls do for each address and port of a slice, nil for none.
func (sl *slice) eachAddress(do func(FrontendKey)) {
	if sl == nil {
		return
	}
	for _, p := range sl.ports {
		for _, e := range sl.endpoints {
			do(FrontendKey{AddrPort: netip.AddrPortFrom(Backend{ip: e.ip}.Addr(), p.number), Protocol: p.protocol})
		}
	}
}

// leaveAPIServer has the frontends at addresses of a slice decided again, if its endpoints are API servers.
func (s *State) leaveAPIServer(sl *slice) {
	if sl != nil && sl.service == apiServer {
		sl.eachAddress(func(key FrontendKey) {
			if f := s.frontends[key]; f != nil {
				s.dirtyFrontend(f)
			}
			s.touchRanges(key.Addr())
		})
	}
}

// reportLeftOut reports a Service that would have had the address of an API server, or a range at an address of a node.
func (s *State) reportLeftOut(f *frontend) {
	var field, reason string
	switch {
	case len(f.claims) == 0:
		return
	case f.claims[0].kind == ExternalIP && s.isAPIServer(f.key):
		field, reason = "spec.externalIPs", f.key.String()+" is an API server, which all nodes need"
	case s.isNodes(f):
		field, reason = rangesField, f.key.String()+" is not served: "+f.key.Addr().String()+" is an address of a node, whose own programs need its ports"
	default:
		return
	}
	loser := f.claims[0].port
	if contest := [2]ServicePort{{}, loser.name}; f.contest == nil || *f.contest != contest {
		f.contest = &contest
		s.addProblem(ProblemOf(loser.service.name, field, reason))
	}
}

// overrides yields the frontends that claim the port of a NodePort, with it, for a NodePort or for one of them.
func (s *State) overrides(f *frontend) iter.Seq2[*frontend, *frontend] {
	return func(yield func(e, nodePort *frontend) bool) {
		if len(f.claims) == 0 {
			return
		}
		if !f.key.OnNode() {
			if n := s.nodePortAt(f.key); n != nil {
				yield(f, n)
			}
			return
		}
		for e := range s.beside(f, s.nodePortAddrs) {
			if !yield(e, f) {
				return
			}
		}
	}
}

// nodePortAt returns the NodePort that serves an address and a port unless another frontend overrides it, or nil.
func (s *State) nodePortAt(k FrontendKey) *frontend {
	if n := s.frontends[k.NodePort()]; s.sets[NodeAddresses].has(Address(k.Addr())) && n != nil && len(n.claims) > 0 {
		return n
	}
	return nil
}

// isContested reports whether another claim is beside the one that has the frontend.
func (s *State) isContested(f *frontend) bool {
	for range s.overrides(f) {
		return true
	}
	return f.winner != nil || len(f.claims) > 1 || s.isNodes(f)
}

// destinations returns the destinations of packets to a frontend.
func (s *State) destinations(f *frontend) []FrontendKey {
	if f.key.OnNode() {
		return s.destinationsAt(f, s.nodePortAddrs)
	}
	return []FrontendKey{f.key}
}

// destinationsAt returns those of a NodePort at some addresses of the node.
func (s *State) destinationsAt(nodePort *frontend, addrs []netip.Addr) (all []FrontendKey) {
	for _, ip := range addrs {
		key := nodePort.key.At(ip)
		e := s.frontends[key]
		if FamilyOf(ip) == FamilyOf(nodePort.key.Addr()) && !s.sets[ClusterIPs].has(Address(ip)) && !s.serves(e) {
			all = append(all, key)
		}
	}
	return all
}
