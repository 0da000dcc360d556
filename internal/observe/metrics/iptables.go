// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// IPTables counts the rules of iptables mode.
type IPTables struct {
	// Total is the number of rules by table ("filter", "nat"), Last the number
	// of those that the last sync wrote.
	Total, Last [2]map[string]int // by desired.Family
}

// OnIPTables has the numbers read whenever somebody asks for metrics.
func (m *Metrics) OnIPTables(read func() (IPTables, error)) {
	m.registry.MustRegister(&iptablesCollector{read})
}

type iptablesCollector struct{ read func() (IPTables, error) }

var (
	iptablesTotal = prometheus.NewDesc("kubeproxy_sync_proxy_rules_iptables_total", "Rules of iptables that are ours.", []string{"table", labelFamily}, nil)
	iptablesLast  = prometheus.NewDesc("kubeproxy_sync_proxy_rules_iptables_last", "Rules of iptables that the last sync wrote.", []string{"table", labelFamily}, nil)
)

// Describe implements prometheus.Collector.
func (*iptablesCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{iptablesTotal, iptablesLast} {
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
	rules(iptablesTotal, t.Total)
	rules(iptablesLast, t.Last)
}
