// SPDX-License-Identifier: Apache-2.0

// Package page serves a web page that shows a running proxy: its status, the duration of its changes, its
// Services, and the way of a connection. It reads the same answers as the commands (package see) and
// changes nothing. Assets are embedded, and the page loads nothing from elsewhere.
package page

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/observe/see"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
)

//go:embed assets
var assets embed.FS

// Handler serves the page of a running proxy.
func Handler(v *see.View) http.Handler {
	files, err := fs.Sub(assets, "assets")
	if err != nil {
		panic(err) // the folder is embedded
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(files))
	answer(mux, "/data/status", func(ctx context.Context, _ *http.Request) (*status, error) {
		s, err := v.Status(ctx)
		if err != nil {
			return nil, err
		}
		return &status{s, s.Facts()}, nil
	})
	answer(mux, "/data/changes", func(ctx context.Context, _ *http.Request) (all []proxy.Programming, err error) { // the oldest first
		err = v.Proxy.Inspect(ctx, func(i *proxy.Inspection) { all = slices.Clone(i.Programmed) })
		return all, err
	})
	l := list{view: v}
	answer(mux, "/data/services", func(ctx context.Context, r *http.Request) (*rows, error) {
		q := r.URL.Query()
		page, _ := strconv.Atoi(q.Get("page")) // 0 for text that is not a number
		return l.page(ctx, selection{search: q.Get("search"), by: q.Get("sort"), descending: q.Has("descending"), page: page})
	})
	answer(mux, "/data/services/{namespace}/{name}", func(ctx context.Context, r *http.Request) (*see.Service, error) {
		q := see.Query{Namespace: r.PathValue("namespace"), Name: r.PathValue("name"), Endpoints: true, Traffic: true, Age: see.Recent}
		all, err := v.Services(ctx, q)
		if err != nil {
			return nil, err
		}
		if len(all) == 0 {
			return nil, fmt.Errorf("no Service %s/%s is programmed", q.Namespace, q.Name)
		}
		return &all[0], nil
	})
	answer(mux, "/data/explain", func(ctx context.Context, r *http.Request) (*see.Explanation, error) {
		return v.Explain(ctx, see.Question{From: r.URL.Query().Get("from"), To: r.URL.Query().Get("to")})
	})
	return guard(mux)
}

type status struct {
	*see.Status
	Facts []see.Fact `json:"facts"`
}

// atOnce is how many answers of one kind are collected at once. Further questions are refused: an
// explanation reads the whole content of the kernel.
const atOnce = 4

// answer serves the result of get as see.Answer does.
func answer[T any](mux *http.ServeMux, path string, get func(context.Context, *http.Request) (T, error)) {
	places := make(chan struct{}, atOnce)
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		default:
			http.Error(w, "too many such questions at once: ask again", http.StatusTooManyRequests)
			return
		}
		w.Header().Set("Cache-Control", "no-store")
		see.Answer(w, r, func(ctx context.Context) (T, error) { return get(ctx, r) })
	})
}

// guard keeps other sites from reading the page in a visitor's browser. A site whose name resolves to
// this address (DNS rebinding) sends its name as the host.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]") // of IPv6 at port 80
		if _, err := netip.ParseAddr(host); err != nil && host != "localhost" {
			http.Error(w, "use an IP address or localhost as the host in the URL", http.StatusForbidden)
			return
		}
		// Answers cost much, and other sites could not read them.
		if site := r.Header.Get("Sec-Fetch-Site"); strings.HasPrefix(r.URL.Path, "/data/") && (site == "cross-site" || site == "same-site") {
			http.Error(w, "not for other sites", http.StatusForbidden)
			return
		}
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		next.ServeHTTP(w, r)
	})
}
