// SPDX-License-Identifier: Apache-2.0

package server

import (
	"io"
	"net/http"
	"net/http/pprof"
	"strings"

	"k8s.io/component-base/logs"
	"k8s.io/klog/v2"
)

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

// setVerbosity sets the log's verbosity.
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
	klog.InfoS("Log verbosity changed", "v", string(body))
	writeText(w, http.StatusOK, answer)
}
