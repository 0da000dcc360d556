// SPDX-License-Identifier: Apache-2.0

package healthcheck

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/observe/server"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// service answers for one Service on one port. The Server's lock guards everything except
// the answers.
type service struct {
	name      types.NamespacedName
	created   int64
	port      uint16
	serves    [2]bool // by desired.Family
	local     [2]atomic.Int64
	healthy   func() bool
	log       klog.Logger
	http      http.Server
	listeners map[netip.Addr]net.Listener
	failed    string // why it cannot listen on some address; "" if it can
}

// Limits protect a port that is reachable from outside. Load balancers that keep their
// connections send a request every few seconds.
const (
	headerTimeout = 5 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 16 << 10 // bytes
)

func newService(name types.NamespacedName, port uint16, healthy func() bool, log klog.Logger) *service {
	svc := &service{name: name, port: port, healthy: healthy, log: log, listeners: map[netip.Addr]net.Listener{}}
	svc.http = http.Server{
		Handler:           svc,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(logr.ToSlogHandler(log.WithName("healthCheckNodePort")), slog.LevelInfo), // such as failed accepts
	}
	server.Bound(&svc.http)
	return svc
}

// wants reports whether to listen on one of the addresses.
func (svc *service) wants(ip netip.Addr, addresses []netip.Addr) bool {
	return svc.serves[desired.FamilyOf(ip)] && slices.Contains(addresses, ip)
}

func (svc *service) leave(addresses []netip.Addr) {
	for ip, l := range svc.listeners {
		if !svc.wants(ip, addresses) {
			delete(svc.listeners, ip)
			l.Close()
		}
	}
}

// listen opens the listeners that are missing. If one fails, the others are still opened.
func (svc *service) listen(addresses []netip.Addr, open func(network, address string) (net.Listener, error), serve func(netip.Addr, net.Listener)) error {
	var failed []string
	for _, ip := range addresses {
		if svc.listeners[ip] != nil || !svc.wants(ip, addresses) {
			continue
		}
		network := map[bool]string{true: "tcp6", false: "tcp4"}[ip.Is6()]
		l, err := open(network, net.JoinHostPort(ip.String(), strconv.Itoa(int(svc.port))))
		if err != nil {
			failed = append(failed, err.Error())
			continue
		}
		svc.listeners[ip] = l
		svc.log.V(2).Info("Answering health checks", "service", svc.name, "address", l.Addr())
		serve(ip, l)
	}
	if len(failed) > 0 {
		return svc.cannotListen(failed...)
	}
	return nil
}

func (svc *service) cannotListen(reasons ...string) error {
	return fmt.Errorf("%s: spec.healthCheckNodePort: cannot answer on port %d: %s", "Service "+svc.name.String(), svc.port, strings.Join(reasons, "; "))
}

// close ends all answers, including active ones. The port is free on return.
func (svc *service) close() {
	for ip, l := range svc.listeners {
		delete(svc.listeners, ip)
		l.Close() // the http.Server may not know of it yet
	}
	svc.http.Close() // its only error is that listeners are closed already
}

// answer is the body of an answer (k8s.io/kubernetes v1.37,
// pkg/proxy/healthcheck).
type answer struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int64 `json:"localEndpoints"`
	ServiceProxyHealthy bool  `json:"serviceProxyHealthy"`
}

// ServeHTTP answers any request: 200 if traffic for the Service may be sent to this node,
// else 503. It counts the endpoints of the request's address family.
func (svc *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var a answer
	a.Service.Namespace, a.Service.Name = svc.name.Namespace, svc.name.Name
	a.LocalEndpoints = svc.local[family(r)].Load()
	a.ServiceProxyHealthy = svc.healthy()
	body, err := json.MarshalIndent(a, "", "\t")
	if err != nil {
		panic(err) // all fields can be encoded
	}
	// Some load balancers distribute traffic by it.
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(a.LocalEndpoints, 10))
	status := http.StatusServiceUnavailable
	if a.LocalEndpoints > 0 && a.ServiceProxyHealthy {
		status = http.StatusOK
	}
	server.Answer(w, status, "application/json", body)
}

func family(r *http.Request) desired.Family {
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			return desired.FamilyOf(ip.Unmap())
		}
	}
	return desired.IPv4
}
