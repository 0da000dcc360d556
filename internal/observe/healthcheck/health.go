// SPDX-License-Identifier: Apache-2.0

// Package healthcheck serves the health checks of load balancers: whether a node has local
// endpoints of a Service, on the port spec.healthCheckNodePort. Responses are those of
// kube-proxy.
package healthcheck

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// Options configure a Server.
type Options struct {
	Listen  func(network, address string) (net.Listener, error) // at "tcp4" or "tcp6"; net.Listen if nil
	Healthy func() bool                                         // whether this node's proxy works; called for each request, by several goroutines

	// Report is called when a Service's port cannot be served, and again when
	// the error has changed. It must not call the Server.
	Report func(service types.NamespacedName, err error)
}

// Server answers on the health check ports of Services. Its methods may be
// called from several goroutines.
type Server struct {
	options Options
	log     klog.Logger

	mu        sync.Mutex
	closed    bool
	addresses []netip.Addr
	services  map[types.NamespacedName]*service
	retry     *time.Timer // pending while a Service cannot listen on some address

	running sync.WaitGroup // one goroutine for each listener
}

// New makes a Server that serves nothing yet. It writes to the log of ctx.
func New(ctx context.Context, o Options) *Server {
	if o.Listen == nil {
		o.Listen = net.Listen
	}
	return &Server{options: o, log: klog.FromContext(ctx), services: map[types.NamespacedName]*service{}}
}

// SetAddresses replaces the addresses on which to answer. An unspecified address
// (0.0.0.0, ::) stands for all of its family. IPv6 link-local addresses are ignored, as
// they need a link to be bound to.
func (s *Server) SetAddresses(all []netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all = listenOn(all)
	if s.closed || slices.Equal(all, s.addresses) {
		return
	}
	s.addresses = all
	s.listen(slices.Collect(maps.Values(s.services)))
}

// Set replaces the checks of some Services, with at most one check for each.
func (s *Server) Set(checks []desired.HealthCheck) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	for _, c := range checks { // another Service may get a port that is closed here
		if svc := s.services[c.Service]; svc != nil && c.Port != svc.port {
			svc.close()
			delete(s.services, c.Service)
		}
	}
	var changed []*service
	for _, c := range checks {
		if c.Port == 0 {
			continue
		}
		svc := s.services[c.Service]
		if svc == nil {
			svc = newService(c.Service, c.Port, s.options.Healthy, s.log)
			s.services[c.Service] = svc
		}
		svc.serves, svc.created = c.Serves, c.Created
		for f, n := range c.LocalEndpoints {
			svc.local[f].Store(int64(n))
		}
		changed = append(changed, svc)
	}
	s.listen(changed)
}

// listen opens and closes listeners of the given Services and of those that failed.
func (s *Server) listen(services []*service) {
	listening := map[uint16]*service{} // by port
	for _, svc := range s.services {
		if svc.failed != "" {
			services = append(services, svc)
		}
		if len(svc.listeners) > 0 {
			listening[svc.port] = svc
		}
	}
	// Of two Services with the same port, the older one gets it, as of two with the same frontend.
	byAge := func(a, b *service) int {
		return cmp.Or(cmp.Compare(a.created, b.created), cmp.Compare(a.name.Namespace, b.name.Namespace), cmp.Compare(a.name.Name, b.name.Name))
	}
	for _, svc := range services {
		if other := listening[svc.port]; other != nil && other != svc && byAge(svc, other) < 0 {
			other.leave(nil)
			delete(listening, svc.port)
			services = append(services, other)
		}
	}
	slices.SortFunc(services, byAge)
	services = slices.Compact(services)
	for _, svc := range services {
		svc.leave(s.addresses)
	}
	for _, svc := range services {
		err := svc.listen(s.addresses, s.options.Listen, func(ip netip.Addr, l net.Listener) {
			s.running.Go(func() { s.ended(svc, ip, l, svc.http.Serve(l)) })
		})
		if other := listening[svc.port]; err != nil && other != nil && other != svc && len(other.listeners) > 0 {
			err = fmt.Errorf("%w, by Service %s", err, other.name)
		} else if len(svc.listeners) > 0 {
			listening[svc.port] = svc
		}
		s.note(svc, err)
	}
}

// note stores the result of listen, reports an error that has changed, and starts a timer to
// retry.
func (s *Server) note(svc *service, err error) {
	if err == nil {
		svc.failed = ""
		return
	}
	if text := err.Error(); text != svc.failed {
		svc.failed = text
		if s.options.Report != nil {
			s.options.Report(svc.name, err)
		}
	}
	if s.retry == nil {
		const retryPeriod = 5 * time.Second // after an error, unless a change causes an earlier attempt
		s.retry = time.AfterFunc(retryPeriod, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.retry = nil; !s.closed {
				s.listen(nil)
			}
		})
	}
}

func (s *Server) ended(svc *service, ip netip.Addr, l net.Listener, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.services[svc.name] != svc || svc.listeners[ip] != l {
		return // the Server has closed it
	}
	delete(svc.listeners, ip)
	l.Close()
	s.note(svc, svc.cannotListen(err.Error()))
}

// Close closes all listeners and connections, and returns when their goroutines have
// ended. It may be called more than once.
func (s *Server) Close() {
	defer s.running.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.retry != nil {
		s.retry.Stop()
	}
	for _, svc := range s.services {
		svc.close()
	}
	clear(s.services)
}

// listenOn returns the addresses to bind to, without duplicates, those that an
// unspecified address includes, and link-local ones.
func listenOn(addrs []netip.Addr) (out []netip.Addr) {
	for _, ip := range addrs {
		every := netip.IPv4Unspecified()
		if ip.Is6() {
			every = netip.IPv6Unspecified()
		}
		if (ip == every || !slices.Contains(addrs, every)) && !(ip.Is6() && ip.IsLinkLocalUnicast()) {
			out = append(out, ip)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}
