// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
)

// search describes the stale flows of one address family. Looking up whether an entry is
// stale takes two map accesses, whatever the size of the search.
type search struct {
	family    family
	frontends map[desired.FrontendKey]*frontend
	ranges    map[netip.Addr][]desired.FrontendKey // of frontends or begun, those with ranges
	ports     map[desired.FrontendKey]bool         // in ranges, of other frontends: flows to them are not stale
	tcp       set                                  // connections of TCP to these backends are stale
	begun     set                                  // unanswered connections of TCP to these frontends are stale if untranslated
	filter    filter
}

// frontend describes the stale flows to one frontend.
type frontend struct {
	removed set  // flows to these backends are stale
	own     bool // removed is not shared with other frontends
	only    set  // flows to other backends are stale, if not nil
	noNAT   bool // flows that no NAT rule has translated are stale
}

type set map[netip.AddrPort]bool

// plan sorts flows by family. TCP has searches of its own.
func plan(flows []desired.StaleFlows) (searches []*search) {
	var tcp, begun, unanswered []*search
	for _, f := range flows {
		if f.Protocol == desired.TCP {
			for _, k := range f.Frontends {
				if len(f.Backends) == 0 {
					searchIn(&begun, familyOf(k.AddrPort)).addBegun(k)
				}
			}
			if len(f.Frontends) == 0 {
				for _, b := range f.Backends {
					e := netip.AddrPortFrom(b.Addr(), b.Port())
					searchIn(&tcp, familyOf(e)).addTCP(e)
				}
			}
		}
		for _, family := range []family{ipv4, ipv6} {
			frontends, backends := keysOf(family, f.Frontends), set{}
			for _, b := range f.Backends {
				if to := netip.AddrPortFrom(b.Addr().Unmap(), b.Port()); familyOf(to) == family {
					backends[to] = true
				}
			}
			if len(frontends) > 0 && (len(backends) > 0 || f.Only) {
				to := &searches
				if f.Protocol == desired.TCP {
					to = &unanswered
				}
				s := searchIn(to, family)
				s.filter.unanswered = f.Protocol == desired.TCP
				s.add(f.Protocol, frontends, backends, f.Only)
				for _, k := range keysOf(family, f.Ports) {
					s.ports[k] = true
				}
			}
		}
	}
	return slices.Concat(searches, tcp, begun, unanswered)
}

// addTCP adds translated TCP connections to a backend, or with port 0 all that kept their port, as those through ranges.
func (s *search) addTCP(backend netip.AddrPort) {
	if s.tcp == nil {
		s.tcp = set{}
		s.filter.addProtocol(desired.TCP)
		s.filter.to.addAll()
	}
	s.tcp[backend] = true
	s.filter.replies.add(backend)
	s.filter.replies.portDiffers = s.filter.replies.portDiffers || backend.Port() == 0
}

// addBegun adds untranslated TCP connections to a frontend without an answer yet.
func (s *search) addBegun(frontend desired.FrontendKey) {
	if s.begun == nil {
		s.begun = set{}
		s.filter.addProtocol(desired.TCP)
		s.filter.replies.addAll()
		s.filter.unanswered = true
	}
	s.begun[frontend.AddrPort] = true
	s.addTo(frontend)
}

// addTo adds a frontend to the filter, and to ranges if it is one.
func (s *search) addTo(to desired.FrontendKey) {
	if s.filter.to.add(to.AddrPort); to.IsRange() {
		s.filter.to.portDiffers = true
		s.ranges[to.Addr()] = append(s.ranges[to.Addr()], to)
	}
}

func keysOf(f family, all []desired.FrontendKey) (out []desired.FrontendKey) {
	for _, k := range all {
		if k = k.At(k.Addr().Unmap()); familyOf(k.AddrPort) == f {
			out = append(out, k)
		}
	}
	return out
}

// searchIn returns the search in a family, which it creates if there is none.
func searchIn(searches *[]*search, f family) *search {
	for _, s := range *searches {
		if s.family == f {
			return s
		}
	}
	s := &search{family: f, frontends: map[desired.FrontendKey]*frontend{}, ports: map[desired.FrontendKey]bool{}, ranges: map[netip.Addr][]desired.FrontendKey{}}
	*searches = append(*searches, s)
	return s
}

// add adds one desired.StaleFlows. Its frontends share the set of backends until another
// StaleFlows names one of them, so that a Service with many frontends and many backends does
// not need a set for each frontend.
func (s *search) add(p desired.Protocol, frontends []desired.FrontendKey, backends set, only bool) {
	s.filter.addProtocol(p)
	for _, to := range frontends {
		f := s.frontends[to]
		if f == nil {
			s.addTo(to)
		}
		if f == nil || only {
			f = &frontend{}
			s.frontends[to] = f
		}
		switch {
		case only:
			f.only = backends
		case f.removed == nil:
			f.removed = backends
		default:
			if !f.own {
				f.removed, f.own = maps.Clone(f.removed), true
			}
			maps.Copy(f.removed, backends)
		}
	}
	if only {
		s.filter.replies.addAll()
		return
	}
	for b := range backends {
		s.filter.replies.add(b)
		s.filter.replies.portDiffers = s.filter.replies.portDiffers || b.Port() == 0
	}
}

// destination is that of the flow's first packet.
func destination(e *ctnetlink.Entry) desired.FrontendKey {
	return desired.FrontendKey{AddrPort: e.Original.Dst, Protocol: desired.Protocol(e.Original.Protocol)}
}

const synSent = 1 // enum tcp_conntrack: the SYN has no answer

// stale reports whether an entry is to be deleted.
func (s *search) stale(e *ctnetlink.Entry) bool {
	to, replies := destination(e), e.Reply.Src // replies come from the backend, or the destination itself
	tcp, waits := to.Protocol == desired.TCP, e.TCPState == synSent
	ranges := s.ranges[to.Addr()]
	in := slices.IndexFunc(ranges, to.Overlaps)
	switch {
	case s.tcp != nil:
		kept := to.Addr() != replies.Addr() && to.Port() == replies.Port() && s.tcp[netip.AddrPortFrom(replies.Addr(), 0)]
		return tcp && to.AddrPort != replies && (s.tcp[replies] || kept)
	case s.begun != nil:
		return tcp && to.AddrPort == replies && (s.begun[replies] || in >= 0) && waits
	}
	f := s.frontends[to]
	if f == nil && in >= 0 && replies.Port() == to.Port() && !s.ports[to] { // others are to a port that the Service has
		f, replies = s.frontends[ranges[in]], netip.AddrPortFrom(replies.Addr(), 0)
	}
	return f != nil && (!tcp || waits) && (f.removed[replies] || f.noNAT && e.Status&ctnetlink.StatusDNAT == 0 || f.only != nil && !f.only[replies])
}
