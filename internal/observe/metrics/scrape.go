// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// onScrape is a collector whose values are read on each scrape. If read returns an error,
// the scrape lacks them.
type onScrape struct {
	descs []*prometheus.Desc
	read  func(send send) error
}

// send sends a value to a scrape.
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
	Supported  bool   // the kernel has flowtables
	Offloaded  uint64 // times that a connection was offloaded
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
		supported  = desc("supported", "Whether the kernel has flowtables: 1 or 0.")
		offloads   = desc("offloads_total", "Connections offloaded to the fast path since its table was created.")
		interfaces = desc("interfaces", "Interfaces between which connections may take the fast path.")
		hardware   = desc("hardware", "Whether connections are offloaded to network hardware: 1 or 0.")
		flushes    = desc("flushes_total", "Flushes of all connections to the slow path.")
		errs       = desc("errors_total", "Failures to program the fast path.")
	)
	m.registry.MustRegister(&onScrape{[]*prometheus.Desc{supported, offloads, interfaces, hardware, flushes, errs}, func(send send) error {
		f, err := read()
		if err != nil {
			return err
		}
		send(supported, prometheus.GaugeValue, oneIf(f.Supported))
		send(interfaces, prometheus.GaugeValue, float64(f.Interfaces))
		send(hardware, prometheus.GaugeValue, oneIf(f.Hardware))
		send(offloads, prometheus.CounterValue, float64(f.Offloaded))
		send(flushes, prometheus.CounterValue, float64(f.Flushes))
		send(errs, prometheus.CounterValue, float64(f.Errors))
		return nil
	}})
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// OnNFTables serves the number of connections without session affinity, by desired.Family.
func (m *Metrics) OnNFTables(read func() ([2]uint64, error)) {
	unrecorded := prometheus.NewDesc("slipstream_session_affinity_unrecorded_total",
		"Connections whose client got no session affinity because there were too many clients.", []string{labelFamily}, nil)
	m.registry.MustRegister(&onScrape{[]*prometheus.Desc{unrecorded}, func(send send) error {
		n, err := read()
		for f := range n {
			if err == nil {
				send(unrecorded, prometheus.CounterValue, float64(n[f]), desired.Family(f).String())
			}
		}
		return err
	}})
}

// IPTables holds the numbers of rules in iptables mode.
type IPTables struct {
	// Total is the number of rules by table ("filter", "nat"), Last the number
	// of those that the last sync wrote.
	Total, Last [2]map[string]int // by desired.Family
}

// OnIPTables serves the numbers of rules.
func (m *Metrics) OnIPTables(read func() IPTables) {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("kubeproxy_sync_proxy_rules_iptables_"+name, help, []string{"table", labelFamily}, nil)
	}
	total, last := desc("total", "Slipstream's rules of iptables."), desc("last", "Rules of iptables that the last sync wrote.")
	m.registry.MustRegister(&onScrape{[]*prometheus.Desc{total, last}, func(send send) error {
		n := read()
		for d, byFamily := range map[*prometheus.Desc][2]map[string]int{total: n.Total, last: n.Last} {
			for f, tables := range byFamily {
				for table, rules := range tables {
					send(d, prometheus.GaugeValue, float64(rules), table, desired.Family(f).String())
				}
			}
		}
		return nil
	}})
}
