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

// MostServices is the number of Services, those with the largest numbers, that have a time
// series each. All others share one.
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
	m.registry.MustRegister(flowsCollector(count, time.Now))
}

// rarely reads something about all connections, or returns the last result.
type rarely[T any] struct {
	read func() (T, error)
	now  func() time.Time

	mu       sync.Mutex
	notUntil time.Time
	last     T
	err      error
}

// ofService is a number of a Service.
type ofService struct {
	namespace, name string
	count           int
}

func flowsCollector(count CountFlows, now func() time.Time) prometheus.Collector {
	r := rarely[map[types.NamespacedName]int]{read: count, now: now}
	return onScrape(func(s scrape) error {
		all, err := r.get()
		if err != nil {
			return err
		}
		for _, n := range most(all, MostServices) {
			s.gauge("slipstream_fastpath_flows", "Connections on the fast path now, by Service.", float64(n.count), "namespace", n.namespace, "service", n.name)
		}
		return nil
	})
}

// get returns the last result, or a new one when it is due.
func (r *rarely[T]) get() (T, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	start := r.now()
	if start.Before(r.notUntil) {
		return r.last, r.err
	}
	r.last, r.err = r.read()
	end := r.now()
	r.notUntil = end.Add(max(flowsPeriod, flowsRest*end.Sub(start)))
	return r.last, r.err
}

// most returns the n Services with the largest numbers, the sum of the others, and the number
// of no Service.
func most(byService map[types.NamespacedName]int, n int) (out []ofService) {
	var all []ofService
	for name, count := range byService {
		if name.Name == "" {
			out = append(out, ofService{name: NoService, count: count})
			continue
		}
		all = append(all, ofService{name.Namespace, name.Name, count})
	}
	slices.SortFunc(all, func(a, b ofService) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
	})
	n = min(n, len(all))
	other := 0
	for _, s := range all[n:] {
		other += s.count
	}
	out = append(out, all[:n]...)
	if other > 0 {
		out = append(out, ofService{name: OtherServices, count: other})
	}
	return out
}
