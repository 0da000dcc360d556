// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/pprof"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"k8s.io/component-base/logs"
	"k8s.io/component-base/metrics/prometheus/slis"
	"k8s.io/klog/v2"
)

// metrics returns the handler of the metrics address.
func (s *Server) metrics(log klog.Logger) http.Handler {
	p := &paths{}
	p.Handle("/metrics", s.options.Metrics.Handler(log))
	p.text("/proxyMode", func(*http.Request) string { return s.options.Mode })
	p.Handle("/configz", http.HandlerFunc(s.configz))
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

func (p *paths) text(path string, answer func(*http.Request) string) {
	p.Handle(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		writeText(w, http.StatusOK, answer(r))
	}))
}

func writeText(w http.ResponseWriter, status int, text string) {
	Answer(w, status, "text/plain; charset=utf-8", []byte(text))
}

// Answer answers a request with a body of a media type.
func Answer(w http.ResponseWriter, status int, media string, body []byte) {
	w.Header().Set("Content-Type", media)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may have disconnected
}

// configz shows the configurations: an object with one member for each API group.
func (s *Server) configz(w http.ResponseWriter, r *http.Request) {
	body, err := json.Marshal(s.options.Configz)
	if err != nil {
		klog.FromContext(r.Context()).Error(err, "Could not show the configuration")
		http.Error(w, "error marshaling json: "+err.Error(), http.StatusInternalServerError)
		return
	}
	Answer(w, http.StatusOK, "application/json", body)
}

// ping answers as in all Kubernetes components.
func ping(r *http.Request) string {
	// It returns no error.
	_ = slis.ObserveHealthcheck(r.Context(), "ping", "healthz", slis.Success)
	if r.URL.Query().Has("verbose") {
		return "[+]ping ok\nhealthz check passed\n"
	}
	return "ok"
}

// notForMachines is the header that KEP-4827 and KEP-4828 require.
const notForMachines = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n\n"

// flagz shows the flags (KEP-4828), as text only.
func (s *Server) flagz(*http.Request) string {
	var b strings.Builder
	b.WriteString("\nslipstream flagz\n" + notForMachines)
	for _, name := range slices.Sorted(maps.Keys(s.options.Flags)) {
		fmt.Fprintf(&b, "%s=%s\n", name, s.options.Flags[name])
	}
	return b.String()
}

// statusz shows the version, the start time and the paths (KEP-4827), as text only.
func (s *Server) statusz(listed []string) func(*http.Request) string {
	listed = slices.Sorted(slices.Values(listed))
	return func(*http.Request) string {
		now := time.Now()
		return fmt.Sprintf("\nslipstream statusz\n%sStarted: %s\nUp: %s\nGo version: %s\nBinary version: %s\nKubernetes version: %s.%s\nMode: %s\nPaths: %s\n",
			notForMachines, s.started.UTC().Format(time.RFC1123), now.Sub(s.started).Round(time.Second), runtime.Version(), s.options.Version,
			metrics.KubernetesMajor, metrics.KubernetesMinor, s.options.Mode, strings.Join(listed, " "))
	}
}

// addDebug serves profiles, and an endpoint to change the log's verbosity:
//
//	curl -X PUT -d 4 http://127.0.0.1:10249/debug/flags/v
func addDebug(mux *http.ServeMux) {
	mux.Handle("/debug/pprof", http.RedirectHandler("/debug/pprof/", http.StatusFound))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)

	index := func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "/debug/flags/v\n") }
	mux.HandleFunc("/debug/flags", index)
	mux.HandleFunc("/debug/flags/", index)
	mux.HandleFunc("/debug/flags/v", setVerbosity)
}

func setVerbosity(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPut {
		writeText(w, http.StatusNotAcceptable, "unsupported http method")
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 16))
	if err != nil {
		writeText(w, http.StatusBadRequest, "error reading request body: "+err.Error())
		return
	}
	answer, err := logs.GlogSetter(strings.TrimSpace(string(body)))
	if err != nil {
		writeText(w, http.StatusBadRequest, err.Error())
		return
	}
	klog.FromContext(r.Context()).Info("Log verbosity changed", "v", string(body))
	writeText(w, http.StatusOK, answer)
}
