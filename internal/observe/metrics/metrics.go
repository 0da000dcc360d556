// SPDX-License-Identifier: Apache-2.0

// Package metrics has the proxy's metrics for Prometheus: those of kube-proxy, under the
// same names, so that its dashboards and alerts keep working, and Slipstream's own, with
// the prefix slipstream_. docs/metrics.md lists them.
package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // what client-go does
)

// Metrics are the proxy's counters. All are valid once New has returned; methods
// may be called by any goroutine.
type Metrics struct {
	registry  *prometheus.Registry
	kubeProxy kubeProxy
	verify    verify

	// SyncFailures counts changes and full contents that the kernel
	// refused, by kind.
	SyncFailures *prometheus.CounterVec
	// Elements counts the objects written to and deleted from the kernel.
	Elements prometheus.Counter
	// Repairs counts how often the ruleset was modified externally.
	Repairs prometheus.Counter
	// ObjectProblems counts objects, or parts of objects, that could not be
	// acted on.
	ObjectProblems prometheus.Counter
	// Services is how many Services are proxied.
	Services prometheus.Gauge
	// ConntrackFailures counts the times that not all such entries could be
	// found and deleted.
	ConntrackFailures prometheus.Counter
	// FeatureMissing is 1 for each feature that a mode needs and the node
	// lacks, by mode, family and feature.
	FeatureMissing *prometheus.GaugeVec
}

// Kinds of sync, as label values.
const (
	Full   = "full"
	Change = "change"
)

// New makes the metrics. Those of kube-proxy are served from OnMode on.
func New() *Metrics {
	m := &Metrics{
		registry:  prometheus.NewRegistry(),
		kubeProxy: newKubeProxy(),
		verify:    newVerify(),
		SyncFailures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "sync_failures_total",
			Help: "Changes and full contents that the kernel refused, by kind.",
		}, []string{"kind"}),
		Elements:          counter("elements_written_total", "Objects written to and deleted from the kernel."),
		Repairs:           counter("repairs_total", "Times that the ruleset was modified externally and programmed again."),
		ObjectProblems:    counter("object_problems_total", "Objects, or parts of objects, that could not be acted on."),
		ConntrackFailures: counter("conntrack_failures_total", "Times that not all stale entries of conntrack could be found and deleted."),
		FeatureMissing: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "kernel_feature_missing",
			Help: "1 for each feature that a proxy mode needs and that this node lacks.",
		}, []string{"mode", "family", "feature"}),
		Services: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Name: "services",
			Help: "Services that are proxied.",
		}),
	}
	for _, kind := range []string{Full, Change} { // so that both are there from the start
		m.SyncFailures.WithLabelValues(kind)
	}
	m.registry.MustRegister(m.SyncFailures, m.Elements, m.Repairs, m.ObjectProblems, m.Services, m.FeatureMissing,
		m.ConntrackFailures)
	return m
}

const namespace = "slipstream"

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
}

// gather is all there is: ours, and what Kubernetes' libraries count about
// themselves, the process and the Go runtime.
func (m *Metrics) gather() prometheus.Gatherer {
	return prometheus.Gatherers{m.registry, legacyregistry.DefaultGatherer}
}

// Handler serves the metrics in the formats that Prometheus reads. What cannot be
// found out is left out and logged.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.gather(), promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError,
		ErrorLog:      errorLog{},
	})
}
