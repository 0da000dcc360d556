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

// MostServices is the number of Services, those with most flows, that have a time series
// each. All others share one.
const MostServices = 50

// Values of the label service that are not valid names of Services.
const (
	OtherServices = "(other)" // all that are not among the MostServices
	NoService     = "(none)"  // flows that belong to no Service
)

// To count flows, the kernel walks its table of connections. That happens on a scrape
// only, at most every flowsPeriod, and at most every flowsRest times its duration, so that
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
	m.registry.MustRegister((&flowsReader{count: count, now: time.Now}).collector())
}

// flowsReader reads the number of connections, or returns the last result.
type flowsReader struct {
	count CountFlows
	now   func() time.Time

	mu       sync.Mutex
	notUntil time.Time
	last     []serviceFlows
	err      error
}

// serviceFlows is the number of flows of a Service.
type serviceFlows struct {
	namespace, name string
	flows           int
}

func (r *flowsReader) collector() prometheus.Collector {
	desc := prometheus.NewDesc("slipstream_fastpath_flows", "Connections on the fast path now, by Service.", []string{"namespace", "service"}, nil)
	return &onScrape{[]*prometheus.Desc{desc}, func(send send) error {
		all, err := r.read()
		if err != nil {
			return err
		}
		for _, s := range all {
			send(desc, prometheus.GaugeValue, float64(s.flows), s.namespace, s.name)
		}
		return nil
	}}
}

// read returns the last numbers, or new ones when they are due.
func (r *flowsReader) read() ([]serviceFlows, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	start := r.now()
	if start.Before(r.notUntil) {
		return r.last, r.err
	}
	byService, err := r.count()
	r.last, r.err = most(byService, MostServices), err
	end := r.now()
	r.notUntil = end.Add(max(flowsPeriod, flowsRest*end.Sub(start)))
	return r.last, r.err
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
