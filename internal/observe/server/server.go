// SPDX-License-Identifier: Apache-2.0

// Package server answers kube-proxy's HTTP endpoints. On the metrics address:
// /metrics, /proxyMode, /configz, /healthz (that this process answers, nothing
// more), /metrics/slis, /flagz, /statusz and, if profiling is on, /debug/pprof/ and
// /debug/flags/v. On the healthz address: /healthz (whether this node accepts traffic) and
// /livez (whether this proxy works). Responses are those of kube-proxy v1.37. Beside these, /problems there has
// what is wrong now, in a line for 'kubectl get --raw'.
package server

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/observe/events"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"k8s.io/klog/v2"
)

// Proxy is the source of the responses on the healthz address: a proxy.Proxy. Its methods
// are called for each request, by several goroutines.
type Proxy interface {
	// Healthy reports whether no change has been pending for too long.
	Healthy() bool
	// NodeEligible reports whether load balancers may send traffic to this node.
	NodeEligible() bool
	// Updated returns when the kernel was last up to date; zero before the first time.
	Updated() time.Time
}

// Options configure a Server. Addresses are host and port to listen on; 0.0.0.0 and [::] both mean all
// addresses of both families. Nothing is served where one is empty.
type Options struct {
	HealthzAddress string
	MetricsAddress string
	PageAddress    string
	Page           http.Handler

	CertFile, KeyFile string    // if set, for TLS on the addresses of metrics and of the page
	Reviewer          *Reviewer // says who may read them; nil for all
	HardFail          bool      // Run returns an error if an address cannot be served, in place of retrying

	Profiling bool              // serves /debug/
	Mode      string            // the answer of /proxyMode: "nftables", "iptables" or "ipvs"
	Version   string            // for /statusz
	Configz   map[string]any    // configurations to show, by API group; encoded for each answer, so they must not change
	Flags     map[string]string // the command line's, by name, for /flagz

	Metrics *metrics.Metrics
	Proxy   Proxy
	Events  events.Recorder // records addresses that cannot be listened on

	Problems func(context.Context) (any, error)                  // returns the answer of /problems
	Listen   func(network, address string) (net.Listener, error) // net.Listen if nil
}

// Server serves kube-proxy's HTTP endpoints. It is used once.
type Server struct {
	options Options
	retry   time.Duration
	started time.Time
}

// New makes a Server; it panics without Metrics or, with a healthz address, without
// a Proxy.
func New(o Options) *Server {
	if o.Metrics == nil || o.Proxy == nil && o.HealthzAddress != "" {
		panic("server: Metrics or Proxy is missing")
	}
	if o.Listen == nil {
		o.Listen = net.Listen
	}
	const retryPeriod = 5 * time.Second // the pause after a failure, as in kube-proxy
	return &Server{options: o, retry: retryPeriod, started: time.Now()}
}

// Run serves until ctx ends, and then returns nil. All listeners are closed when it
// returns.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all []*endpoint
	add := func(name, address, reason string, h http.Handler) {
		if address != "" {
			all = append(all, &endpoint{name: name, address: address, reason: reason, handler: h})
		}
	}
	add("healthz", s.options.HealthzAddress, events.FailedToStartProxierHealthcheck, s.healthz())
	add("metrics", s.options.MetricsAddress, events.FailedToStartMetricServer, s.options.Reviewer.guard(s.metrics(klog.FromContext(ctx))))
	add("page", s.options.PageAddress, events.FailedToStartPage, s.options.Reviewer.guard(s.options.Page))
	for _, e := range all {
		if s.options.CertFile != "" && e.name != "healthz" { // the kubelet and load balancers have no token
			e.tls = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificate(s.options.CertFile, s.options.KeyFile)}
		}
	}
	ended := make(chan error, len(all))
	for _, e := range all {
		go func() { ended <- s.serve(ctx, e) }()
	}
	var first error
	for range all {
		if err := <-ended; err != nil && first == nil {
			first = err
			cancel()
		}
	}
	if len(all) == 0 {
		<-ctx.Done()
	}
	return first
}
