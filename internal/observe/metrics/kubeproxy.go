// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Families says something of each address family, by desired.Family.
type Families [2]bool

// Both is true of either family.
var Both = Families{true, true}

// kubeProxy are the metrics that kube-proxy has, with its names, types, labels and
// buckets (k8s.io/kubernetes v1.36, pkg/proxy/metrics). What programs both families
// at once here counts for each family that it was about.
type kubeProxy struct {
	sync, syncFull, syncPartial       [2]prometheus.Observer
	lastQueued, lastSynced            [2]prometheus.Gauge
	programming                       [2]prometheus.Observer
	endpointChanges, serviceChanges   prometheus.Counter
	endpointsPending, servicesPending prometheus.Gauge
	noLocalInternal, noLocalExternal  [2]prometheus.Gauge
	restoreFailures, partialFailures  [2]prometheus.Counter // iptables
	nftablesFailures                  [2]prometheus.Counter
	conntrackDuration                 [2]prometheus.Observer
	conntrackDeleted                  [2]prometheus.Counter
	healthz, livez                    *prometheus.CounterVec

	common             []prometheus.Collector // of all modes
	partial            []prometheus.Collector // of modes that can program changes alone
	restore            []prometheus.Collector // of modes that restore iptables
	iptables, nftables []prometheus.Collector
}

// Proxy modes, as kube-proxy's configuration names them.
const (
	ModeNFTables = "nftables"
	ModeIPTables = "iptables"
	ModeIPVS     = "ipvs"
)

// OnMode registers kube-proxy's metrics: those that it has in every mode, and
// those of the given one. It panics when it is called twice, or with a mode that
// does not exist. Without it, as for a fast path beside kube-proxy, none of them is
// served.
func (m *Metrics) OnMode(mode string) {
	k := &m.kubeProxy
	m.registry.MustRegister(k.common...)
	switch mode {
	case ModeNFTables:
		m.registry.MustRegister(slices.Concat(k.partial, k.nftables)...)
	case ModeIPTables:
		m.registry.MustRegister(slices.Concat(k.partial, k.restore, k.iptables)...)
	case ModeIPVS:
		m.registry.MustRegister(k.restore...)
	default:
		panic(fmt.Sprintf("no such proxy mode: %q", mode))
	}
}

// Buckets of kube-proxy, in seconds.
var (
	syncBuckets = prometheus.ExponentialBuckets(0.001, 2, 15) // 1 ms to 16 s
	// From a change of a Service or pod until the kernel has it: fine where
	// it should be, coarse up to five minutes.
	programmingBuckets = slices.Concat(
		[]float64{0}, // nothing is ever in it, but kube-proxy has it
		prometheus.LinearBuckets(0.25, 0.25, 2),
		prometheus.LinearBuckets(1, 1, 59),
		prometheus.LinearBuckets(60, 5, 12),
		prometheus.LinearBuckets(120, 30, 7),
	)
)

const labelFamily = "ip_family"

func newKubeProxy() (k kubeProxy) {
	k.defineSync()
	k.defineChanges()
	k.defineModes()
	k.healthz = kubeProxyCounter("proxy_healthz_total", "Answers to /healthz, by HTTP status.", "code")
	k.livez = kubeProxyCounter("proxy_livez_total", "Answers to /livez, by HTTP status.", "code")
	k.common = append(k.common, k.healthz, k.livez)
	return k
}

// defineSync makes what is said about programming the kernel.
func (k *kubeProxy) defineSync() {
	all := kubeProxyHistogram("sync_proxy_rules_duration_seconds", "Time that programming the kernel took.", syncBuckets)
	full := kubeProxyHistogram("sync_full_proxy_rules_duration_seconds", "Time that programming everything took.", syncBuckets)
	partial := kubeProxyHistogram("sync_partial_proxy_rules_duration_seconds", "Time that programming a change took.", syncBuckets)
	programming := kubeProxyHistogram("network_programming_duration_seconds", "Time from a change of a Service or pod, as its EndpointSlice tells it, until the kernel had it.", programmingBuckets)
	queued := kubeProxyGauge("sync_proxy_rules_last_queued_timestamp_seconds", "When there was last something to program, in Unix time.", labelFamily)
	synced := kubeProxyGauge("sync_proxy_rules_last_timestamp_seconds", "When the kernel last had everything, in Unix time.", labelFamily)
	for f := range k.sync {
		name := desired.Family(f).String()
		k.sync[f], k.syncFull[f], k.syncPartial[f] = all.WithLabelValues(name), full.WithLabelValues(name), partial.WithLabelValues(name)
		k.programming[f] = programming.WithLabelValues(name)
		k.lastQueued[f], k.lastSynced[f] = queued.WithLabelValues(name), synced.WithLabelValues(name)
	}
	k.common = append(k.common, all, programming, queued, synced)
	k.partial = append(k.partial, full, partial)
}

