// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// onScrape is a collector whose values are read on each scrape. If read returns an error,
// the scrape lacks them.
type onScrape struct {
	descs []*prometheus.Desc
	read  func(send send) error
}

type send func(d *prometheus.Desc, t prometheus.ValueType, value float64, labels ...string)

// Describe implements prometheus.Collector.
func (c *onScrape) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *onScrape) Collect(ch chan<- prometheus.Metric) {
	err := c.read(func(d *prometheus.Desc, t prometheus.ValueType, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, t, value, labels...)
	})
	if err != nil {
		ch <- prometheus.NewInvalidMetric(c.descs[0], err)
	}
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
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("slipstream_fastpath_"+name, help, nil, nil)
	}
	var (
		supported  = desc("supported", "Whether the kernel supports the fast path: 1 or 0.")
		offloads   = desc("offloads_total", "Connections offloaded to the fast path since its table was created.")
		refused    = desc("refused_total", "Packets whose connections were not offloaded because the map of the engine ebpf, or the share of their interface, was full.")
		interfaces = desc("interfaces", "Interfaces between which connections may take the fast path.")
		hardware   = desc("hardware", "Whether connections are offloaded to network hardware: 1 or 0.")
		flushes    = desc("flushes_total", "Flushes of all connections to the slow path.")
		errs       = desc("errors_total", "Failures to program the fast path.")
	)
	m.registry.MustRegister(&onScrape{[]*prometheus.Desc{supported, offloads, refused, interfaces, hardware, flushes, errs}, func(send send) error {
		f, err := read()
		if err != nil {
			return err
		}
		send(supported, prometheus.GaugeValue, oneIf(f.Supported))
		send(interfaces, prometheus.GaugeValue, float64(f.Interfaces))
		send(hardware, prometheus.GaugeValue, oneIf(f.Hardware))
		send(offloads, prometheus.CounterValue, float64(f.Offloaded))
		send(refused, prometheus.CounterValue, float64(f.Refused))
		send(flushes, prometheus.CounterValue, float64(f.Flushes))
		send(errs, prometheus.CounterValue, float64(f.Errors))
		return nil
	}})
}

// Sockets holds the metrics of socketLoadBalancing.
type Sockets struct {
	Attached    bool
	Connections uint64
	Namespaces  int
}

// OnSockets serves the metrics of socketLoadBalancing.
func (m *Metrics) OnSockets(read func() (Sockets, error)) {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("slipstream_sockets_"+name, help, nil, nil)
	}
	var (
		attached    = desc("attached", "Whether the programs of sockets are attached: 1 or 0.")
		connections = desc("connections_total", "Connections of local clients that went straight to an endpoint.")
		namespaces  = desc("namespaces", "Network namespaces whose connections go straight to an endpoint: the node's and pods'.")
	)
	m.registry.MustRegister(&onScrape{[]*prometheus.Desc{attached, connections, namespaces}, func(send send) error {
		s, err := read()
		if err != nil {
			return err
		}
		send(attached, prometheus.GaugeValue, oneIf(s.Attached))
		send(connections, prometheus.CounterValue, float64(s.Connections))
		send(namespaces, prometheus.GaugeValue, float64(s.Namespaces))
		return nil
	}})
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
	g := k.series[series]
	if g == nil {
		g = &grown{}
		k.series[series] = g
	}
	if now < g.last {
		g.before += g.last
	}
	g.last = now
	return float64(g.before + now)
}

var rejectedDesc = prometheus.NewDesc("slipstream_rejected_packets_total",
	"Packets to Services that were refused or dropped, by reason.", []string{"reason", labelFamily}, nil)

// sendRejected sends the numbers of rejected packets, by desired.Family and reason.
func (k *kernelCounters) sendRejected(send send, rejected [2]map[string]uint64) {
	for f, byReason := range rejected {
		for reason, n := range byReason {
			family := desired.Family(f).String()
			send(rejectedDesc, prometheus.CounterValue, k.total(reason+family, n), reason, family)
		}
	}
}

// NFTables holds the kernel's counters of nftables mode, by desired.Family.
type NFTables struct {
	Rejected   [2]map[string]uint64 // packets, by reason
	Unrecorded [2]uint64            // connections without session affinity
	Affinity   [2]Affinity
}

// Affinity is the number of clients with session affinity, when they were last counted.
type Affinity struct {
	Clients, MostClients int
	FullServices         int // Services that have almost as many clients as they may have
}

// OnNFTables serves the kernel's counters of nftables mode.
func (m *Metrics) OnNFTables(read func() (NFTables, error)) {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("slipstream_session_affinity_"+name, help, []string{labelFamily}, nil)
	}
	var (
		unrecorded = desc("unrecorded_total", "Connections whose client got no session affinity because there were too many clients.")
		clients    = desc("clients", "Clients with session affinity.")
		most       = desc("clients_max", "Maximum of clients with session affinity.")
		full       = desc("full_services", "Services that have at least nine tenths of the clients with session affinity that they may have.")
		k          kernelCounters
	)
	m.registry.MustRegister(&onScrape{[]*prometheus.Desc{unrecorded, clients, most, full, rejectedDesc}, func(send send) error {
		k.mu.Lock()
		defer k.mu.Unlock()
		n, err := read()
		if err != nil {
			return err
		}
		k.sendRejected(send, n.Rejected)
		for f := range n.Unrecorded {
			family := desired.Family(f).String()
			send(unrecorded, prometheus.CounterValue, k.total("unrecorded"+family, n.Unrecorded[f]), family)
			send(clients, prometheus.GaugeValue, float64(n.Affinity[f].Clients), family)
			send(most, prometheus.GaugeValue, float64(n.Affinity[f].MostClients), family)
			send(full, prometheus.GaugeValue, float64(n.Affinity[f].FullServices), family)
		}
		return nil
	}})
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
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("kubeproxy_sync_proxy_rules_iptables_"+name, help, []string{"table", labelFamily}, nil)
	}
	total, last := desc("total", "Slipstream's rules of iptables."), desc("last", "Rules of iptables that the last sync wrote.")
	invalid := prometheus.NewDesc("kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
		"Forwarded packets that were dropped because conntrack considers them invalid.", nil, nil)
	var k kernelCounters
	m.registry.MustRegister(&onScrape{[]*prometheus.Desc{total, last, invalid, rejectedDesc}, func(send send) error {
		k.mu.Lock()
		defer k.mu.Unlock()
		n, err := read()
		for d, byFamily := range map[*prometheus.Desc][2]map[string]int{total: n.Total, last: n.Last} {
			for f, tables := range byFamily {
				for table, rules := range tables {
					send(d, prometheus.GaugeValue, float64(rules), table, desired.Family(f).String())
				}
			}
		}
		if err != nil {
			return err
		}
		k.sendRejected(send, n.Rejected)
		send(invalid, prometheus.CounterValue, k.total("invalid IPv4", n.Invalid[0])+k.total("invalid IPv6", n.Invalid[1]))
		return nil
	}})
}
