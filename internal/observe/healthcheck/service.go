// SPDX-License-Identifier: Apache-2.0

package healthcheck

import (
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// service answers for one Service on one port. All but its answers is under the
// Server's lock.
type service struct {
	name      types.NamespacedName
	port      uint16
	serves    [2]bool // by desired.Family
	local     [2]atomic.Int64
	healthy   func() bool
	http      http.Server
	listeners map[netip.Addr]net.Listener
	reported  string // the last error
}

// The limits protect a port that is reachable from outside. Load balancers that keep their connections ask every few seconds.
const (
	headerTimeout = 5 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 16 << 10 // bytes
)

func newService(name types.NamespacedName, port uint16, healthy func() bool) *service {
	svc := &service{name: name, port: port, healthy: healthy, listeners: map[netip.Addr]net.Listener{}}
	svc.http = http.Server{
		Handler:           svc,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          httpLog,
	}
	return svc
}

// httpLog receives errors of net/http, such as failed accepts.
var httpLog = log.New(logWriter{}, "", 0)

type logWriter struct{}

func (logWriter) Write(p []byte) (int, error) {
	klog.InfoS("Answering a health check", "problem", strings.TrimSpace(string(p)))
	return len(p), nil
}

// set updates the response.
func (svc *service) set(c desired.HealthCheck) {
	svc.serves = c.Serves
	for f, n := range c.LocalEndpoints {
		svc.local[f].Store(int64(n))
	}
}

// wants says whether to listen on an address, of those that there are.
func (svc *service) wants(ip netip.Addr, all []netip.Addr) bool {
	return svc.serves[desired.FamilyOf(ip)] && slices.Contains(all, ip)
}

// leave stops to listen where it no longer should.
func (svc *service) leave(addresses []netip.Addr) {
	for ip, l := range svc.listeners {
		if !svc.wants(ip, addresses) {
			delete(svc.listeners, ip)
			l.Close()
		}
	}
}

// cannotListen is why a Service's port is not served everywhere.
type cannotListen struct {
	service *service
	reasons []string
}

func (e *cannotListen) Error() string {
	return fmt.Sprintf("Service %s: spec.healthCheckNodePort: cannot answer on port %d: %s", e.service.name, e.service.port, strings.Join(e.reasons, "; "))
}

// ServiceOf returns the Service of an error passed to Options.Report.
func ServiceOf(err error) (name types.NamespacedName, ok bool) {
	var e *cannotListen
	if errors.As(err, &e) {
		return e.service.name, true
	}
	return name, false
}

// listen listens wherever it should and does not yet. One address that it cannot
// listen on does not keep it from others.
func (svc *service) listen(addresses []netip.Addr, open func(network, address string) (net.Listener, error), serve func(*service, netip.Addr, net.Listener)) error {
	var failed []string
	for _, ip := range addresses {
		if svc.listeners[ip] != nil || !svc.wants(ip, addresses) {
			continue
		}
		network := "tcp4"
		if ip.Is6() {
			network = "tcp6"
		}
		l, err := open(network, net.JoinHostPort(ip.String(), strconv.Itoa(int(svc.port))))
		if err != nil {
			failed = append(failed, err.Error())
			continue
		}
		svc.listeners[ip] = l
		klog.V(2).InfoS("Answering health checks", "service", svc.name, "address", l.Addr())
		serve(svc, ip, l)
	}
	if len(failed) > 0 {
		return &cannotListen{svc, failed}
	}
	return nil
}

// close ends all answers, those under way too. The port is free on return.
func (svc *service) close() {
	for ip, l := range svc.listeners {
		delete(svc.listeners, ip)
		l.Close() // the http.Server may not know of it yet
	}
	svc.http.Close() // which can only say that listeners have been closed
}
