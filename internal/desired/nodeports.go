// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"iter"
	"net/netip"
)

// This file is about NodePorts that are one frontend for all addresses of the node
// ([FrontendKey.OnNode]). Another frontend with one of these addresses and the same port and
// protocol overrides the NodePort there.

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

// beside yields the frontends that override a NodePort at some addresses.
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

// overrides yields the frontends that override a NodePort, with it, for a NodePort or for one of
// them.
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

// nodePortAt returns the NodePort that serves an address and a port unless another frontend
// overrides it, or nil.
func (s *State) nodePortAt(k FrontendKey) *frontend {
	if n := s.frontends[k.NodePort()]; s.nodeAddresses.has(k.Addr()) && n != nil && len(n.claims) > 0 {
		return n
	}
	return nil
}

// isContested reports whether another claim is beside the one that has the frontend.
func (s *State) isContested(f *frontend) bool {
	for range s.overrides(f) {
		return true
	}
	return len(f.claims) > 1
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
		if FamilyOf(ip) == FamilyOf(nodePort.key.Addr()) && !s.clusterIPs.has(ip) && (e == nil || len(e.claims) == 0) {
			all = append(all, key)
		}
	}
	return all
}
