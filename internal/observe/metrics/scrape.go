// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// onScrape is a collector whose values are read on each scrape. If it returns an error, the scrape lacks the rest.
type onScrape func(scrape) error

// Describe implements prometheus.Collector. What is read has the names.
func (onScrape) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (read onScrape) Collect(ch chan<- prometheus.Metric) {
	if err := read(scrape{ch}); err != nil {
		ch <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
	}
}

// serve has each scrape show what is read then.
func serve[T any](m *Metrics, read func() (T, error), show func(scrape, *kernelCounters, T)) {
	var k kernelCounters
	m.registry.MustRegister(onScrape(func(s scrape) error {
		k.mu.Lock()
		defer k.mu.Unlock()
		v, err := read()
		if err == nil {
			show(s, &k, v)
		}
		return err
	}))
}

// scrape takes values of metrics, with the names and the values of labels in turn.
type scrape struct{ ch chan<- prometheus.Metric }

func (s scrape) gauge(name, help string, value float64, labels ...string) {
	s.send(prometheus.GaugeValue, name, help, value, labels)
}

func (s scrape) counter(name, help string, value float64, labels ...string) {
	s.send(prometheus.CounterValue, name, help, value, labels)
}

func (s scrape) send(t prometheus.ValueType, name, help string, value float64, labels []string) {
	var names, values []string
	for l := range slices.Chunk(labels, 2) {
		names, values = append(names, l[0]), append(values, l[1])
	}
	s.ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, names, nil), t, value, values...)
}

// FastPath holds the metrics of the fast path.
type FastPath struct {
	Supported  bool   // by the kernel
	Offloaded  uint64 // times that a connection was offloaded
	Refused    uint64 // times that a connection was not, as the map of the engine ebpf was full
	Interfaces int    // that take part
	Hardware   bool   // connections are offloaded to network hardware
	Flushes    uint64 // times that all connections were sent back to the slow path
	Errors     uint64 // changes that failed
}

// OnFastPath serves the metrics of the fast path.
func (m *Metrics) OnFastPath(read func() (FastPath, error)) {
	serve(m, read, func(s scrape, _ *kernelCounters, f FastPath) {
		const prefix = "slipstream_fastpath_"
		s.gauge(prefix+"supported", "Whether the kernel supports the fast path: 1 or 0.", oneIf(f.Supported))
		s.counter(prefix+"offloads_total", "Connections offloaded to the fast path since its table was created.", float64(f.Offloaded))
		s.counter(prefix+"refused_total", "Packets whose connections were not offloaded because the map of the engine ebpf, or the share of their interface, was full.", float64(f.Refused))
		s.gauge(prefix+"interfaces", "Interfaces between which connections may take the fast path.", float64(f.Interfaces))
		s.gauge(prefix+"hardware", "Whether connections are offloaded to network hardware: 1 or 0.", oneIf(f.Hardware))
		s.counter(prefix+"flushes_total", "Flushes of all connections to the slow path.", float64(f.Flushes))
		s.counter(prefix+"errors_total", "Failures to program the fast path.", float64(f.Errors))
	})
}

