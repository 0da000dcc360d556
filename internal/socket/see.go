// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"net/netip"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Stats are what a Balancer has done and knows.
type Stats struct {
	CGroup      string `json:"cgroup"`      // whose processes are served
	Attached    bool   `json:"attached"`    // as of the last Reconcile
	Namespaces  int    `json:"namespaces"`  // network namespaces that are served: the node's and pods'
	Connections uint64 `json:"connections"` // that were connected straight to an endpoint, since the first Balancer that was not removed
}

// Stats returns the current numbers.
func (b *Balancer) Stats() (s Stats, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s = Stats{CGroup: b.options.CGroup, Attached: len(b.links) > 0}
	for _, c := range b.namespaces {
		if c.served {
			s.Namespaces++
		}
	}
	if !s.Attached {
		return s, nil
	}
	var each []uint64
	err = b.objects.Connections.Lookup(uint32(0), &each)
	for _, n := range each {
		s.Connections += n
	}
	return s, err
}

// Connects reports whether connections of local clients to a frontend go straight to an endpoint. pod
// is the address of the client if it is a pod, and not valid otherwise.
func (b *Balancer) Connects(f *desired.Frontend, pod netip.Addr) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.options.Selected && pod.IsValid() && !b.selected[pod] {
		return false
	}
	if len(b.links) == 0 || f.Protocol != desired.TCP || b.content.poolOf(f) == 0 || b.content.addresses[f.Addr()] == servedByNode {
		return false
	}
	p := b.content.pools.Get(f.Pool)
	return !p.left && len(p.Slots) > 0
}
