// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// MostServices is the number of Services with a time series each: those with most
// flows. All others share one.
const MostServices = 50

// Names in the place of a Service's. They are no valid names.
const (
	OtherServices = "(other)" // all that are not among the MostServices
	NoService     = "(none)"  // flows that belong to no Service
)

// To count flows, the kernel walks its table of connections. That is done for a scrape
// only, at most every flowsPeriod, and at most every flowsRest times its duration: so
// it costs at most 2 % of a CPU. Scrapes in between get the last numbers.
const (
	flowsPeriod = 10 * time.Second
	flowsRest   = 50
)

// CountFlows returns the number of connections on the fast path by Service. Those of no
// Service have the empty name.
type CountFlows func() (map[types.NamespacedName]int, error)

// OnFlows serves the number of connections on the fast path by Service.
func (m *Metrics) OnFlows(count CountFlows) {
	m.registry.MustRegister(&flowsCollector{count: count, now: time.Now})
}

type flowsCollector struct {
	count CountFlows
	now   func() time.Time

	mu       sync.Mutex
	notUntil time.Time
	last     []serviceFlows
	failed   error
}

// serviceFlows is the number of flows of a Service.
type serviceFlows struct {
	namespace, name string
	flows           int
}

var fastPathFlows = prometheus.NewDesc("slipstream_fastpath_flows",
	"Connections on the fast path now, by Service.", []string{"namespace", "service"}, nil)

// Describe implements prometheus.Collector.
func (*flowsCollector) Describe(ch chan<- *prometheus.Desc) { ch <- fastPathFlows }

// Collect implements prometheus.Collector.
func (c *flowsCollector) Collect(ch chan<- prometheus.Metric) {
	all, err := c.read()
	if err != nil {
		ch <- prometheus.NewInvalidMetric(fastPathFlows, err)
		return
	}
	for _, s := range all {
		ch <- prometheus.MustNewConstMetric(fastPathFlows, prometheus.GaugeValue, float64(s.flows), s.namespace, s.name)
	}
}

// read returns the last numbers, or new ones when they are due.
func (c *flowsCollector) read() ([]serviceFlows, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	start := c.now()
	if start.Before(c.notUntil) {
		return c.last, c.failed
	}
	byService, err := c.count()
	c.last, c.failed = most(byService, MostServices), err
	end := c.now()
	c.notUntil = end.Add(max(flowsPeriod, flowsRest*end.Sub(start)))
	return c.last, c.failed
}

// most returns the n Services with most flows, the sum of the others, and the flows of
// no Service.
func most(byService map[types.NamespacedName]int, n int) (out []serviceFlows) {
	var all []serviceFlows
	for name, flows := range byService {
		if name.Name == "" {
			out = append(out, serviceFlows{name: NoService, flows: flows})
			continue
		}
		all = append(all, serviceFlows{name.Namespace, name.Name, flows})
	}
	slices.SortFunc(all, func(a, b serviceFlows) int {
		return cmp.Or(cmp.Compare(b.flows, a.flows), cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
	})
	n = min(n, len(all))
	other := 0
	for _, s := range all[n:] {
		other += s.flows
	}
	out = append(out, all[:n]...)
	if other > 0 {
		out = append(out, serviceFlows{name: OtherServices, flows: other})
	}
	return out
}
