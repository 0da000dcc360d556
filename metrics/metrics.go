// SPDX-License-Identifier: Apache-2.0

// Package metrics counts what the proxy does, for Prometheus.
package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics are the proxy's counters. All are valid once New has returned.
type Metrics struct {
	registry *prometheus.Registry

	// SyncDuration is the time that programming a change took, in seconds,
	// by kind: "full" or "change".
	SyncDuration *prometheus.HistogramVec
	// SyncFailures counts changes and full contents that the kernel
	// refused, by kind.
	SyncFailures *prometheus.CounterVec
	// Elements counts the objects written to and deleted from the kernel.
	Elements prometheus.Counter
	// Repairs counts how often somebody else had damaged what was
	// programmed.
	Repairs prometheus.Counter
	// ObjectProblems counts objects, or parts of objects, that could not be
	// acted on.
	ObjectProblems prometheus.Counter
	// Services is how many Services are proxied.
	Services prometheus.Gauge
	// ConntrackDeleted counts entries of conntrack that were deleted because
	// they kept UDP or SCTP from where it would go now.
	ConntrackDeleted prometheus.Counter
	// ConntrackFailures counts the times that not all such entries could be
	// found and deleted.
	ConntrackFailures prometheus.Counter
	// FastPathFailures counts the times that the fast path could not be
	// programmed.
	FastPathFailures prometheus.Counter
}

// Kinds of sync, as label values.
const (
	Full   = "full"
	Change = "change"
)

// New makes the metrics, with those of the Go runtime and the process.
func New() *Metrics {
	const namespace = "slipstream"
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		SyncDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "sync_duration_seconds",
			Help: "Time that programming the kernel took, by kind: full or change.",
			// 16 us to 8 s: a change takes tens of microseconds.
			Buckets: prometheus.ExponentialBuckets(16e-6, 2, 20),
		}, []string{"kind"}),
		SyncFailures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "sync_failures_total",
			Help: "Changes and full contents that the kernel refused, by kind.",
		}, []string{"kind"}),
		Elements: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "elements_written_total",
			Help: "Objects written to and deleted from the kernel.",
		}),
		Repairs: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "repairs_total",
			Help: "Times that somebody else had damaged what was programmed.",
		}),
		ObjectProblems: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "object_problems_total",
			Help: "Objects, or parts of objects, that could not be acted on.",
		}),
		Services: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Name: "services",
			Help: "Services that are proxied.",
		}),
		ConntrackDeleted: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "conntrack_entries_deleted_total",
			Help: "Entries of conntrack deleted because they kept UDP or SCTP from where it would go now.",
		}),
		ConntrackFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "conntrack_failures_total",
			Help: "Times that not all stale entries of conntrack could be found and deleted.",
		}),
		FastPathFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "fastpath_failures_total",
			Help: "Times that the fast path could not be programmed.",
		}),
	}
	for _, kind := range []string{Full, Change} { // so that both are there from the start
		m.SyncFailures.WithLabelValues(kind)
		m.SyncDuration.WithLabelValues(kind)
	}
	m.registry.MustRegister(m.SyncDuration, m.SyncFailures, m.Elements, m.Repairs, m.ObjectProblems, m.Services,
		m.ConntrackDeleted, m.ConntrackFailures, m.FastPathFailures,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Handler serves the metrics in Prometheus' text format.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}
