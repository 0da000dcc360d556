// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// IPTables is what iptables mode says of its rules.
type IPTables struct {
	// Total is how many rules there are by table ("filter", "nat"), and Last
	// how many of them the last sync wrote.
	Total, Last [2]map[string]int // by desired.Family

	// LocalhostNodePorts counts packets that a NodePort on a loopback address
	// accepted, and InvalidDropped those that were dropped as conntrack held
	// them for invalid; nil where nothing counts them (nfacct).
	LocalhostNodePorts, InvalidDropped *uint64
}

// OnIPTables has the numbers read whenever somebody asks for metrics.
func (m *Metrics) OnIPTables(read func() (IPTables, error)) {
	m.registry.MustRegister(&iptablesCollector{read})
}

type iptablesCollector struct{ read func() (IPTables, error) }

var (
	iptablesTotal     = prometheus.NewDesc("kubeproxy_sync_proxy_rules_iptables_total", "Rules of iptables that are ours.", []string{"table", labelFamily}, nil)
	iptablesLast      = prometheus.NewDesc("kubeproxy_sync_proxy_rules_iptables_last", "Rules of iptables that the last sync wrote.", []string{"table", labelFamily}, nil)
	iptablesLocalhost = prometheus.NewDesc("kubeproxy_iptables_localhost_nodeports_accepted_packets_total", "Packets to NodePorts on loopback addresses.", nil, nil)
	iptablesInvalid   = prometheus.NewDesc("kubeproxy_iptables_ct_state_invalid_dropped_packets_total", "Packets dropped because conntrack held them for invalid.", nil, nil)
)

// Describe implements prometheus.Collector.
func (*iptablesCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{iptablesTotal, iptablesLast, iptablesLocalhost, iptablesInvalid} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *iptablesCollector) Collect(ch chan<- prometheus.Metric) {
	t, err := c.read()
	if err != nil {
		ch <- prometheus.NewInvalidMetric(iptablesTotal, err)
		return
	}
	rules := func(d *prometheus.Desc, byFamily [2]map[string]int) {
		for f, tables := range byFamily {
			for table, n := range tables {
				ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), table, desired.Family(f).String())
			}
		}
	}
	packets := func(d *prometheus.Desc, n *uint64) {
		if n != nil {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(*n))
		}
	}
	rules(iptablesTotal, t.Total)
	rules(iptablesLast, t.Last)
	packets(iptablesLocalhost, t.LocalhostNodePorts)
	packets(iptablesInvalid, t.InvalidDropped)
}
