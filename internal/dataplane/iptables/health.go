// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipset"
	"k8s.io/apimachinery/pkg/types"
)

// healthPorts are the ports at which this process answers load balancers. They are let
// in, as nobody else knows them.
type healthPorts struct {
	of    map[types.NamespacedName]desired.HealthCheck
	users [2]map[uint16]int // by desired.Family: how many Services have a port
}

func newHealthPorts() healthPorts {
	return healthPorts{map[types.NamespacedName]desired.HealthCheck{}, [2]map[uint16]int{{}, {}}}
}

// takeHealthChecks takes in what has become of Services' ports for health checks, and
// has them let in or not any more. No two Services should have the same; but they may.
func (b *Backend) takeHealthChecks(all []desired.HealthCheck, steps []*step) {
	var before [2]map[uint16]int // of the ports that are concerned
	for f := range before {
		before[f] = map[uint16]int{}
	}
	use := func(h desired.HealthCheck, n int) {
		for f, serves := range h.Serves {
			if !serves || h.Port == 0 {
				continue
			}
			if _, seen := before[f][h.Port]; !seen {
				before[f][h.Port] = b.health.users[f][h.Port]
			}
			if b.health.users[f][h.Port] += n; b.health.users[f][h.Port] == 0 {
				delete(b.health.users[f], h.Port)
			}
		}
	}
	for _, h := range all {
		use(b.health.of[h.Service], -1)
		use(h, 1)
		if b.health.of[h.Service] = h; h.Port == 0 {
			delete(b.health.of, h.Service)
		}
	}
	for f, ports := range before {
		for port, was := range ports {
			if is := b.health.users[f][port]; steps[f] != nil && (was > 0) != (is > 0) {
				steps[f].sets.one(setHealthChecks, ipset.Port(port), is > 0, false)
			}
		}
	}
}
