// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"slices"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/node/conntrack"
)

// Cleaning makes of clean ([conntrack.Conn.Clean]) one that takes the families one
// after the other, as it does itself, and counts what each took.
func (m *Metrics) Cleaning(clean func([]desired.StaleFlows) (conntrack.Stats, error)) func([]desired.StaleFlows) (conntrack.Stats, error) {
	return func(stale []desired.StaleFlows) (sum conntrack.Stats, err error) {
		for f := range m.kubeProxy.conntrackDuration {
			of := ofFamily(stale, desired.Family(f))
			if len(of) == 0 {
				continue
			}
			start := time.Now()
			stats, failed := clean(of)
			if stats.Dumps > 0 { // there was something to look for
				m.kubeProxy.conntrackDuration[f].Observe(time.Since(start).Seconds())
				m.kubeProxy.conntrackDeleted[f].Add(float64(stats.Deleted))
			}
			sum.Dumps += stats.Dumps
			sum.Entries += stats.Entries
			sum.Deleted += stats.Deleted
			err = errors.Join(err, failed)
		}
		return sum, err
	}
}

// ofFamily is what stale flows say of one family, in the same order. Backends of
// the other one are no harm.
func ofFamily(stale []desired.StaleFlows, f desired.Family) (out []desired.StaleFlows) {
	another := func(k desired.FrontendKey) bool { return desired.FamilyOf(k.Addr()) != f }
	for _, s := range stale {
		if s.Frontends = slices.DeleteFunc(slices.Clone(s.Frontends), another); len(s.Frontends) > 0 {
			out = append(out, s)
		}
	}
	return out
}
