// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/observe/see"
	"k8s.io/apimachinery/pkg/types"
)

// row is a Service in the table.
type row struct {
	Namespace   string   `json:"namespace"`
	Name        string   `json:"name"`
	Addresses   []string `json:"addresses"`
	Used        int      `json:"used"` // by the pool that has the fewest
	Total       int      `json:"total"`
	Connections uint64   `json:"connections"`
	Rejected    uint64   `json:"rejectedPackets"`

	ConnectionRate float64 `json:"connectionsPerSecond"`
	ByteRate       float64 `json:"bytesPerSecond,omitempty"`
}

// rows are a page of the table.
type rows struct {
	At       time.Time `json:"at"`
	All      int       `json:"all"`
	Matching int       `json:"matching"`
	Page     int       `json:"page"` // from 0
	Size     int       `json:"size"`
	Rows     []row     `json:"rows"`
	// Accounting says that bytes are counted.
	Accounting bool `json:"accounting"`
}

// pageSize is the number of rows on a page.
const pageSize = 50

// selection says which rows to show.
type selection struct {
	search     string // words, all of which are in the name or an address
	by         string // one of columns
	descending bool
	page       int // from 0
}

// columns order rows.
var columns = map[string]func(a, b *row) int{
	"name":        func(*row, *row) int { return 0 },
	"endpoints":   func(a, b *row) int { return cmp.Compare(a.Used, b.Used) },
	"connections": func(a, b *row) int { return cmp.Compare(a.Connections, b.Connections) },
	"rate":        func(a, b *row) int { return cmp.Compare(a.ConnectionRate, b.ConnectionRate) },
	"bytes":       func(a, b *row) int { return cmp.Compare(a.ByteRate, b.ByteRate) },
	"rejected":    func(a, b *row) int { return cmp.Compare(a.Rejected, b.Rejected) },
}

// list has a row for each Service, and is kept for some seconds. Addresses and endpoints cost the proxy's loop
// some time, so they are found for the rows that are shown, and for all only if they are searched or sorted by.
type list struct {
	view *see.View

	mu        sync.Mutex
	at        time.Time
	names     []types.NamespacedName // memory for the next refresh
	all       []row                  // by name; its memory is used again, too
	found     []*row                 // in all, for one answer
	described bool                   // all have addresses and endpoints
}

func (l *list) refresh(ctx context.Context) error {
	const keep = 5 * time.Second // how long rows are shown again
	if time.Since(l.at) < keep {
		return nil
	}
	at := time.Now()
	names, err := l.view.Names(ctx, l.names[:0])
	l.names = names
	if err != nil {
		return err
	}
	traffic, err := l.view.Traffic(ctx, see.Recent)
	if err != nil {
		return err
	}
	all := slices.Grow(l.all[:0], len(names))
	for _, n := range names {
		t := traffic[n]
		all = append(all, row{
			Namespace: n.Namespace, Name: n.Name, Connections: t.Open, Rejected: t.Rejected,
			ConnectionRate: t.ConnectionRate, ByteRate: t.ByteRate,
		})
	}
	clear(all[len(all):cap(all)]) // of Services that exist no more
	l.all, l.at, l.described = all, at, false
	return nil
}

// describe adds the addresses and endpoints of rows.
func (l *list) describe(ctx context.Context, some []*row) error {
	if l.described || len(some) == 0 {
		return nil
	}
	q := see.Query{}
	if len(some) < len(l.all) {
		q.Only = map[types.NamespacedName]bool{}
	}
	rows := map[types.NamespacedName]*row{}
	for _, r := range some {
		n := types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
		rows[n] = r
		if q.Only != nil {
			q.Only[n] = true
		}
	}
	services, err := l.view.Services(ctx, q)
	for i := range services {
		s := &services[i]
		if r := rows[types.NamespacedName{Namespace: s.Namespace, Name: s.Name}]; r != nil {
			r.describe(s)
		}
	}
	l.described = err == nil && q.Only == nil
	return err
}

func (r *row) describe(s *see.Service) {
	r.Addresses, r.Used, r.Total = nil, max(0, s.Fewest()), 0
	for _, p := range s.Ports {
		r.Total = max(r.Total, p.Total)
		for _, f := range p.Frontends {
			r.Addresses = append(r.Addresses, f.Addresses()...)
		}
	}
}

// has reports whether a word is in the name or an address.
func (r *row) has(word string) bool {
	return strings.Contains(r.Namespace+"/"+r.Name, word) ||
		slices.ContainsFunc(r.Addresses, func(a string) bool { return strings.Contains(strings.ToLower(a), word) })
}

// page returns a page of the table. The list's memory is used again, so the rows are copies.
func (l *list) page(ctx context.Context, s selection) (*rows, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.by = cmp.Or(s.by, "name")
	order, ok := columns[s.by]
	if !ok {
		return nil, fmt.Errorf("sort: %q is none of %s", s.by, strings.Join(slices.Sorted(maps.Keys(columns)), ", "))
	}
	if err := l.refresh(ctx); err != nil {
		return nil, err
	}
	words := strings.Fields(strings.ToLower(s.search))
	if len(words) > 0 || s.by == "endpoints" {
		all := make([]*row, len(l.all))
		for i := range l.all {
			all[i] = &l.all[i]
		}
		if err := l.describe(ctx, all); err != nil {
			return nil, err
		}
	}
	found := slices.Grow(l.found[:0], len(l.all))
	for i := range l.all {
		r := &l.all[i]
		if !slices.ContainsFunc(words, func(word string) bool { return !r.has(word) }) {
			found = append(found, r)
		}
	}
	l.found = found
	if s.by == "name" && s.descending {
		slices.Reverse(found)
	}
	slices.SortStableFunc(found, func(a, b *row) int {
		if s.descending {
			a, b = b, a
		}
		return order(a, b)
	})
	last := max(0, (len(found)-1)/pageSize)
	result := &rows{At: l.at, All: len(l.all), Matching: len(found), Page: min(max(s.page, 0), last), Size: pageSize, Accounting: see.Accounts()}
	begin := result.Page * pageSize
	shown := found[begin:min(begin+pageSize, len(found))]
	if err := l.describe(ctx, shown); err != nil {
		return nil, err
	}
	result.Rows = make([]row, 0, len(shown))
	for _, r := range shown {
		result.Rows = append(result.Rows, *r)
	}
	return result, nil
}
