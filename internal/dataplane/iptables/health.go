// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipset"
)

// takeHealthChecks opens the ports at which this process answers load balancers, and closes
// others. Two Services should not have the same port, but may.
func (b *Backend) takeHealthChecks(all []desired.HealthCheck, steps []*step) {
	if len(all) == 0 {
		return
	}
	for _, h := range all {
		if b.health[h.Service] = h; h.Port == 0 {
			delete(b.health, h.Service)
		}
	}
	for f, s := range steps {
		if s == nil {
			continue
		}
		was, is := s.table.healthPorts, map[uint16]bool{}
		for _, h := range b.health {
			if h.Serves[f] {
				is[h.Port] = true
			}
		}
		s.table.healthPorts = is
		for port := range is {
			if !was[port] {
				s.sets.one(setHealthChecks, ipset.Port(port), true, false)
			}
		}
		for port := range was {
			if !is[port] {
				s.sets.one(setHealthChecks, ipset.Port(port), false, false)
			}
		}
	}
}
