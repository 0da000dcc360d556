// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/ipvs"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
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
	const cluster, local = corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal
	for _, c := range []struct {
		name     string
		sizes    []int
		policy   corev1.ServiceExternalTrafficPolicy
		affinity corev1.ServiceAffinity
		from     func(*spread) *lab.Machine
		to       netip.AddrPort
	}{
		{"ClusterIP", []int{3, 8, 20}, cluster, "", (*spread).client, spreadClusterIP},
		{"NodePort", []int{8}, cluster, "", (*spread).outside, spreadNodePort},
		{"local NodePort", []int{3, 8, 20}, local, "", (*spread).outside, spreadNodePort},
		{"clients with affinity", []int{3, 8}, cluster, corev1.ServiceAffinityClientIP, (*spread).node, spreadClusterIP},
		{"local clients with affinity", []int{8}, local, corev1.ServiceAffinityClientIP, (*spread).outside, spreadNodePort},
	} {
		for _, size := range c.sizes {
			t.Run(fmt.Sprintf("%s/%d backends", c.name, size), func(t *testing.T) {
				t.Parallel()
				s := newSpread(t, mode, size, corev1.ServiceSpec{
					Type: corev1.ServiceTypeNodePort, ExternalTrafficPolicy: c.policy, SessionAffinity: c.affinity,
				})
				s.check(t, c.from(s), c.to, size, c.affinity != "")
			})
		}
	}
}

var (
	spreadClusterIP = netip.MustParseAddrPort("10.96.0.1:80")
	spreadNodePort  = netip.MustParseAddrPort("192.168.100.11:30080")
)

// spread is a node with clients that have many addresses.
type spread struct {
	*dataplanetest.Street
	host *lab.Host
}

func (s *spread) client() *lab.Machine  { return &s.Client.Machine }
func (s *spread) outside() *lab.Machine { return &s.host.Machine }
func (s *spread) node() *lab.Machine    { return &s.Node.Machine }

// newSpread programs a Service with size endpoints. With policy Local, as many more are
// on another node, where they do not answer.
func newSpread(t *testing.T, mode Mode, size int, spec corev1.ServiceSpec) *spread {
	s := &spread{Street: dataplanetest.NewStreet(t, size)}
	var err error
	if s.host, err = s.Lab.Host("outside", netip.MustParsePrefix("192.168.100.50/24")); err != nil {
		t.Fatal(err)
	}
	kernel, err := mode(dataplane.Config{NetNS: s.Node.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kernel.Close() })
	_, byAddress := kernel.(*ipvs.Dataplane)
	state := desired.New(desired.Config{NodeName: "n1", IPVS: byAddress})
	state.SetNodeAddresses(s.Node.Addrs())
	svc := dataplanetest.Service(spec)
	svc.Spec.Ports[0].NodePort = int32(spreadNodePort.Port())
	state.SetService(svc)
	for i := range size {
		here := dataplanetest.Slice(i)
		here.Endpoints[0].NodeName = ptr.To("n1")
		state.SetEndpointSlice(here)
		if spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
			elsewhere := here.DeepCopy()
			elsewhere.Name += "-elsewhere"
			elsewhere.Endpoints[0].NodeName, elsewhere.Endpoints[0].Addresses = ptr.To("n2"), []string{"10.244.2.3"}
			state.SetEndpointSlice(elsewhere)
		}
	}
	dataplanetest.Reconcile(t, kernel, state)
	return s
}

// check makes connections. With sticky, each address makes two connections, which have to reach
// the same backend.
func (s *spread) check(t *testing.T, from *lab.Machine, to netip.AddrPort, size int, sticky bool) {
	hits := make([]int, size)
	connect := func(opts ...lab.ConnectOption) int {
		reply, err := from.Connect(lab.TCP, to, opts...)
		if err != nil {
			t.Fatal(err)
		}
		return int(reply.Local.Port()) - dataplanetest.FirstPort
	}
	if sticky {
		if err := s.manyAddresses(from); err != nil {
			t.Fatal(err)
		}
	}
	for i := range size * perBackend {
		if !sticky {
			hits[connect()]++
			continue
		}
		a := netip.AddrFrom4([4]byte{172, 30, byte(i >> 8), byte(i)})
		source := lab.Source(netip.AddrPortFrom(a, 0))
		first := connect(source)
		if second := connect(source); second != first {
			t.Fatalf("%s came to backend %d, and then to %d", a, first, second)
		}
		hits[first]++
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
		err = s.Node.AddRoute(all, s.host.Addr(false))
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
