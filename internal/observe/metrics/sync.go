// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// This file is what the loop tells. It is told often, so nothing here allocates or
// looks a label up.

// Queued says that from then on there is something to program.
func (m *Metrics) Queued(at time.Time) {
	for f := range m.kubeProxy.lastQueued {
		m.kubeProxy.lastQueued[f].Set(seconds(at))
	}
}

// Programmed says that the kernel has taken a change, or everything, that was
// about some families, and how long that took.
func (m *Metrics) Programmed(full bool, about Families, took time.Duration) {
	for f, is := range about {
		if !is {
			continue
		}
		m.kubeProxy.sync[f].Observe(took.Seconds())
		if full {
			m.kubeProxy.syncFull[f].Observe(took.Seconds())
		} else {
			m.kubeProxy.syncPartial[f].Observe(took.Seconds())
		}
	}
}

// Refused says that the kernel has not taken a change, or everything, and for how
// long it was tried. kube-proxy counts the time of such tries too.
func (m *Metrics) Refused(full bool, about Families, took time.Duration) {
	kind := Change
	if full {
		kind = Full
	}
	m.SyncFailures.WithLabelValues(kind).Inc()
	k := &m.kubeProxy
	for f, is := range about {
		if !is {
			continue
		}
		k.sync[f].Observe(took.Seconds())
		k.restoreFailures[f].Inc()
		k.nftablesFailures[f].Inc()
		if full {
			k.syncFull[f].Observe(took.Seconds())
		} else {
			k.syncPartial[f].Observe(took.Seconds())
			k.partialFailures[f].Inc()
		}
	}
}

// Synced says that the kernel has had all there is since then.
func (m *Metrics) Synced(at time.Time) {
	for f := range m.kubeProxy.lastSynced {
		m.kubeProxy.lastSynced[f].Set(seconds(at))
	}
	m.kubeProxy.endpointsPending.Set(0)
	m.kubeProxy.servicesPending.Set(0)
}

// EndpointChange counts an EndpointSlice that has come, changed or gone, and
// whether that is to be programmed.
func (m *Metrics) EndpointChange(pending bool) {
	m.kubeProxy.endpointChanges.Inc()
	if pending {
		m.kubeProxy.endpointsPending.Inc()
	}
}

// ServiceChange counts a Service that has come, changed or gone, which is to be
// programmed.
func (m *Metrics) ServiceChange() {
	m.kubeProxy.serviceChanges.Inc()
	m.kubeProxy.servicesPending.Inc()
}

// Latency tells how long it took from a change of an endpoint until the kernel
// had it.
func (m *Metrics) Latency(f desired.Family, took time.Duration) {
	m.kubeProxy.programming[f].Observe(took.Seconds())
}

// NoLocalEndpoints tells how many Service ports lack local endpoints.
func (m *Metrics) NoLocalEndpoints(n desired.NoLocalEndpoints) {
	for f := range n.Internal {
		m.kubeProxy.noLocalInternal[f].Set(float64(n.Internal[f]))
		m.kubeProxy.noLocalExternal[f].Set(float64(n.External[f]))
	}
}

// ConntrackCleaned records a search for stale entries of conntrack.
func (m *Metrics) ConntrackCleaned(f desired.Family, took time.Duration, deleted int) {
	m.kubeProxy.conntrackDuration[f].Observe(took.Seconds())
	m.kubeProxy.conntrackDeleted[f].Add(float64(deleted))
}

// seconds is a time as Prometheus has it: seconds since 1970.
func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
