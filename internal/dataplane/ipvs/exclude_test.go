// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"net/netip"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipvs"
	corev1 "k8s.io/api/core/v1"
)

// TestExclude: virtual servers of other programs stay if their address is excluded. A
// frontend in such a range is served like any other, also by the next run.
func TestExclude(t *testing.T) {
	ns := newNamespace(t)
	o := Options{Exclude: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("10.96.0.0/16")}}
	s := desired.New(desired.Config{IPVS: true})
	s.SetService(dataplanetest.Service(corev1.ServiceSpec{}))
	s.SetEndpointSlice(dataplanetest.Slice(0))
	b := open(t, ns, o)
	foreign := func(addr string) ipvs.Key {
		a := netip.MustParseAddrPort(addr)
		return ipvs.Key{Addr: a.Addr(), Port: a.Port(), Protocol: 6}
	}
	for _, addr := range []string{"192.0.2.1:80", "10.96.7.7:80", "198.51.100.1:80"} {
		refused := error(nil)
		err := b.conn.Execute(t.Context(), []ipvs.Request{ipvs.AddService(ipvs.Service{Key: foreign(addr), Scheduler: "rr", MaskBits: 32})},
			func(_ int, err error) { refused = err })
		if err != nil || refused != nil {
			t.Fatal(err, refused)
		}
	}
	for range 2 {
		b = open(t, ns, o)
		dataplanetest.Reconcile(t, b, s)
		dataplanetest.Has(t, b, s)
	}
	has := func(want ...string) {
		t.Helper()
		all, err := b.conn.Services(t.Context())
		if err != nil || len(all) != len(want) {
			t.Fatalf("%+v, error %v; want %s", all, err, want)
		}
		for _, addr := range want {
			found := false
			for _, s := range all {
				found = found || s.Key == foreign(addr)
			}
			if !found {
				t.Errorf("%s is missing: %+v", addr, all)
			}
		}
	}
	has("192.0.2.1:80", "10.96.7.7:80", "10.96.0.1:80")
	if err := b.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	has("192.0.2.1:80", "10.96.7.7:80", "10.96.0.1:80")
}
