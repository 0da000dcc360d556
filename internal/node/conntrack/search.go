// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"maps"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// search is what is stale in one address family. To tell of an entry whether it is
// takes two look-ups, however much there is to look for.
type search struct {
	family    family
	frontends map[destination]*frontend
	filter    filter
}

// destination is where the flows to a frontend are sent.
type destination struct {
	endpoint
	protocol desired.Protocol
}

// frontend is which flows to one frontend are stale.
type frontend struct {
	gone  set  // sent to one of these
	own   bool // gone is not shared with other frontends
	only  set  // sent to none of these; nil if that does not matter
	noNAT bool // not translated by a rule of NAT
}

type set map[endpoint]struct{}

func (s set) has(e endpoint) bool {
	_, ok := s[e]
	return ok
}

// plan sorts flows by family. Those of TCP it leaves out.
func plan(flows []desired.StaleFlows) (searches []*search) {
	for _, f := range flows {
		if f.Protocol != desired.UDP && f.Protocol != desired.SCTP {
			continue
		}
		for _, family := range []family{ipv4, ipv6} {
			frontends, backends := ofFamily(f, family)
			if len(frontends) == 0 || len(backends) == 0 && !f.Only {
				continue
			}
			searchIn(&searches, family).add(f.Protocol, frontends, backends, f.Only)
		}
	}
	return searches
}

// ofFamily returns the frontends and backends of one family.
func ofFamily(f desired.StaleFlows, family family) (frontends []endpoint, backends set) {
	for _, k := range f.Frontends {
		if e := endpointOf(k.AddrPort); e.family() == family {
			frontends = append(frontends, e)
		}
	}
	if frontends == nil {
		return nil, nil
	}
	backends = make(set, len(f.Backends))
	for _, b := range f.Backends {
		if e := backendOf(b); e.family() == family {
			backends[e] = struct{}{}
		}
	}
	return frontends, backends
}

// searchIn returns the search in a family, a new one if need be.
func searchIn(searches *[]*search, f family) *search {
	for _, s := range *searches {
		if s.family == f {
			return s
		}
	}
	s := &search{family: f, frontends: map[destination]*frontend{}}
	*searches = append(*searches, s)
	return s
}

// add adds what one desired.StaleFlows says. The frontends that it names share
// its set of backends until there is more to say about one of them: a Service
// with many frontends and many backends is not their product.
func (s *search) add(p desired.Protocol, frontends []endpoint, backends set, only bool) {
	s.filter.addProtocol(p)
	for _, e := range frontends {
		to := destination{e, p}
		f := s.frontends[to]
		if f == nil || only {
			f = &frontend{}
			s.frontends[to] = f
		}
		s.filter.to.add(e)
		switch {
		case only:
			f.only = backends
		case f.gone == nil:
			f.gone = backends
		default:
			if !f.own {
				f.gone, f.own = maps.Clone(f.gone), true
			}
			maps.Copy(f.gone, backends)
		}
	}
	if only {
		s.filter.replies.addAll()
		return
	}
	for b := range backends {
		s.filter.replies.add(b)
	}
}

// stale says whether an entry is to be deleted.
func (s *search) stale(e *entry) bool {
	f := s.frontends[destination{e.destination, e.protocol}]
	switch {
	case f == nil:
		return false
	case f.gone.has(e.replies):
		return true
	case f.noNAT && !e.translated:
		return true
	}
	return f.only != nil && !f.only.has(e.replies)
}
