// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"fmt"
	"net/http"

	"k8s.io/component-base/metrics/prometheus/slis"
	"k8s.io/klog/v2"
)

// metrics returns the handler of the metrics address.
func (s *Server) metrics() http.Handler {
	p := &paths{}
	p.Handle("/metrics", s.options.Metrics.Handler())
	p.text("/proxyMode", func(*http.Request) string { return s.options.Mode })
	p.HandleFunc("/configz", s.configz)
	p.text("/healthz", ping)
	p.text("/healthz/ping", func(*http.Request) string { return "ok" })
	slis.SLIMetricsWithReset{}.Install(p)
	p.text("/flagz", s.flagz)
	if s.options.Profiling {
		addDebug(&p.ServeMux)
	}
	p.text("/statusz", s.statusz(p.listed))
	return p
}

// paths is a ServeMux that records its paths.
type paths struct {
	http.ServeMux
	listed []string
}

// Handle registers a handler and records its path.
func (p *paths) Handle(path string, h http.Handler) {
	p.listed = append(p.listed, path)
	p.ServeMux.Handle(path, h)
}

// HandleFunc is Handle for a function.
func (p *paths) HandleFunc(path string, h func(http.ResponseWriter, *http.Request)) {
	p.Handle(path, http.HandlerFunc(h))
}

// text answers with plain text.
func (p *paths) text(path string, answer func(*http.Request) string) {
	p.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		writeText(w, http.StatusOK, answer(r))
	})
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = fmt.Fprint(w, text) // the client may have disconnected
}

// configz shows the configurations: an object with one member for each API group.
func (s *Server) configz(w http.ResponseWriter, _ *http.Request) {
	all := s.options.Configz
	if all == nil {
		all = map[string]any{}
	}
	body, err := json.Marshal(all)
	if err != nil {
		klog.ErrorS(err, "Could not show the configuration")
		http.Error(w, "error marshaling json: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(body)
}

// ping says that this process answers, in the words of every part of Kubernetes.
func ping(r *http.Request) string {
	// It never fails, so neither does this.
	_ = slis.ObserveHealthcheck(r.Context(), "ping", "healthz", slis.Success)
	if r.URL.Query().Has("verbose") {
		return "[+]ping ok\nhealthz check passed\n"
	}
	return "ok"
}
