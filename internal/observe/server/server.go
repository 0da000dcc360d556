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

// Options configure a Server.
type Options struct {
	// MetricsAddress and HealthzAddress are host and port to listen on; 0.0.0.0
	// and [::] both mean all addresses of both families. Nothing is served
	// where one is empty.
	MetricsAddress, HealthzAddress string

	// PageAddress is where Page is served, as above.
	PageAddress string
	Page        http.Handler

	// CertFile and KeyFile, if set, are for TLS on the addresses of metrics and of the page.
	CertFile, KeyFile string
	// Reviewer, if not nil, says who may read them.
	Reviewer *Reviewer

	// HardFail makes Run return an error if an address cannot be served. Otherwise
	// the Server retries every five seconds.
	HardFail bool

	// Profiling serves /debug/.
	Profiling bool

	// Mode is the answer of /proxyMode: "nftables", "iptables" or "ipvs".
	Mode string

	// Version is shown by /statusz.
	Version string

	// Configz are the configurations to show, by API group. They are written as
	// JSON for each answer, so they must not change.
	Configz map[string]any

	// Flags are the command line's, by name, for /flagz.
	Flags map[string]string

	Metrics *metrics.Metrics
	Proxy   Proxy

	// Problems returns the answer of /problems.
	Problems func(context.Context) (any, error)

	// Events records addresses that cannot be listened on. If nil, they are logged.
	Events events.Recorder

	// Listen opens a listening socket; net.Listen when nil.
	Listen func(network, address string) (net.Listener, error)
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
