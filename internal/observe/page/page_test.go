// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/observe/see"
)

// services makes rows of Services of which number i has i ready endpoints and i new connections a second.
func services(n int) (all []row) {
	for i := range n {
		s := see.Service{
			ServiceView: desired.ServiceView{Namespace: fmt.Sprintf("team-%d", i%2), Name: fmt.Sprintf("web-%03d", i), Ports: []desired.PortView{
				{Pools: []desired.PoolView{{Backends: i + 1}}, Total: i + 1, Frontends: []desired.FrontendView{{Address: fmt.Sprintf("10.96.0.%d:80/TCP", i)}}},
				{Ready: i + 1, Pools: []desired.PoolView{{Backends: i}}, Total: i + 1},
			}},
		}
		r := row{Namespace: s.Namespace, Name: s.Name, ConnectionRate: float64(i), ByteRate: -float64(i)}
		r.describe(&s)
		all = append(all, r)
	}
	return all
}

func TestPages(t *testing.T) {
	l := list{at: time.Now().Add(time.Hour), all: services(120), described: true}
	for _, test := range []struct {
		selection
		first          string
		matching, page int
		rows           int
	}{
		{selection{}, "web-000", 120, 0, 50},
		{selection{descending: true}, "web-119", 120, 0, 50},
		{selection{page: 2}, "web-100", 120, 2, 20},
		{selection{page: 7}, "web-100", 120, 2, 20},
		{selection{page: -1}, "web-000", 120, 0, 50},
		{selection{by: "rate", descending: true}, "web-119", 120, 0, 50},
		{selection{by: "bytes"}, "web-119", 120, 0, 50},
		{selection{by: "endpoints", descending: true}, "web-119", 120, 0, 50},
		{selection{search: "TEAM-1 web"}, "web-001", 60, 0, 50},
		{selection{search: "10.96.0.77:"}, "web-077", 1, 0, 1},
		{selection{search: "nothing", page: 3}, "", 0, 0, 0},
	} {
		r, err := l.page(t.Context(), test.selection)
		if err != nil {
			t.Fatal(err)
		}
		first := ""
		if len(r.Rows) > 0 {
			first = r.Rows[0].Name
		}
		if first != test.first || r.Matching != test.matching || r.Page != test.page || len(r.Rows) != test.rows || r.All != 120 {
			t.Errorf("%+v: first %q, %d matching, page %d, %d rows", test, first, r.Matching, r.Page, len(r.Rows))
		}
	}
	if _, err := l.page(t.Context(), selection{by: "colour"}); err == nil || !strings.Contains(err.Error(), `sort: "colour" is none of bytes, connections`) {
		t.Error(err)
	}
	if !slices.IsSortedFunc(l.all, func(a, b row) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("a selection has reordered the list")
	}
	if r := l.all[5]; r.Used != 5 || r.Total != 6 {
		t.Errorf("%d of %d endpoints, want those that the pool with the fewest uses", r.Used, r.Total)
	}
}

// Other sites cannot read the page, and nobody can change anything.
func TestGuard(t *testing.T) {
	h := Handler(&see.View{})
	for _, test := range []struct {
		method, host string
		want         int
	}{
		{"GET", "127.0.0.1:10280", http.StatusOK},
		{"GET", "[::1]:10280", http.StatusOK},
		{"GET", "192.0.2.7", http.StatusOK},
		{"GET", "[::1]", http.StatusOK},
		{"GET", "localhost:10280", http.StatusOK},
		{"GET", "example.com:10280", http.StatusForbidden},
		{"GET", "127.0.0.1.example.com", http.StatusForbidden},
		{"POST", "127.0.0.1:10280", http.StatusMethodNotAllowed},
	} {
		r := httptest.NewRequestWithContext(context.Background(), test.method, "/", nil)
		r.Host = test.host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != test.want {
			t.Errorf("%s of %s: status %d, want %d", test.method, test.host, w.Code, test.want)
		}
		if test.want == http.StatusOK && !strings.Contains(w.Header().Get("Content-Security-Policy"), "script-src 'self'") {
			t.Errorf("the policy of content is %q", w.Header().Get("Content-Security-Policy"))
		}
	}
}

// TestCrossSite checks that the pages of other sites in a visitor's browser cannot have the proxy collect
// answers, while links to the page work.
func TestCrossSite(t *testing.T) {
	h := Handler(&see.View{})
	for _, test := range []struct {
		path, site string
		refused    bool
	}{
		{"/", "", false}, {"/", "cross-site", false}, {"/data/none", "", false}, {"/data/none", "same-origin", false}, {"/data/none", "none", false},
		{"/data/none", "cross-site", true}, {"/data/none", "same-site", true},
	} {
		r := httptest.NewRequestWithContext(t.Context(), "GET", test.path, nil)
		r.Host = "127.0.0.1:10280"
		if test.site != "" {
			r.Header.Set("Sec-Fetch-Site", test.site)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if refused := w.Code == http.StatusForbidden; refused != test.refused {
			t.Errorf("%s from %q: status %d", test.path, test.site, w.Code)
		}
	}
}
