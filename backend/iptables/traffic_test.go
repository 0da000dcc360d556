// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/backend"
	"github.com/slipstream-proxy/slipstream/desired"
	"github.com/slipstream-proxy/slipstream/lab"
	"github.com/slipstream-proxy/slipstream/lab/labtest"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// ports has the first of some ports of one server be the endpoints of a Service.
func ports(s *desired.State, first, n int) {
	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.1", ExternalIPs: []string{"192.0.2.1"},
			Ports: []corev1.ServicePort{{Port: 80}},
		},
	})
	for i := range 100 {
		name := fmt.Sprint("web-", i)
		if i >= n {
			s.DeleteEndpointSlice("default", name)
			continue
		}
		s.SetEndpointSlice(&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Port: ptr.To(int32(first + i))}},
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.3"}}},
		})
	}
}

// TestNothingFailsMeanwhile makes connections all the time while the backend
// programs: a pool that grows and shrinks across the sizes that have chains of their own,
// Services around it in the tree, and everything anew. No connection may fail.
func TestNothingFailsMeanwhile(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		const firstPort, most = 8000, 20
		l := labtest.New(t)
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		node, err := l.Node("n1", lab.NodeOptions{
			Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24")},
			PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
		})
		must(err)
		client, err := node.Pod("client", netip.MustParseAddr("10.244.1.2"))
		must(err)
		server, err := node.Pod("server", netip.MustParseAddr("10.244.1.3"))
		must(err)
		for i := range most {
			_, err := server.Serve(lab.TCP, netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(firstPort+i)))
			must(err)
		}
		b, err := New(backend.Config{NetNS: node.Namespace().FD(), MasqueradeBit: backend.DefaultMasqueradeBit}, Options{Variant: v})
		must(err)
		defer b.Close()
		state := desired.New(desired.Config{NodeName: "n1"})
		ports(state, firstPort, most)
		reconcile(t, b, state)
		var loads []*lab.Load
		for _, to := range []string{"10.96.0.1:80", "192.0.2.1:80"} {
			load, err := client.StartLoad(t.Context(), lab.TCP, netip.MustParseAddrPort(to), lab.LoadOptions{Workers: 2, Duration: time.Minute})
			must(err)
			loads = append(loads, load)
		}
		const enough = 200 // connections, and at least so many rounds:
		for round := 0; round < 40 || loads[0].Stats().OK < enough && round < 1000; round++ {
			ports(state, firstPort, 1+(round*7)%(most-1))
			web(state, 2+round%16, hosts(1+round%3)...)
			apply(t, b, state)
			ports(state, firstPort, most)
			apply(t, b, state)
			switch round % 4 {
			case 0:
				reconcile(t, b, state)
			case 1:
				b.config.MasqueradeAll = !b.config.MasqueradeAll
				reconcile(t, b, state)
			}
		}
		for _, load := range loads {
			if stats := load.Stop(); stats.Failed > 0 || stats.OK < enough/2 {
				t.Errorf("connections meanwhile: %v, first failure: %v", stats, stats.First)
			}
		}
	})
}
