// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// large is what one namespace has.
type large struct {
	services, ports, endpoints int
	annotations                map[string]string
	sources                    int  // ranges of clients of a load balancer's address
	weighted                   bool // endpoints have weights
	renamed                    bool // with other endpoints, ports have other names
}

// set sets the objects, with endpoints from a number on. Slices have 1,000 endpoints, as the API server allows.
func (l large) set(s *desired.State, from int) {
	for i := range l.services {
		name, portName := fmt.Sprint("s", i), "p"
		if l.renamed && from > 0 {
			portName = "q"
		}
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name, Annotations: l.annotations},
			Spec:       corev1.ServiceSpec{ClusterIP: fmt.Sprintf("10.96.%d.%d", i>>8, i&255)},
		}
		if l.sources > 0 {
			svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprintf("198.18.%d.%d", i>>8, i&255)}}
		}
		for j := range l.sources {
			svc.Spec.LoadBalancerSourceRanges = append(svc.Spec.LoadBalancerSourceRanges, fmt.Sprintf("172.%d.%d.0/25", 16+j>>8, j&255))
		}
		for p := range l.ports {
			svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint(portName, p), Port: int32(p + 1)})
		}
		s.SetService(svc)
		for first := 0; first < l.endpoints; first += 1000 {
			sl := &discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Namespace: "x", Name: fmt.Sprint(name, "-", first), Labels: map[string]string{discoveryv1.LabelServiceName: name}},
				AddressType: discoveryv1.AddressTypeIPv4,
			}
			if l.weighted {
				sl.Annotations = map[string]string{desired.AnnotationWeight: fmt.Sprint((first + from) / 1000 % 100)}
			}
			for p := range l.ports {
				sl.Ports = append(sl.Ports, discoveryv1.EndpointPort{Name: ptr.To(fmt.Sprint(portName, p)), Port: ptr.To(int32(p + 1))})
			}
			for e := first; e < min(first+1000, l.endpoints); e++ {
				n := e
				if !l.weighted {
					n += from
				}
				sl.Endpoints = append(sl.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 128+n>>16, n>>8&255, n&255)}})
			}
			s.SetEndpointSlice(sl)
		}
	}
}

func (l large) delete(s *desired.State) {
	for i := range l.services {
		name := fmt.Sprint("s", i)
		s.DeleteService("x", name)
		for first := 0; first < l.endpoints; first += 1000 {
			s.DeleteEndpointSlice("x", fmt.Sprint(name, "-", first))
		}
	}
}

