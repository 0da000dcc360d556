// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// kubeProxy are the metrics that kube-proxy has, with its names, types, labels and
// buckets (k8s.io/kubernetes v1.37, pkg/proxy/metrics). Arrays are by desired.Family.
type kubeProxy struct {
	inAll  []prometheus.Collector
	inSome map[string]prometheus.Collector // those of some modes, by name

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
	loopbackListeners                 [2]prometheus.Gauge
	loopbackFailures                  [2]prometheus.Counter
}

// OnMode serves kube-proxy's metrics of every mode, and those of a mode, which have names
// ([config.Traits.Metrics]). It panics if it is called twice. Without it, as for a fast path beside
// kube-proxy, none of them is served.
func (m *Metrics) OnMode(names []string) {
	m.registry.MustRegister(m.kubeProxy.inAll...)
	for _, name := range names {
		if c := m.kubeProxy.inSome[name]; c != nil { // others are read on a scrape
			m.registry.MustRegister(c)
		}
	}
}

const (
	relays        = "nftables_localhost_nodeport_listeners"
	relaysNotMade = "nftables_localhost_nodeport_listener_creation_failures_total"
)

// OnLocalhostNodePorts serves kube-proxy's metrics of NodePorts on loopback addresses, which
// it has in nftables mode with the feature gate KubeProxyNFTablesLocalhostNodePorts. rejected
// reads the numbers of rejected packets by desired.Family and protocol.
func (m *Metrics) OnLocalhostNodePorts(rejected func() ([2]map[desired.Protocol]uint64, error)) {
	m.registry.MustRegister(m.kubeProxy.inSome["kubeproxy_"+relays], m.kubeProxy.inSome["kubeproxy_"+relaysNotMade])
	serve(m, rejected, func(s scrape, k *kernelCounters, n [2]map[desired.Protocol]uint64) {
		for f := range n {
			for _, p := range desired.Protocols {
				protocol, family := p.String(), desired.Family(f).String()
				s.counter("kubeproxy_nftables_localhost_nodeport_rejected_packets_total", "Packets to NodePorts on loopback addresses that were rejected.",
					k.total(protocol+family, n[f][p]), "protocol", protocol, labelFamily, family)
			}
		}
	})
}

// LoopbackListeners records the numbers of listeners for NodePorts on loopback addresses.
func (m *Metrics) LoopbackListeners(n [2]int) {
	for f, gauge := range m.kubeProxy.loopbackListeners {
		gauge.Set(float64(n[f]))
	}
}

// LoopbackFailed counts a failure to open such a listener.
func (m *Metrics) LoopbackFailed(f desired.Family) { m.kubeProxy.loopbackFailures[f].Inc() }

// Buckets of kube-proxy, in seconds.
var (
	syncBuckets        = prometheus.ExponentialBuckets(0.001, 2, 15) // 1 ms to 16 s
	programmingBuckets = slices.Concat(
		[]float64{0},
		prometheus.LinearBuckets(0.25, 0.25, 2),
		prometheus.LinearBuckets(1, 1, 59),
		prometheus.LinearBuckets(60, 5, 12),
		prometheus.LinearBuckets(120, 30, 7),
	)
)

const labelFamily = "ip_family"

