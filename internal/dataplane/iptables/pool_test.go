// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func backendNumber(i int) desired.Backend {
	return desired.NewBackend(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 8080))
}

// longest is how many rules a packet can meet in a pool.
func (c chainsOf) longest(chain string) (n int) {
	for i, r := range c[chain] {
		n = max(n, i+1+c.longest(r["-g"]))
	}
	return n
}

// TestPool makes sure that all endpoints of a pool are chosen with the same
// probability, after few rules, however many there are, and that a change of one
// writes few rules.
func TestPool(t *testing.T) {
	for _, size := range []int{1, 2, 10, 16, 17, 33, 256, 257, 1000, 4097} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			p := &pool{Pool: dataplane.Pool{Frontends: []*desired.Frontend{{FrontendKey: tcpKey(netip.MustParseAddr("10.96.0.1"), 80)}}}}
			kernel, known, lines := chainsOf{}, registry{}, 0
			change := func(removed, added []desired.Backend) {
				t.Helper()
				p.replace(removed, added)
				out := &script{known: known, now: registry{}}
				p.write(out)
				kernel.apply(t, out)
				out.done(known)
				lines = out.lines
				r := reader{content: dataplane.NewContent(), chains: kernel}
				weights := map[desired.Backend]float64{}
				if left := r.choose(kernel[p.name()], 1, weights); left > 1e-6 || len(weights) != len(p.Slots) || len(r.content.Faults) > 0 {
					t.Fatalf("nothing is chosen with a probability of %g, %d of %d endpoints otherwise; %v", left, len(weights), len(p.Slots), r.content.Faults)
				}
				for b, w := range weights {
					if !slices.Contains(p.Slots, b) || math.Abs(w*float64(len(p.Slots))-1) > 1e-4 {
						t.Fatalf("%s is chosen with a probability of %g", b, w)
					}
				}
			}
			var all []desired.Backend
			for i := range size {
				all = append(all, backendNumber(i))
			}
			change(nil, all)
			if most := kernel.longest(p.name()); size <= 4096 && most > 3*fanOut {
				t.Errorf("up to %d rules for %d endpoints", most, size)
			}
			few := 3*(1+fanOut) + 3*(2+size/(fanOut*fanOut*fanOut)*fanOut)
			for i := range 5 {
				gone, come := p.Slots[rand.IntN(len(p.Slots))], backendNumber(1<<20+i)
				if change([]desired.Backend{gone}, []desired.Backend{come}); lines > 2+fanOut {
					t.Errorf("%d lines for one endpoint that is another", lines)
				}
				if change(nil, []desired.Backend{gone}); lines > few {
					t.Errorf("%d lines for one endpoint more", lines)
				}
				if change([]desired.Backend{come}, nil); lines > 2*few {
					t.Errorf("%d lines for one endpoint fewer", lines)
				}
			}
		})
	}
}

// TestSiblings pairs the pools of a Service's scopes, whose clients have one backend, whatever
// policies use the scopes.
func TestSiblings(t *testing.T) {
	local, cluster := corev1.ServiceInternalTrafficPolicyLocal, corev1.ServiceInternalTrafficPolicyCluster
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			ClusterIPs: []string{"10.96.0.1"}, ExternalIPs: []string{"192.0.2.1"}, SessionAffinity: corev1.ServiceAffinityClientIP,
			Ports: []corev1.ServicePort{{Port: 80}},
		},
	}
	s, b := desired.New(desired.Config{}), &Dataplane{frontends: map[desired.FrontendKey]*frontend{}}
	for _, c := range []struct {
		internal corev1.ServiceInternalTrafficPolicy
		external corev1.ServiceExternalTrafficPolicy
		pools    int
	}{{cluster, "Cluster", 1}, {local, "Cluster", 2}, {cluster, "Local", 2}, {cluster, "Cluster", 1}, {cluster, "Local", 2}} {
		svc.Spec.InternalTrafficPolicy, svc.Spec.ExternalTrafficPolicy = &c.internal, c.external
		s.SetService(svc)
		update := s.Change()
		b.record(&update.Change)
		var all []*pool
		for _, p := range b.pools {
			if p != nil {
				all = append(all, p)
			}
		}
		if len(all) != c.pools || c.pools == 2 && (all[0].sibling != all[1] || all[1].sibling != all[0]) {
			t.Errorf("internal %s, external %s: %d pools, %+v", c.internal, c.external, len(all), all)
		}
	}
}
