// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// health is the body of an answer (k8s.io/kubernetes v1.37,
// pkg/proxy/healthcheck). There, each address family has a proxier and a state of
// its own; here they are programmed together.
type health struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"` // of /healthz only
	Healthy      bool                    `json:"healthy"`                // of the proxy
	Status       map[string]familyHealth `json:"status,omitempty"`
}

type familyHealth struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

func (s *Server) healthz() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		h, eligible := s.health(), s.options.Proxy.NodeEligible()
		h.NodeEligible = &eligible
		// A node that has programmed nothing, as the API server does not answer or refuses, is not ready, so that
		// a rollout stops there.
		s.options.Metrics.Healthz(h.write(w, h.Healthy && eligible && !h.LastUpdated.IsZero()))
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		h := s.health()
		s.options.Metrics.Livez(h.write(w, h.Healthy))
	})
	mux.HandleFunc("GET /problems", func(w http.ResponseWriter, r *http.Request) {
		p, err := s.options.Problems(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(p) // the client may have disconnected
	})
	return mux
}

func (s *Server) health() *health {
	h := &health{
		CurrentTime: time.Now(),
		Healthy:     s.options.Proxy.Healthy(),
		LastUpdated: s.options.Proxy.Updated(),
	}
	if !h.LastUpdated.IsZero() {
		h.Status = map[string]familyHealth{}
		for _, f := range []desired.Family{desired.IPv4, desired.IPv6} {
			h.Status[f.String()] = familyHealth{h.LastUpdated, h.Healthy}
		}
	}
	return h
}

// write answers and returns the status. While it is good, the time of the last update is the
// current time, as in kube-proxy.
func (h *health) write(w http.ResponseWriter, good bool) (status int) {
	status = http.StatusServiceUnavailable
	if good {
		status = http.StatusOK
		h.LastUpdated = h.CurrentTime
	}
	body, err := json.Marshal(h)
	if err != nil {
		panic(err) // all fields can be encoded
	}
	Answer(w, status, "application/json", body)
	return status
}
