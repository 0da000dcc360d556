// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// Traffic is what a Service carries. The others are totals, which can start from 0 again.
type Traffic struct {
	Open                        float64 // connections now
	Connections, Packets, Bytes float64
	Rejected                    float64 // packets
}

// grow adds what a total has grown by.
func (t *Traffic) grow(before, now Traffic) {
	if now.Connections < before.Connections || now.Bytes < before.Bytes {
		before.Connections, before.Packets, before.Bytes = 0, 0, 0
	}
	if now.Rejected < before.Rejected {
		before.Rejected = 0
	}
	t.Rejected += now.Rejected - before.Rejected
	t.Open += now.Open
	t.Connections += now.Connections - before.Connections
	t.Packets += max(now.Packets-before.Packets, 0)
	t.Bytes += now.Bytes - before.Bytes
}

// traffic has the time series of Services. A Service keeps its own as long as it exists, so
// that no series starts again because another Service carries more.
type traffic struct {
	mu    sync.Mutex
	seen  map[types.NamespacedName]Traffic  // the last totals
	own   map[types.NamespacedName]*Traffic // at most MostServices
	other Traffic
}

// update adds new totals of all Services.
func (t *traffic) update(all map[types.NamespacedName]Traffic) {
	gone := func(name types.NamespacedName) bool { _, is := all[name]; return !is }
	maps.DeleteFunc(t.own, func(name types.NamespacedName, _ *Traffic) bool { return gone(name) })
	maps.DeleteFunc(t.seen, func(name types.NamespacedName, _ Traffic) bool { return gone(name) })
	names := slices.SortedFunc(maps.Keys(all), func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(all[b].Connections, all[a].Connections), cmp.Compare(a.String(), b.String()))
	})
	t.other.Open = 0
	for _, name := range names {
		to, now := t.own[name], all[name]
		switch {
		case to != nil:
			to.Open = 0
		case len(t.own) < MostServices && now != Traffic{}:
			to = &Traffic{}
			t.own[name] = to
		default:
			to = &t.other
		}
		to.grow(t.seen[name], now)
		t.seen[name] = now
	}
}

// OnTraffic serves what Services carry. read is called on a scrape only, as rarely as that of
// OnFlows. Scrapes in between cost no more than the series that they send.
func (m *Metrics) OnTraffic(read func() (map[types.NamespacedName]Traffic, error)) {
	var (
		t = traffic{seen: map[types.NamespacedName]Traffic{}, own: map[types.NamespacedName]*Traffic{}}
		r = rarely[struct{}]{now: time.Now, read: func() (struct{}, error) {
			all, err := read()
			if err == nil {
				t.update(all)
			}
			return struct{}{}, err
		}}
	)
	m.registry.MustRegister(onScrape(func(to scrape) error {
		t.mu.Lock()
		defer t.mu.Unlock()
		if _, err := r.get(); err != nil {
			return err
		}
		series := func(namespace, service string, s Traffic) {
			const prefix = "slipstream_service_"
			of := []string{"namespace", namespace, "service", service}
			to.gauge(prefix+"connections", "Connections to the Service that conntrack has now.", s.Open, of...)
			to.counter(prefix+"connections_total", "Connections to the Service that began.", s.Connections, of...)
			to.counter(prefix+"packets_total", "Packets of connections to the Service, of both directions.", s.Packets, of...)
			to.counter(prefix+"bytes_total", "Bytes of connections to the Service, of both directions, from the IP header on.", s.Bytes, of...)
			to.counter(prefix+"rejected_packets_total", "Packets to the Service that were refused or dropped.", s.Rejected, of...)
		}
		for name, s := range t.own {
			series(name.Namespace, name.Name, *s)
		}
		series("", OtherServices, t.other)
		return nil
	}))
}

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