// OnSockets serves the metrics of socketLoadBalancing: whether its programs are attached, and how many connections and
// network namespaces they have served.
func (m *Metrics) OnSockets(read func() (attached bool, connections uint64, namespaces int, err error)) {
	m.registry.MustRegister(onScrape(func(s scrape) error {
		attached, connections, namespaces, err := read()
		if err != nil {
			return err
		}
		const prefix = "slipstream_sockets_"
		s.gauge(prefix+"attached", "Whether the programs of sockets are attached: 1 or 0.", oneIf(attached))
		s.counter(prefix+"connections_total", "Connections of local clients that went straight to an endpoint.", float64(connections))
		s.gauge(prefix+"namespaces", "Network namespaces whose connections go straight to an endpoint: the node's and pods'.", float64(namespaces))
		return nil
	}))
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// kernelCounters are counters of the kernel. They go on growing for a scrape when those of the
// kernel start from 0 again.
type kernelCounters struct {
	mu     sync.Mutex // held from reading the kernel until the values are sent
	series map[string]*grown
}

type grown struct{ before, last uint64 }

// total returns the total of a series from the kernel's current value.
func (k *kernelCounters) total(series string, now uint64) float64 {
	if k.series == nil {
		k.series = map[string]*grown{}
	}
	g := collect.Entry(k.series, series)
	if now < g.last {
		g.before += g.last
	}
	g.last = now
	return float64(g.before + now)
}

// sendRejected sends the numbers of rejected packets, by desired.Family and reason.
func (k *kernelCounters) sendRejected(s scrape, rejected [2]map[string]uint64) {
	for f, byReason := range rejected {
		for reason, n := range byReason {
			family := desired.Family(f).String()
			s.counter("slipstream_rejected_packets_total", "Packets to Services that were refused or dropped, by reason.",
				k.total(reason+family, n), "reason", reason, labelFamily, family)
		}
	}
}

// NFTables holds the kernel's counters of nftables mode, by desired.Family.
type NFTables struct {
	Rejected   [2]map[string]uint64 // packets, by reason
	Unrecorded [2]uint64            // connections without session affinity
	Unlimited  [2]uint64            // connections without a limit of their client's
	Affinity   [2]Affinity
}

// Affinity is the number of clients with session affinity, when they were last counted.
type Affinity struct {
	Clients, MostClients int
	FullServices         int // Services that have almost as many clients as they may have
}

// OnNFTables serves the kernel's counters of nftables mode.
func (m *Metrics) OnNFTables(read func() (NFTables, error)) {
	serve(m, read, func(s scrape, k *kernelCounters, n NFTables) {
		k.sendRejected(s, n.Rejected)
		for f, a := range n.Affinity {
			const prefix = "slipstream_session_affinity_"
			family := desired.Family(f).String()
			s.counter(prefix+"unrecorded_total", "Connections whose client got no session affinity because there were too many clients.",
				k.total("unrecorded"+family, n.Unrecorded[f]), labelFamily, family)
			s.counter("slipstream_limits_unrecorded_total", "Connections that met no limit of their client's because there were too many clients.",
				k.total("unlimited"+family, n.Unlimited[f]), labelFamily, family)
			s.gauge(prefix+"clients", "Clients with session affinity.", float64(a.Clients), labelFamily, family)
			s.gauge(prefix+"clients_max", "Maximum of clients with session affinity.", float64(a.MostClients), labelFamily, family)
			s.gauge(prefix+"full_services", "Services that have at least nine tenths of the clients with session affinity that they may have.",
				float64(a.FullServices), labelFamily, family)
		}
	})
}

// IPTables holds the numbers of rules and the kernel's counters of iptables mode, by
// desired.Family.
type IPTables struct {
	// Total is the number of rules by table ("filter", "nat"), Last the number
	// of those that the last sync wrote.
	Total, Last [2]map[string]int

	Rejected [2]map[string]uint64 // packets, by reason
	Invalid  [2]uint64            // packets that conntrack considers invalid
}

// OnIPTables serves the numbers of rules and the kernel's counters of iptables mode.
func (m *Metrics) OnIPTables(read func() (IPTables, error)) {
	var k kernelCounters
	m.registry.MustRegister(onScrape(func(s scrape) error {
		k.mu.Lock()
		defer k.mu.Unlock()
		n, err := read()
		rules := func(name, help string, byFamily [2]map[string]int) {
			for f, tables := range byFamily {
				for table, rules := range tables {
					s.gauge("kubeproxy_sync_proxy_rules_iptables_"+name, help, float64(rules), "table", table, labelFamily, desired.Family(f).String())
				}
			}
		}
		rules("total", "Slipstream's rules of iptables.", n.Total)
		rules("last", "Rules of iptables that the last sync wrote.", n.Last)
		if err != nil {
			return err
		}
		k.sendRejected(s, n.Rejected)
		s.counter("kubeproxy_iptables_ct_state_invalid_dropped_packets_total", "Forwarded packets that were dropped because conntrack considers them invalid.",
			k.total("invalid IPv4", n.Invalid[0])+k.total("invalid IPv6", n.Invalid[1]))
		return nil
	}))
}
