// SPDX-License-Identifier: Apache-2.0

// Package server answers kube-proxy's HTTP endpoints. On the metrics address:
// /metrics, /proxyMode, /configz, /healthz (that this process answers, nothing
// more), /metrics/slis, /flagz, /statusz and, if profiling is on, /debug/pprof/ and
// /debug/flags/v. On the healthz address: /healthz (this node may be sent traffic)
// and /livez (this proxy works). What they say is what kube-proxy v1.36 says.
package server

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/observe/events"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
)

// Proxy is what the answers on the healthz address rest on; a proxy.Proxy. It is
// asked for each answer, by several goroutines.
type Proxy interface {
	// Healthy says whether the kernel has what it should, or has been without
	// for less than the time it is given.
	Healthy() bool
	// NodeEligible says whether this node is there to stay.
	NodeEligible() bool
	// Updated is when the kernel last had everything; zero before it first had.
	Updated() time.Time
}

// Options are what to answer and where.
type Options struct {
	// MetricsAddress and HealthzAddress are host and port to listen on; 0.0.0.0
	// and [::] both mean all addresses of both families. Nothing is served
	// where one is empty.
	MetricsAddress, HealthzAddress string

	// HardFail makes Run return when an address cannot be listened on, or no
	// more. Else it is tried again every five seconds.
	HardFail bool

	// Profiling serves /debug/.
	Profiling bool

	// Mode is what /proxyMode says: "nftables" or "iptables".
	Mode string

	// Version is what /statusz says.
	Version string

	// Configz are the configurations to show, by API group. They are written as
	// JSON for each answer, so they must not change.
	Configz map[string]any

	// Flags are the command line's, by name, for /flagz.
	Flags map[string]string

	Metrics *metrics.Metrics
	Proxy   Proxy

	// Events is told when an address cannot be listened on. Nil for nobody.
	Events events.Recorder

	// Listen opens a listening socket; net.Listen when nil.
	Listen func(network, address string) (net.Listener, error)
}

// Server answers. It is used once.
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
	return &Server{options: o, retry: retryPeriod, started: time.Now()}
}

// Run answers until ctx ends, which is no error. When it returns, nothing listens
// any more.
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
	add("metrics", s.options.MetricsAddress, events.FailedToStartMetricServer, s.metrics())
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