// BenchmarkLargest creates the most that one namespace may have, replaces its endpoints and deletes it. It reports the
// processor's time, of the decision and the kernel, for the longest update.
func BenchmarkLargest(b *testing.B) {
	maglev := map[string]string{desired.AnnotationScheduler: "maglev"}
	var ranges []string
	for i := range 16 {
		ranges = append(ranges, fmt.Sprintf("udp/%d-%d", 1000*i+1000, 1000*i+1500))
	}
	for _, c := range []struct {
		name string
		large
	}{
		{"one-port", large{services: 1, ports: 1, endpoints: 65000}},
		{"ports", large{services: 1, ports: 65, endpoints: 1000}},
		{"services", large{services: 200, ports: 250, endpoints: 1}},
		{"table", large{services: 1, ports: 1, endpoints: 1000, annotations: maglev}},
		{"tables", large{services: 1, ports: 8, endpoints: 1000, annotations: maglev}},
		{"small-tables", large{services: 4, ports: 32, endpoints: 10, annotations: maglev}},
		{"weights-2000", large{services: 1, ports: 5, endpoints: 2000, weighted: true}},
		{"weights-8000", large{services: 1, ports: 5, endpoints: 8000, weighted: true}},
		{"renamed", large{services: 1, ports: 32, endpoints: 1000, renamed: true}},
		{"renamed-no-ranges", large{services: 1, ports: 32, endpoints: 1000, renamed: true}}, // of any Service
		{"renamed-tables", large{services: 1, ports: 8, endpoints: 120, renamed: true, annotations: maglev}},
		{"ranges", large{services: 64, ports: 1, endpoints: 1, annotations: map[string]string{desired.AnnotationPortRanges: strings.Join(ranges, ",")}}},
		{"sources-1000", large{services: 1, ports: 1, endpoints: 1, sources: 1000}},
		{"sources-5000", large{services: 1, ports: 1, endpoints: 1, sources: 5000}},
	} {
		b.Run(c.name, func(b *testing.B) {
			kerneltest.Require(b, kerneltest.NFTables)
			ns, err := lab.NewNamespace()
			if err != nil {
				b.Fatal(err)
			}
			defer ns.Close()
			k, err := New(dataplane.Config{NetNS: ns.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit})
			if err != nil {
				b.Fatal(err)
			}
			defer k.Close()
			s := desired.New(desired.Config{})
			// Another's Service, of the same kind.
			annotation := desired.AnnotationPortRanges
			if strings.HasSuffix(c.name, "-no-ranges") {
				annotation = "example.com/none"
			}
			other := func(port int32) {
				s.SetService(&corev1.Service{
					ObjectMeta: metav1.ObjectMeta{Namespace: "victim", Name: "web", Annotations: map[string]string{annotation: fmt.Sprint("udp/1-", port)}},
					Spec: corev1.ServiceSpec{
						ClusterIP: "10.97.0.1", Ports: []corev1.ServicePort{{Port: port}}, LoadBalancerSourceRanges: []string{"192.0.2.0/24"},
					},
					Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "198.19.0.1"}}}},
				})
			}
			other(1)
			s.Change()
			if _, err := k.Reconcile(b.Context(), &s.Full().Change); err != nil {
				b.Fatal(err)
			}
			var took [4][]time.Duration
			for n := int32(0); b.Loop(); n++ {
				for step, do := range []func(){
					func() { c.set(s, 0) }, func() { c.set(s, 70000) }, func() { other(10 + n%2) }, func() { c.delete(s) },
				} {
					do()
					longest := time.Duration(0)
					for first, rest := true, 0; first || s.Pending() || rest > 0; first = false {
						var before, after unix.Timespec
						_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &before)
						change := s.Change()
						stats, err := k.Apply(b.Context(), &change.Change)
						if err != nil {
							b.Fatal(err)
						}
						rest = len(stats.Rest)
						_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &after)
						longest = max(longest, time.Duration(after.Nano()-before.Nano()))
					}
					took[step] = append(took[step], longest)
				}
			}
			for step, unit := range []string{"created-ms", "replaced-ms", "another-ms", "deleted-ms"} {
				slices.Sort(took[step])
				b.ReportMetric(float64(took[step][len(took[step])/2].Microseconds())/1000, unit)
			}
		})
	}
}

// TestEmptiedInParts deletes the endpoints of Maglev tables. An update writes a part of the slots that they had.
func TestEmptiedInParts(t *testing.T) {
	k := newKernel(t)
	s := desired.New(desired.Config{})
	dataplanetest.Reconcile(t, k.Dataplane, s)
	l := large{services: 1, ports: 4, endpoints: 900, annotations: map[string]string{desired.AnnotationScheduler: "maglev"}}
	most, rest := 0, 1
	apply := func() {
		for first := true; first || s.Pending() || rest > 0; first = false {
			stats, err := k.Apply(t.Context(), &s.Change().Change)
			if err != nil {
				t.Fatal(err)
			}
			most, rest = max(most, stats.Elements), len(stats.Rest)
		}
	}
	l.set(s, 0)
	apply()
	k.has(s)
	most = 0
	s.DeleteEndpointSlice("x", "s0-0")
	apply()
	if k.has(s); most > 3*desired.MaxChange {
		t.Errorf("one update writes %d elements", most)
	}
}