// defineChanges makes what is said about objects.
func (k *kubeProxy) defineChanges() {
	const prefix = "sync_proxy_rules_"
	endpoints := kubeProxyCounter(prefix+"endpoint_changes_total", "EndpointSlices that have come, changed or gone.")
	services := kubeProxyCounter(prefix+"service_changes_total", "Services that have come, changed or gone.")
	endpointsPending := kubeProxyGauge(prefix+"endpoint_changes_pending", "Changes of EndpointSlices that the kernel does not have yet.")
	servicesPending := kubeProxyGauge(prefix+"service_changes_pending", "Changes of Services that the kernel does not have yet.")
	k.endpointChanges, k.serviceChanges = endpoints.WithLabelValues(), services.WithLabelValues()
	k.endpointsPending, k.servicesPending = endpointsPending.WithLabelValues(), servicesPending.WithLabelValues()

	noLocal := kubeProxyGauge(prefix+"no_local_endpoints_total", "Service ports with endpoints, but none on this node, where the traffic policy wants some.", "traffic_policy", labelFamily)
	for f := range k.noLocalInternal {
		name := desired.Family(f).String()
		k.noLocalInternal[f], k.noLocalExternal[f] = noLocal.WithLabelValues("internal", name), noLocal.WithLabelValues("external", name)
	}
	k.common = append(k.common, endpoints, services, endpointsPending, servicesPending, noLocal)
}

// defineModes makes what only some modes have.
func (k *kubeProxy) defineModes() {
	duration := kubeProxyHistogram("conntrack_reconciler_sync_duration_seconds", "Time that it took to delete stale entries of conntrack.", syncBuckets)
	deleted := kubeProxyCounter("conntrack_reconciler_deleted_entries_total", "Stale entries of conntrack that were deleted.", labelFamily)
	restore := kubeProxyCounter("sync_proxy_rules_iptables_restore_failures_total", "Times that iptables was refused.", labelFamily)
	partial := kubeProxyCounter("sync_proxy_rules_iptables_partial_restore_failures_total", "Times that a change of iptables was refused, so that everything was programmed.", labelFamily)
	refused := kubeProxyCounter("sync_proxy_rules_nftables_sync_failures_total", "Times that nftables was refused.", labelFamily)
	cleanup := kubeProxyCounter("sync_proxy_rules_nftables_cleanup_failures_total", "Always 0: nothing is left to be cleaned up later.", labelFamily)
	for f := range k.conntrackDuration {
		name := desired.Family(f).String()
		k.conntrackDuration[f], k.conntrackDeleted[f] = duration.WithLabelValues(name), deleted.WithLabelValues(name)
		k.restoreFailures[f], k.partialFailures[f] = restore.WithLabelValues(name), partial.WithLabelValues(name)
		k.nftablesFailures[f] = refused.WithLabelValues(name)
		cleanup.WithLabelValues(name)
	}
	k.common = append(k.common, duration, deleted)
	k.restore = append(k.restore, restore)
	k.iptables = append(k.iptables, partial)
	k.nftables = append(k.nftables, refused, cleanup)
}

const kubeProxyNamespace = "kubeproxy"

func kubeProxyHistogram(name, help string, buckets []float64) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: kubeProxyNamespace, Name: name, Help: help, Buckets: buckets,
	}, []string{labelFamily})
}

func kubeProxyCounter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: kubeProxyNamespace, Name: name, Help: help}, labels)
}

func kubeProxyGauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: kubeProxyNamespace, Name: name, Help: help}, labels)
}