func newKubeProxy() (k kubeProxy) {
	k.inSome = map[string]prometheus.Collector{}
	const all, some = true, false // modes that have the metric
	const prefix = "sync_proxy_rules_"
	k.sync = k.histogram(all, prefix+"duration_seconds", "Time to program the kernel.", syncBuckets)
	k.syncFull = k.histogram(some, "sync_full_proxy_rules_duration_seconds", "Time to program everything.", syncBuckets)
	k.syncPartial = k.histogram(some, "sync_partial_proxy_rules_duration_seconds", "Time to program a change.", syncBuckets)
	k.programming = k.histogram(all, "network_programming_duration_seconds",
		"Time from a change of a Service or pod, according to its EndpointSlice, until the kernel had it.", programmingBuckets)
	k.lastQueued = byFamily(k.gauge(all, prefix+"last_queued_timestamp_seconds", "When a change was last queued, in Unix time.", labelFamily))
	k.lastSynced = byFamily(k.gauge(all, prefix+"last_timestamp_seconds", "When the kernel was last up to date, in Unix time.", labelFamily))

	k.endpointChanges = k.counter(all, prefix+"endpoint_changes_total", "EndpointSlices added, changed or deleted.")()
	k.serviceChanges = k.counter(all, prefix+"service_changes_total", "Services added, changed or deleted.")()
	k.endpointsPending = k.gauge(all, prefix+"endpoint_changes_pending", "Changes of EndpointSlices that are not programmed yet.")()
	k.servicesPending = k.gauge(all, prefix+"service_changes_pending", "Changes of Services that are not programmed yet.")()
	noLocal := k.gauge(all, prefix+"no_local_endpoints_total",
		"Service ports with endpoints, none of them on this node, whose traffic policy is Local.", "traffic_policy", labelFamily)
	k.noLocalInternal, k.noLocalExternal = byFamily(noLocal, "internal"), byFamily(noLocal, "external")

	k.conntrackDuration = k.histogram(all, "conntrack_reconciler_sync_duration_seconds", "Time to delete stale conntrack entries.", syncBuckets)
	k.conntrackDeleted = byFamily(k.counter(all, "conntrack_reconciler_deleted_entries_total", "Stale conntrack entries that were deleted.", labelFamily))
	k.restoreFailures = byFamily(k.counter(some, prefix+"iptables_restore_failures_total", "Rejected restores of iptables.", labelFamily))
	k.partialFailures = byFamily(k.counter(some, prefix+"iptables_partial_restore_failures_total",
		"Rejected partial restores of iptables, after which a full one follows.", labelFamily))
	k.nftablesFailures = byFamily(k.counter(some, prefix+"nftables_sync_failures_total", "Rejected transactions of nftables.", labelFamily))
	byFamily(k.counter(some, prefix+"nftables_cleanup_failures_total", "Always 0: there is no deferred cleanup.", labelFamily))

	k.loopbackListeners = byFamily(k.gauge(some, relays, "Listeners for NodePorts on loopback addresses.", labelFamily))
	k.loopbackFailures = byFamily(k.counter(some, relaysNotMade,
		"Listeners for NodePorts on loopback addresses that could not be opened.", labelFamily))

	k.healthz = register(&k, all, "", prometheus.NewCounterVec(kubeProxyCounter("proxy_healthz_total", "Answers to /healthz, by HTTP status."), []string{"code"}))
	k.livez = register(&k, all, "", prometheus.NewCounterVec(kubeProxyCounter("proxy_livez_total", "Answers to /livez, by HTTP status."), []string{"code"}))
	return k
}

// register adds a metric of all modes, or of some.
func register[C prometheus.Collector](k *kubeProxy, inAll bool, name string, c C) C {
	if inAll {
		k.inAll = append(k.inAll, c)
	} else {
		k.inSome["kubeproxy_"+name] = c
	}
	return c
}

func kubeProxyCounter(name, help string) prometheus.CounterOpts {
	return prometheus.CounterOpts{Namespace: "kubeproxy", Name: name, Help: help}
}

// counter and gauge return a function that makes the metric with the given values of its
// labels.

func (k *kubeProxy) counter(inAll bool, name, help string, labels ...string) func(...string) prometheus.Counter {
	return register(k, inAll, name, prometheus.NewCounterVec(kubeProxyCounter(name, help), labels)).WithLabelValues
}

func (k *kubeProxy) gauge(inAll bool, name, help string, labels ...string) func(...string) prometheus.Gauge {
	return register(k, inAll, name, prometheus.NewGaugeVec(prometheus.GaugeOpts(kubeProxyCounter(name, help)), labels)).WithLabelValues
}

func (k *kubeProxy) histogram(inAll bool, name, help string, buckets []float64) [2]prometheus.Observer {
	return byFamily(register(k, inAll, name, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "kubeproxy", Name: name, Help: help, Buckets: buckets,
	}, []string{labelFamily})).WithLabelValues)
}

// byFamily makes a metric for each family, which is the last label.
func byFamily[T any](with func(...string) T, labels ...string) (out [2]T) {
	for f := range out {
		out[f] = with(append(labels, desired.Family(f).String())...)
	}
	return out
}
