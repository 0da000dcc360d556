// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Services has the Service of each frontend, such as "default/web:http".
type Services map[desired.FrontendKey]string

// Group is the offloaded connections to one frontend.
type Group struct {
	Frontend desired.FrontendKey
	Service  string // empty if unknown
	Flows    int    // number of connections
	Backends int    // number of their backends
	Hardware int    // number of connections that network hardware forwards
	Sent     Count
	Received Count
}

// Groups groups flows by frontend, in the order of Services and frontends; groups without a
// Service are last.
func Groups(all []Flow, services Services) (groups []Group) {
	byFrontend := map[desired.FrontendKey]*Group{}
	backends := map[desired.FrontendKey]map[netip.AddrPort]bool{}
	for i := range all {
		f := &all[i]
		k := f.Frontend()
		g := byFrontend[k]
		if g == nil {
			g = &Group{Frontend: k, Service: services[k]}
			byFrontend[k], backends[k] = g, map[netip.AddrPort]bool{}
		}
		g.Flows++
		g.Sent.add(f.Sent)
		g.Received.add(f.Received)
		if f.Hardware {
			g.Hardware++
		}
		backends[k][f.Backend] = true
		g.Backends = len(backends[k])
	}
	for g := range maps.Values(byFrontend) {
		groups = append(groups, *g)
	}
	unknown := map[bool]int{true: 1}
	slices.SortFunc(groups, func(a, b Group) int {
		return cmp.Or(
			unknown[a.Service == ""]-unknown[b.Service == ""],
			cmp.Compare(a.Service, b.Service),
			a.Frontend.Compare(b.Frontend.AddrPort),
			cmp.Compare(a.Frontend.Protocol, b.Frontend.Protocol),
		)
	})
	return groups
}
