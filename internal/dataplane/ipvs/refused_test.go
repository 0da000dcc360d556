// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// broadcast is the broadcast address of the node's network. IPVS refuses it as a destination.
const broadcast = "192.168.100.255"

// other sets Service default/NAME at ADDRESS:80 with endpoints at the server's first port.
func (s *street) other(name, address string, endpoints ...string) {
	svc := dataplanetest.Service(corev1.ServiceSpec{})
	svc.Name, svc.Spec.ClusterIP = name, address
	s.state.SetService(svc)
	slice := dataplanetest.Slice(0)
	slice.Name, slice.Labels[discoveryv1.LabelServiceName] = name, name
	slice.Endpoints = nil
	for _, a := range endpoints {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	s.state.SetEndpointSlice(slice)
}

// program programs the change, or everything, and expects a Problem for each prefix.
func (s *street) program(full bool, want ...string) {
	s.Helper()
	stats, err := dataplane.Stats{}, error(nil)
	if full {
		stats, err = s.backend.Reconcile(s.Context(), &s.state.Full().Change)
	} else {
		stats, err = s.backend.Apply(s.Context(), &s.state.Change().Change)
	}
	if err != nil {
		s.Fatal(err)
	}
	ok := len(stats.Refused) == len(want)
	for i := range want {
		ok = ok && strings.HasPrefix(stats.Refused[i].Error(), want[i])
	}
	if !ok {
		s.Errorf("refused: %v; want %q", stats.Refused, want)
	}
}

// intact checks that neither reading nor Check find a difference.
func (s *street) intact() {
	s.Helper()
	dataplanetest.Has(s, s.backend, s.state)
	for range len(s.backend.servers.pools) + 1 {
		if err := s.backend.Check(s.Context()); err != nil {
			s.Error(err)
		}
	}
}

func (s *street) connect(address string) error {
	_, err := s.Client.Connect(lab.TCP, netip.MustParseAddrPort(address), lab.Timeout(20*time.Second))
	return err
}

// TestRefusedEndpoint: the kernel refuses an endpoint, in a change, in the first content of
// another run, or next to others. Everything else is programmed. The endpoint comes in when the
// kernel takes it.
func TestRefusedEndpoint(t *testing.T) {
	s := newStreet(t, 2, Options{})
	const problem = "Service default/bad: endpoint " + broadcast + ":8000: IPVS does not take it: invalid argument"
	s.other("bad", "10.96.0.66", broadcast)
	s.state.DeleteEndpointSlice("default", dataplanetest.SliceName(0))
	s.other("third", "10.96.0.20", "10.244.1.3")
	served := func() {
		t.Helper()
		s.intact()
		if hits := s.hits(6); hits[dataplanetest.FirstPort+1] != 6 {
			t.Errorf("after an endpoint was removed: %v", hits)
		}
		if err := s.connect("10.96.0.20:80"); err != nil {
			t.Error(err)
		}
		if err := s.connect("10.96.0.66:80"); err == nil || errors.Is(err, lab.ErrTimeout) {
			t.Errorf("the Service without another endpoint: %v", err)
		}
	}
	s.program(false, problem)
	served()
	s.program(true)
	served()
	s.backend = open(t, s.Node.Namespace, Options{})
	s.program(true, problem)
	served()

	s.other("bad", "10.96.0.66", broadcast, "10.244.1.3")
	s.program(false)
	s.intact()
	for range 4 {
		if err := s.connect("10.96.0.66:80"); err != nil {
			t.Error(err)
		}
	}
	for range 2 { // it leaves, and comes again at once
		s.other("bad", "10.96.0.66", "10.244.1.3")
		s.program(false)
		s.intact()
		s.other("bad", "10.96.0.66", broadcast, "10.244.1.3")
		s.program(false, problem)
		s.intact()
	}

	if out, err := s.Node.Run(t.Context(), "sh", "-ec", "ip addr add 192.168.100.11/25 dev eth0; ip addr del 192.168.100.11/24 dev eth0"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := s.backend.Check(t.Context()); !errors.Is(err, dataplane.ErrDue) {
		t.Fatalf("it is an ordinary address now, and Check returns %v", err)
	}
	s.program(true)
	s.intact()
	all, err := s.backend.conn.Destinations(t.Context(), keyOf(desired.FrontendKey{AddrPort: netip.MustParseAddrPort("10.96.0.66:80"), Protocol: desired.TCP}))
	if err != nil || len(all) != 2 {
		t.Errorf("destinations %v, error %v", all, err)
	}
}

// TestRefusedFrontendGoes deletes Services with a refused endpoint. It is not tried again.
func TestRefusedFrontendGoes(t *testing.T) {
	s := newStreet(t, 1, Options{})
	s.other("bad", "10.96.0.66", broadcast)
	s.program(false, "Service default/bad: endpoint ")
	s.state.DeleteService("default", "bad")
	s.program(false)
	s.intact()
	if len(s.backend.refused) > 0 {
		t.Errorf("refused: %v", s.backend.refused)
	}
}

// TestRefusedServer: the kernel refuses a virtual server, as its module for the scheduler is gone.
// Other Services are programmed.
func TestRefusedServer(t *testing.T) {
	s := newStreet(t, 1, Options{})
	s.state = desired.New(desired.Config{IPVS: true, Scheduler: func(text string, _ bool) (string, error) { return text, nil }})
	s.state.SetEndpointSlice(dataplanetest.Slice(0))
	s.state.SetService(dataplanetest.Service(corev1.ServiceSpec{}))
	s.program(true)
	set := func(scheduler string) {
		svc := dataplanetest.Service(corev1.ServiceSpec{})
		svc.Annotations = map[string]string{desired.AnnotationScheduler: scheduler}
		s.state.SetService(svc)
	}
	set("none-such")
	s.other("third", "10.96.0.20", "10.244.1.3")
	const problem = "Service default/web: virtual server 10.96.0.1:80/6: IPVS does not take it: "
	s.program(false, problem)
	for _, address := range []string{"10.96.0.1:80", "10.96.0.20:80"} { // it keeps its former scheduler
		if err := s.connect(address); err != nil {
			t.Error(err)
		}
	}
	if err := s.backend.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.program(true)
	for range 4 {
		if err := s.backend.Check(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := s.connect("10.96.0.20:80"); err != nil {
		t.Error(err)
	}
	set("lc")
	s.program(false)
	s.intact()
	if err := s.connect("10.96.0.1:80"); err != nil {
		t.Error(err)
	}
}

// TestRefusedAddress: the interface refuses an address. Other Services are programmed, and the
// next full content has the address.
func TestRefusedAddress(t *testing.T) {
	s := newStreet(t, 1, Options{})
	if err := s.Node.SetSysctl("ipv6/conf/"+Interface+"/disable_ipv6", "1"); err != nil {
		t.Fatal(err)
	}
	svc := dataplanetest.Service(corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.66", "fd00:96::66"}})
	svc.Name, svc.Spec.ClusterIP = "bad", "10.96.0.66"
	s.state.SetService(svc)
	s.other("third", "10.96.0.20", "10.244.1.3")
	s.program(false, "Service default/bad: address fd00:96::66: IPVS does not take it: ")
	if err := s.backend.Check(t.Context()); err != nil {
		t.Error(err)
	}
	for _, address := range []string{"10.96.0.1:80", "10.96.0.20:80"} {
		if err := s.connect(address); err != nil {
			t.Error(err)
		}
	}
	s.program(true)
	s.intact()
}

// TestLinkLocalAddresses: Services with link-local addresses are read back.
func TestLinkLocalAddresses(t *testing.T) {
	s := newStreet(t, 1, Options{})
	s.other("third", "169.254.20.10", "10.244.1.3")
	svc := dataplanetest.Service(corev1.ServiceSpec{ClusterIPs: []string{"fe80::77"}})
	svc.Name = "sixth"
	s.state.SetService(svc)
	s.program(false)
	s.intact()
	s.program(true)
	s.intact()
	if has, err := s.backend.dummy.addresses(); err != nil || !has[netip.MustParseAddr("fe80::77")] || slices.Contains(s.Node.Addrs(), netip.MustParseAddr("fe80::77")) {
		t.Errorf("addresses %v, error %v", has, err)
	}
}
