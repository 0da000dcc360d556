// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/flows"
)

// MostServices is how many Services the flows on the fast path are told of one by
// one: those that have most. All others are one, so that a node with many Services
// does not have many time series.
const MostServices = 50

// In the place of a Service's name: no Service can be named so.
const (
	OtherServices = "(other)" // all that are not among the MostServices
	NoService     = "(none)"  // what was connected to is no Service's, or no more
)

// The kernel walks its whole table of connections to find those on the fast path.
// That is done when somebody asks for metrics and at no other time, and not again
// until flowsPeriod is over; nor sooner than flowsRest times as long as it took, so
// that it costs 2 % of a CPU at most. Until then the same is told again.
const (
	flowsPeriod = 10 * time.Second
	flowsRest   = 50
)

// OnFlows tells of the connections that are on the fast path, by Service. List is
// the Each of a flows.Conn, which must be for this alone; service says whose a
// frontend is, as a fastpath.Controller does.
func (m *Metrics) OnFlows(list func(visit func(*flows.Flow)) error, service func(desired.FrontendKey) (desired.ServicePort, bool)) {
	m.registry.MustRegister(&flowsCollector{list: list, service: service, now: time.Now})
}

type flowsCollector struct {
	list    func(func(*flows.Flow)) error
	service func(desired.FrontendKey) (desired.ServicePort, bool)
	now     func() time.Time

	mu       sync.Mutex
	notUntil time.Time
	last     []serviceFlows
	failed   error
}

// serviceFlows is how many flows a Service has.
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

// read is what was last found, or what there is now when that is due.
func (c *flowsCollector) read() ([]serviceFlows, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	start := c.now()
	if start.Before(c.notUntil) {
		return c.last, c.failed
	}
	byFrontend := map[desired.FrontendKey]int{}
	c.failed = c.list(func(f *flows.Flow) { byFrontend[f.Frontend()]++ })
	c.last = most(c.byService(byFrontend), MostServices)
	end := c.now()
	c.notUntil = end.Add(max(flowsPeriod, flowsRest*end.Sub(start)))
	return c.last, c.failed
}

// byService adds up the frontends of each Service.
func (c *flowsCollector) byService(byFrontend map[desired.FrontendKey]int) []serviceFlows {
	type name struct{ namespace, name string }
	sums := map[name]int{}
	for k, n := range byFrontend {
		of := name{"", NoService}
		if s, ok := c.service(k); ok {
			of = name{s.Namespace, s.Name}
		}
		sums[of] += n
	}
	all := make([]serviceFlows, 0, len(sums))
	for n, sum := range sums {
		all = append(all, serviceFlows{n.namespace, n.name, sum})
	}
	return all
}

// most are the n Services with most flows, and the rest as one. What is of no
// Service does not count as one.
func most(all []serviceFlows, n int) []serviceFlows {
	slices.SortFunc(all, func(a, b serviceFlows) int {
		return cmp.Or(cmp.Compare(b.flows, a.flows), cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
	})
	var out []serviceFlows
	other := serviceFlows{name: OtherServices}
	for _, s := range all {
		switch {
		case s.name == NoService:
			out = append(out, s)
		case n > 0:
			out = append(out, s)
			n--
		default:
			other.flows += s.flows
		}
	}
	if other.flows > 0 {
		out = append(out, other)
	}
	return out
}
