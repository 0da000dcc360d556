// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strconv"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"k8s.io/apimachinery/pkg/types"
)

// The methods of this file record into kube-proxy's metrics. The loop calls most of them
// for each change, so they do not allocate or look up labels.

// Queued records the time at which a change was queued.
func (m *Metrics) Queued(at time.Time) {
	for _, g := range m.kubeProxy.lastQueued {
		g.Set(seconds(at))
	}
}

// Programmed records that the kernel accepted a change, or the full content, that affects
// some families, and the time that it took.
func (m *Metrics) Programmed(full bool, families desired.Families, took time.Duration) {
	k := &m.kubeProxy
	of := &k.syncPartial
	if full {
		of = &k.syncFull
	}
	for f, affected := range families {
		if affected {
			k.sync[f].Observe(took.Seconds())
			of[f].Observe(took.Seconds())
		}
	}
}

// Refused records that the kernel rejected a change or the full content. Like kube-proxy,
// it records the duration too.
func (m *Metrics) Refused(full bool, families desired.Families, took time.Duration) {
	m.SyncFailures.WithLabelValues(map[bool]string{true: Full, false: Change}[full]).Inc()
	m.Programmed(full, families, took)
	for f, affected := range families {
		if !affected {
			continue
		}
		m.kubeProxy.restoreFailures[f].Inc()
		m.kubeProxy.nftablesFailures[f].Inc()
		if !full {
			m.kubeProxy.partialFailures[f].Inc()
		}
	}
}

// Synced records the time at which the kernel had all changes.
func (m *Metrics) Synced(at time.Time) {
	for _, g := range m.kubeProxy.lastSynced {
		g.Set(seconds(at))
	}
	m.kubeProxy.endpointsPending.Set(0)
	m.kubeProxy.servicesPending.Set(0)
}

// EndpointChange counts a change of an EndpointSlice, and whether it is to be programmed.
func (m *Metrics) EndpointChange(pending bool) {
	m.kubeProxy.endpointChanges.Inc()
	if pending {
		m.kubeProxy.endpointsPending.Inc()
	}
}

// ServiceChange counts a change of a Service, which is to be programmed.
func (m *Metrics) ServiceChange() {
	m.kubeProxy.serviceChanges.Inc()
	m.kubeProxy.servicesPending.Inc()
}

// Latency records the time from a change of an endpoint until the kernel had it.
func (m *Metrics) Latency(f desired.Family, took time.Duration) {
	m.kubeProxy.programming[f].Observe(took.Seconds())
}

// NoLocalEndpoints sets the number of Service ports that lack local endpoints.
func (m *Metrics) NoLocalEndpoints(n desired.NoLocalEndpoints) {
	for f := range n.Internal {
		m.kubeProxy.noLocalInternal[f].Set(float64(n.Internal[f]))
		m.kubeProxy.noLocalExternal[f].Set(float64(n.External[f]))
	}
}

// SetContested sets the number of frontends that Services claim and do not have, by Service.
func (m *Metrics) SetContested(byService map[types.NamespacedName]int) {
	m.contested.Reset()
	for _, s := range most(byService, MostServices) {
		m.contested.WithLabelValues(s.namespace, s.name).Set(float64(s.count))
	}
}

// ConntrackCleaned records a search for stale conntrack entries.
func (m *Metrics) ConntrackCleaned(f desired.Family, took time.Duration, deleted int) {
	m.kubeProxy.conntrackDuration[f].Observe(took.Seconds())
	m.kubeProxy.conntrackDeleted[f].Add(float64(deleted))
}

// Healthz counts an answer to /healthz by its HTTP status.
func (m *Metrics) Healthz(status int) {
	m.kubeProxy.healthz.WithLabelValues(strconv.Itoa(status)).Inc()
}

// Livez counts an answer to /livez by its HTTP status.
func (m *Metrics) Livez(status int) {
	m.kubeProxy.livez.WithLabelValues(strconv.Itoa(status)).Inc()
}

// seconds returns a time in seconds since 1970, which is Prometheus' format.
func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
