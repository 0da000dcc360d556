// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/prometheus/client_golang/prometheus"

// FastPath is what the fast path's metrics say.
type FastPath struct {
	Supported  bool   // the kernel can
	Offloaded  uint64 // times that a connection was offloaded
	Interfaces int    // that take part
	Hardware   bool   // connections are handed to network hardware
	Flushes    uint64 // times that all connections were sent back to the slow path
	Errors     uint64 // changes that failed
}

// OnFastPath has the fast path's numbers read whenever somebody asks for metrics.
func (m *Metrics) OnFastPath(read func() (FastPath, error)) {
	m.registry.MustRegister(&fastPathCollector{read})
}

type fastPathCollector struct{ read func() (FastPath, error) }

func fastPathDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("slipstream_fastpath_"+name, help, nil, nil)
}

var (
	fastPathSupported  = fastPathDesc("supported", "Whether the kernel has the fast path (flowtables): 1 or 0.")
	fastPathOffloads   = fastPathDesc("offloads_total", "Times that a connection was handed to the fast path, since its table was made.")
	fastPathInterfaces = fastPathDesc("interfaces", "Interfaces between which connections may take the fast path.")
	fastPathHardware   = fastPathDesc("hardware", "Whether connections are handed to network hardware: 1 or 0.")
	fastPathFlushes    = fastPathDesc("flushes_total", "Times that all connections were sent back to the slow path.")
	fastPathErrors     = fastPathDesc("errors_total", "Changes of the fast path that failed.")
)

// Describe implements prometheus.Collector.
func (c *fastPathCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{fastPathSupported, fastPathOffloads, fastPathInterfaces, fastPathHardware, fastPathFlushes, fastPathErrors} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *fastPathCollector) Collect(ch chan<- prometheus.Metric) {
	f, err := c.read()
	if err != nil {
		ch <- prometheus.NewInvalidMetric(fastPathSupported, err)
		return
	}
	gauge := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	counter := func(d *prometheus.Desc, v uint64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	gauge(fastPathSupported, oneIf(f.Supported))
	gauge(fastPathInterfaces, float64(f.Interfaces))
	gauge(fastPathHardware, oneIf(f.Hardware))
	counter(fastPathOffloads, f.Offloaded)
	counter(fastPathFlushes, f.Flushes)
	counter(fastPathErrors, f.Errors)
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
