// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// touched is what has been programmed since somebody began to look at the kernel, who
// may have seen it before or after.
type touched struct {
	everything bool
	services   map[desired.ServicePort]bool // whose endpoints are others
	subjects   map[string]bool              // as in dataplane.Differing
}

func newTouched() *touched {
	return &touched{services: map[desired.ServicePort]bool{}, subjects: map[string]bool{}}
}

// note takes a change down. Nobody looks when t is nil.
func (t *touched) note(c *desired.Change, full bool) {
	if t == nil {
		return
	}
	if full {
		t.everything = true
		return
	}
	for _, f := range c.Frontends {
		t.subjects[f.Key().String()] = true
	}
	for _, p := range c.Pools {
		t.services[p.Service] = true
	}
	for role, change := range map[string]desired.AddressChange{
		"ClusterIP ": c.ClusterIPs,
		"hairpin ":   c.HairpinIPs,
	} {
		for _, list := range [][]netip.Addr{change.Added, change.Removed} {
			for _, a := range list {
				t.subjects[role+a.String()] = true
			}
		}
	}
	for _, list := range [][]netip.Prefix{c.ServiceCIDRs.Added, c.ServiceCIDRs.Removed} {
		for _, r := range list {
			t.subjects["ServiceCIDR "+r.String()] = true
		}
	}
}

// nothing says that nothing was programmed.
func (t *touched) nothing() bool {
	return !t.everything && len(t.services)+len(t.subjects) == 0
}

// others are the differences in what has not been touched. What cannot be laid to an
// object may come of anything that was programmed.
func (t *touched) others(all []dataplane.Differing) (others []dataplane.Differing) {
	quiet := t.nothing()
	for _, d := range all {
		if quiet || d.Subject != "" && !t.subjects[d.Subject] && !t.services[d.Service] {
			others = append(others, d)
		}
	}
	return others
}
