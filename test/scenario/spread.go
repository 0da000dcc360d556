// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// spreadCritical are critical values of the chi-squared distribution for a
// probability of one in a million, by degrees of freedom.
var spreadCritical = map[int]float64{2: 27.631, 7: 40.522, 19: 63.677}

// perBackend is how many connections, or clients, a backend gets on average. With
// so many, one that gets none or twice as many is practically always found out;
// one of 3 or 8 that gets half as many is missed in less than 1 % of runs.
const perBackend = 250

// RunSpread makes connections and asks by a chi-squared test whether all backends
// of a frontend are equally likely. A case fails by chance once in a million runs.
func RunSpread(t *testing.T, mode Mode) {
	for _, c := range []struct {
		name   string
		sizes  []int
		policy corev1.ServiceExternalTrafficPolicy
		sticky bool
		from   func(*spread) *lab.Machine
		to     netip.AddrPort
	}{
		{"ClusterIP", []int{3, 8, 20}, corev1.ServiceExternalTrafficPolicyCluster, false, (*spread).client, spreadClusterIP},
		{"NodePort", []int{8}, corev1.ServiceExternalTrafficPolicyCluster, false, (*spread).outside, spreadNodePort},
		{"local NodePort", []int{3, 8, 20}, corev1.ServiceExternalTrafficPolicyLocal, false, (*spread).outside, spreadNodePort},
		{"clients with affinity", []int{3, 8}, corev1.ServiceExternalTrafficPolicyCluster, true, (*spread).node, spreadClusterIP},
		{"local clients with affinity", []int{8}, corev1.ServiceExternalTrafficPolicyLocal, true, (*spread).outside, spreadNodePort},
	} {
		for _, size := range c.sizes {
			t.Run(fmt.Sprintf("%s/%d backends", c.name, size), func(t *testing.T) {
				t.Parallel()
				s := newSpread(t, mode, size, c.policy, c.sticky)
				s.check(t, c.from(s), c.to, size, c.sticky)
			})
		}
	}
}

var (
	spreadClusterIP = netip.MustParseAddrPort("10.96.0.1:80")
	spreadNodePort  = netip.MustParseAddrPort("172.20.0.11:30080")
)

const spreadFirstPort = 8000

// spread is a node with a pod that listens on many ports, each of which is an
// endpoint, and clients with many addresses.
type spread struct {
	n1   *lab.Node
	pod  *lab.Pod
	host *lab.Host
}

func (s *spread) client() *lab.Machine  { return &s.pod.Machine }
func (s *spread) outside() *lab.Machine { return &s.host.Machine }
func (s *spread) node() *lab.Machine    { return &s.n1.Machine }

// newSpread programs a Service with size endpoints. With policy Local, as many more are
// on another node, where they do not answer.
func newSpread(t *testing.T, mode Mode, size int, policy corev1.ServiceExternalTrafficPolicy, sticky bool) *spread {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	l, err := lab.New()
	must(err)
	t.Cleanup(func() { l.Close() })
	s := &spread{}
	s.n1, err = l.Node("n1", lab.NodeOptions{
		Addresses: []netip.Prefix{netip.MustParsePrefix("172.20.0.11/16")},
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
	})
	must(err)
	s.pod, err = s.n1.Pod("client", netip.MustParseAddr("10.244.1.2"))
	must(err)
	server, err := s.n1.Pod("server", netip.MustParseAddr("10.244.1.3"))
	must(err)
	s.host, err = l.Host("outside", netip.MustParsePrefix("172.20.0.50/16"))
	must(err)

	state := desired.New(desired.Config{NodeName: "n1"})
	state.SetNodeAddresses(s.n1.Addrs())
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, ClusterIP: spreadClusterIP.Addr().String(), ExternalTrafficPolicy: policy,
			Ports: []corev1.ServicePort{{Port: int32(spreadClusterIP.Port()), NodePort: int32(spreadNodePort.Port())}},
		},
	}
	if sticky {
		svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}
	state.SetService(svc)
	for i := range size {
		_, err := server.Serve(lab.TCP, netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(spreadFirstPort+i)))
		must(err)
		state.SetEndpointSlice(spreadSlice(i, "here", "n1", "10.244.1.3"))
		if policy == corev1.ServiceExternalTrafficPolicyLocal {
			state.SetEndpointSlice(spreadSlice(i, "elsewhere", "n2", "10.244.2.3"))
		}
	}
	kernel, err := mode(dataplane.Config{NetNS: s.n1.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit})
	must(err)
	t.Cleanup(func() { kernel.Close() })
	_, err = kernel.Reconcile(t.Context(), &state.Full().Change)
	must(err)
	return s
}

func spreadSlice(i int, name, node, addr string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: fmt.Sprint(name, "-", i), Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: ptr.To(int32(spreadFirstPort + i))}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{addr}, NodeName: &node}},
	}
}

// check makes connections. With sticky, each two of them come from an address of
// their own, and have to reach the same backend.
func (s *spread) check(t *testing.T, from *lab.Machine, to netip.AddrPort, size int, sticky bool) {
	hits := make([]int, size)
	connect := func(opts ...lab.ConnectOption) int {
		reply, err := from.Connect(lab.TCP, to, opts...)
		if err != nil {
			t.Fatal(err)
		}
		return int(reply.Local.Port()) - spreadFirstPort
	}
	if !sticky {
		for range size * perBackend {
			hits[connect()]++
		}
	} else {
		if err := s.manyAddresses(from); err != nil {
			t.Fatal(err)
		}
		for i := range size * perBackend {
			a := netip.AddrFrom4([4]byte{172, 30, byte(i >> 8), byte(i)})
			source := lab.Source(netip.AddrPortFrom(a, 0))
			first := connect(source)
			if second := connect(source); second != first {
				t.Fatalf("%s came to backend %d, and then to %d", a, first, second)
			}
			hits[first]++
		}
	}
	if chi := chiSquared(hits); chi > spreadCritical[size-1] {
		t.Errorf("chi-squared %.1f is above %.1f; hits: %v", chi, spreadCritical[size-1], hits)
	}
}

// manyAddresses makes all addresses of 172.30.0.0/16 a machine's own.
func (s *spread) manyAddresses(m *lab.Machine) error {
	all := netip.MustParsePrefix("172.30.0.0/16")
	err := m.AddLocalRange(all)
	if err == nil && m == s.outside() {
		err = s.n1.AddRoute(all, s.host.Addr(false))
	}
	return err
}

// chiSquared is the statistic of a count of hits for which all are equally
// likely.
func chiSquared(hits []int) (chi float64) {
	var n int
	for _, h := range hits {
		n += h
	}
	mean := float64(n) / float64(len(hits))
	for _, h := range hits {
		d := float64(h) - mean
		chi += d * d / mean
	}
	return chi
}
