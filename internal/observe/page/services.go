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
	Ready       int      `json:"ready"` // of the port that has the fewest
	Total       int      `json:"total"`
	Connections uint64   `json:"connections"`
	Rejected    uint64   `json:"rejectedPackets"`

	ConnectionRate float64 `json:"connectionsPerSecond"`
	ByteRate       float64 `json:"bytesPerSecond"`
}

// rows are a page of the table.
type rows struct {
	At       time.Time `json:"at"`
	All      int       `json:"all"`
	Matching int       `json:"matching"`
	Page     int       `json:"page"` // from 0
	Size     int       `json:"size"`
	Rows     []*row    `json:"rows"`
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
	"endpoints":   func(a, b *row) int { return cmp.Compare(a.Ready, b.Ready) },
	"connections": func(a, b *row) int { return cmp.Compare(a.Connections, b.Connections) },
	"rate":        func(a, b *row) int { return cmp.Compare(a.ConnectionRate, b.ConnectionRate) },
	"bytes":       func(a, b *row) int { return cmp.Compare(a.ByteRate, b.ByteRate) },
	"rejected":    func(a, b *row) int { return cmp.Compare(a.Rejected, b.Rejected) },
}

// list has a row for each Service. The kernel walks its table of connections for it, so it is kept for
// some seconds. Addresses and endpoints cost the proxy's loop some time, so they are found for the rows
// that are shown, and for all only if they are searched or sorted by.
type list struct {
	view *see.View

	mu        sync.Mutex
	at        time.Time
	all       []*row // by name
	described bool   // all have addresses and endpoints
}

// keep is how long rows are shown again.
const keep = 5 * time.Second

func (l *list) refresh(ctx context.Context) error {
	if time.Since(l.at) < keep {
		return nil
	}
	at := time.Now()
	names, err := l.view.Names(ctx)
	if err != nil {
		return err
	}
	traffic, err := l.view.Traffic(ctx, see.Recent)
	if err != nil {
		return err
	}
	l.all, l.at, l.described = make([]*row, len(names)), at, false
	for i, n := range names {
		t := traffic[n]
		l.all[i] = &row{
			Namespace: n.Namespace, Name: n.Name, Connections: t.Open, Rejected: t.Rejected,
			ConnectionRate: t.ConnectionRate, ByteRate: t.ByteRate,
		}
	}
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
	r.Addresses, r.Ready, r.Total = nil, 0, 0
	for i, p := range s.Ports {
		if i == 0 || p.Ready < r.Ready {
			r.Ready, r.Total = p.Ready, p.Total
		}
		for _, f := range p.Frontends {
			r.Addresses = append(r.Addresses, f.Address)
		}
	}
}

// has reports whether a word is in the name or an address.
func (r *row) has(word string) bool {
	return strings.Contains(r.Namespace+"/"+r.Name, word) ||
		slices.ContainsFunc(r.Addresses, func(a string) bool { return strings.Contains(strings.ToLower(a), word) })
}

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
		if err := l.describe(ctx, l.all); err != nil {
			return nil, err
		}
	}
	found := slices.DeleteFunc(slices.Clone(l.all), func(r *row) bool {
		return slices.ContainsFunc(words, func(word string) bool { return !r.has(word) })
	})
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
	result := &rows{At: l.at, All: len(l.all), Matching: len(found), Page: min(max(s.page, 0), last), Size: pageSize}
	begin := result.Page * pageSize
	result.Rows = append([]*row{}, found[begin:min(begin+pageSize, len(found))]...)
	return result, l.describe(ctx, result.Rows)
}
