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
)

// row is a Service in the table.
type row struct {
	Namespace string      `json:"namespace"`
	Name      string      `json:"name"`
	Addresses []string    `json:"addresses"`
	Ready     int         `json:"ready"`
	Total     int         `json:"total"`
	Traffic   see.Traffic `json:"traffic"`

	text string // that is searched
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
	"connections": func(a, b *row) int { return cmp.Compare(a.Traffic.Connections, b.Traffic.Connections) },
	"rate":        func(a, b *row) int { return cmp.Compare(connectionRate(a), connectionRate(b)) },
	"bytes":       func(a, b *row) int { return cmp.Compare(byteRate(a), byteRate(b)) },
	"rejected":    func(a, b *row) int { return cmp.Compare(value(a.Traffic.Rejected), value(b.Traffic.Rejected)) },
}

func connectionRate(r *row) float64 {
	if r.Traffic.Total == nil {
		return 0
	}
	return value(r.Traffic.Total.ConnectionRate)
}

func byteRate(r *row) float64 {
	if r.Traffic.Total == nil {
		return 0
	}
	return value(r.Traffic.Total.ByteRate)
}

func value[T float64 | uint64](p *T) T {
	if p == nil {
		return 0
	}
	return *p
}

// list has the rows of all Services. To make them costs the proxy's loop some time, so they are kept
// for some seconds.
type list struct {
	view *see.View

	mu  sync.Mutex
	at  time.Time
	all []*row // by name
}

// keep is how long rows are shown again.
const keep = 5 * time.Second

func (l *list) rows(ctx context.Context) ([]*row, time.Time, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.at) < keep {
		return l.all, l.at, nil
	}
	at := time.Now()
	services, err := l.view.Services(ctx, see.Query{Traffic: true})
	if err != nil {
		return nil, at, err
	}
	l.all, l.at = make([]*row, len(services)), at
	for i := range services {
		l.all[i] = newRow(&services[i])
	}
	return l.all, l.at, nil
}

func newRow(s *see.Service) *row {
	r := &row{Namespace: s.Namespace, Name: s.Name, Traffic: s.Sum()}
	r.Traffic.Endpoints = nil
	var addresses []string
	for i, p := range s.Ports {
		if i == 0 || p.Ready < r.Ready { // the port that has the fewest
			r.Ready, r.Total = p.Ready, p.Total
		}
		for _, f := range p.Frontends {
			addresses = append(addresses, f.Address)
		}
	}
	r.Addresses = addresses
	r.text = strings.ToLower(r.Namespace + "/" + r.Name + " " + strings.Join(addresses, " "))
	return r
}

func (l *list) page(ctx context.Context, s selection) (*rows, error) {
	s.by = cmp.Or(s.by, "name")
	order, ok := columns[s.by]
	if !ok {
		return nil, fmt.Errorf("sort: %q is none of %s", s.by, strings.Join(slices.Sorted(maps.Keys(columns)), ", "))
	}
	all, at, err := l.rows(ctx)
	if err != nil {
		return nil, err
	}
	var found []*row
	words := strings.Fields(strings.ToLower(s.search))
	for _, r := range all {
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(r.text, word) }) {
			found = append(found, r)
		}
	}
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
	result := &rows{At: at, All: len(all), Matching: len(found), Page: min(max(s.page, 0), last), Size: pageSize}
	begin := result.Page * pageSize
	result.Rows = append([]*row{}, found[begin:min(begin+pageSize, len(found))]...)
	return result, nil
}
