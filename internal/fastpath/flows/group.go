// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Services tells which Service a frontend belongs to: "default/web:http".
type Services map[desired.FrontendKey]string

// Group is the offloaded connections to one frontend.
type Group struct {
	Frontend desired.FrontendKey
	Service  string // "" when it is not known: a Service's no more, or never
	Flows    int
	Backends int // how many of them answer
	Hardware int // flows that network hardware forwards
	Sent     Count
	Received Count
}

// Groups are flows by their frontends, in order of Services and frontends; what is
// of no Service comes last.
func Groups(all []Flow, services Services) []Group {
	groups := map[desired.FrontendKey]*Group{}
	type answered struct {
		frontend desired.FrontendKey
		backend  string
	}
	backends := map[answered]bool{}
	for i := range all {
		f := &all[i]
		k := f.Frontend()
		g := groups[k]
		if g == nil {
			g = &Group{Frontend: k, Service: services[k]}
			groups[k] = g
		}
		g.Flows++
		g.Sent.add(f.Sent)
		g.Received.add(f.Received)
		if f.Hardware {
			g.Hardware++
		}
		if b := (answered{k, f.Backend.String()}); !backends[b] {
			backends[b] = true
			g.Backends++
		}
	}
	sorted := make([]Group, 0, len(groups))
	for _, g := range groups {
		sorted = append(sorted, *g)
	}
	slices.SortFunc(sorted, func(a, b Group) int {
		if none := a.Service == ""; none != (b.Service == "") {
			if none {
				return 1
			}
			return -1
		}
		if c := strings.Compare(a.Service, b.Service); c != 0 {
			return c
		}
		if c := a.Frontend.Compare(b.Frontend.AddrPort); c != 0 {
			return c
		}
		return int(a.Frontend.Protocol) - int(b.Frontend.Protocol)
	})
	return sorted
}
