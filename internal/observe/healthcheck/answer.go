// SPDX-License-Identifier: Apache-2.0

package healthcheck

import (
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"strconv"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// answer is the body of an answer (k8s.io/kubernetes v1.36,
// pkg/proxy/healthcheck).
type answer struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int64 `json:"localEndpoints"`
	ServiceProxyHealthy bool  `json:"serviceProxyHealthy"`
}

// ServeHTTP answers every request alike: 200 when traffic for the Service may be
// sent to this node, 503 when not. Endpoints are those of the family over which
// the request came.
func (svc *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var a answer
	a.Service.Namespace, a.Service.Name = svc.name.Namespace, svc.name.Name
	a.LocalEndpoints = svc.local[family(r)].Load()
	a.ServiceProxyHealthy = svc.healthy()
	body, err := json.MarshalIndent(a, "", "\t")
	if err != nil {
		panic(err) // all fields can be encoded
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	// Some load balancers share traffic out by it.
	h.Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(a.LocalEndpoints, 10))
	status := http.StatusServiceUnavailable
	if a.LocalEndpoints > 0 && a.ServiceProxyHealthy {
		status = http.StatusOK
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may have disconnected
}

// family is the one of the address that a request came to. A listener is of one
// family, so an IPv4 address never looks like one of IPv6.
func family(r *http.Request) desired.Family {
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			return desired.FamilyOf(ip.Unmap())
		}
	}
	return desired.IPv4
}
