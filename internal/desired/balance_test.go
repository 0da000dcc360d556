// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"math"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestLocalZone compares the share of this node's zone with the annotation, for numbers of
// endpoints here and elsewhere, with weights within the groups. A relay has the same.
func TestLocalZone(t *testing.T) {
	for _, c := range []struct{ percent, here, elsewhere, want int }{
		{80, 1, 9, 80}, {80, 9, 1, 80}, {1, 3, 4, 1}, {33, 2, 5, 33}, {80, 0, 4, 0}, {80, 4, 0, 100},
		{0, 3, 2, 0}, {0, 3, 0, 100}, {100, 1, 5, 100}, {100, 0, 5, 0},
	} {
		s := New(Config{NodeName: "n1", LoopbackNodePorts: [families]LoopbackNodePorts{LoopbackRelayed}})
		s.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{corev1.LabelTopologyZone: "a"}}})
		s.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: map[string]string{AnnotationLocalZone: fmt.Sprint(c.percent), AnnotationScheduler: "rr"}},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}}},
		})
		for i := range c.here + c.elsewhere {
			zone := "b"
			if i < c.here {
				zone = "a"
			}
			s.SetEndpointSlice(&discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "default", Name: fmt.Sprint("web-", i), Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
					Annotations: map[string]string{AnnotationWeight: fmt.Sprint(10 + 10*(i%3))},
				},
				AddressType: discoveryv1.AddressTypeIPv4,
				Ports:       []discoveryv1.EndpointPort{{Port: ptr.To[int32](8080)}},
				Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{fmt.Sprint("10.0.0.", 1+i)}, Zone: &zone}},
			})
		}
		u := s.Change()
		weights := map[Backend]uint64{}
		for _, b := range u.Pools[0].Added {
			weights[b] = DefaultWeight
		}
		for _, w := range u.Pools[0].Weights {
			weights[w.Backend] = w.Weight
		}
		for _, w := range u.Relays[0].Weights {
			if weights[w.Backend] != w.Weight {
				t.Errorf("%+v: a relay has weight %d of %s, not %d", c, w.Weight, w.Backend, weights[w.Backend])
			}
		}
		if r := u.Relays[0]; r.Algorithm != RoundRobin || len(r.Weights) != len(u.Pools[0].Weights) {
			t.Errorf("%+v: a relay has %s with weights %v", c, r.Algorithm, r.Weights)
		}
		var here, all float64
		for b, n := range weights {
			i := int(b.Addr().As4()[3]) - 1
			if all += float64(n); i < c.here {
				here += float64(n)
			}
			first := i < c.here
			for other, m := range weights {
				if j := int(other.Addr().As4()[3]) - 1; first == (j < c.here) && uint64(10+10*(j%3))*n != uint64(10+10*(i%3))*m {
					t.Errorf("%+v: weights of one zone: %v", c, weights)
				}
			}
		}
		if len(weights) == 0 || math.Abs(100*here/all-float64(c.want)) > 1e-9 {
			t.Errorf("%+v: %.3f %% stay in the zone, with %d endpoints", c, 100*here/all, len(weights))
		}
	}
}

// TestParseScheduler: the names and flags of IPVS have their meaning.
func TestParseScheduler(t *testing.T) {
	for text, want := range map[string]string{
		"random": "random", "rr": "rr", "wrr": "rr", "sh": "maglev", "sh,sh-port": "maglev,maglev-port",
		"sh,sh-fallback,sh-port": "maglev,maglev-port", "maglev": "maglev", "maglev,maglev-port": "maglev,maglev-port",
		"mh": "maglev,maglev-port", "mh,mh-port": "maglev,maglev-port", "mh,mh-fallback": "maglev", "nearest": "random nearest",
		"lc": "lc", "wlc": "lc", "dh": "", "": "", "rr,rr-port": "", "sh,mh-port": "", "maglev,": "maglev", "random,x": "",
	} {
		s, err := ParseScheduler(text)
		got := s.Algorithm.String()
		if s.Nearest {
			got += " nearest"
		}
		if err != nil {
			got = ""
		}
		if got != want {
			t.Errorf("%q is %q (%v), want %q", text, got, err, want)
		}
	}
}
