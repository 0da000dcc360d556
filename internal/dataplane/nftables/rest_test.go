// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// tableOf sets Service default/web-i with a scheduler and endpoints of weights, with 0 for none.
func tableOf(s *desired.State, i int, scheduler string, weights []uint8) {
	name := fmt.Sprint("web-", i)
	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{desired.AnnotationScheduler: scheduler}},
		Spec:       corev1.ServiceSpec{ClusterIP: fmt.Sprint("10.96.0.", i), Ports: []corev1.ServicePort{{Port: 80}}},
	})
	for h, weight := range weights {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: fmt.Sprint(name, "-", h),
				Labels: map[string]string{discoveryv1.LabelServiceName: name}, Annotations: map[string]string{desired.AnnotationWeight: fmt.Sprint(weight)},
			},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: ptr.To[int32](8080)}},
		}
		if weight > 0 {
			slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{fmt.Sprintf("10.244.%d.%d", i, 1+h)}}}
		}
		s.SetEndpointSlice(slice)
	}
}

// drawn returns the backends in the slots of each pool that the kernel's rules draw from, by pool, and how many elements
// of slots there are. A slot that is missing fails the test.
func (k *kernel) drawn() (all map[uint32]map[desired.Backend]bool, elements int) {
	k.t.Helper()
	r := tableReader{schema: k.schemas[desired.IPv4], conn: k.conn}
	r.init()
	for _, err := range []error{
		k.conn.Elements(r.table, r.schema.pools.Name, r.readPool),
		k.conn.Elements(r.table, r.addressSets[0].endpoints.Name, func(e nfnl.Element) { r.endpoint(0, e) }),
	} {
		if err != nil {
			k.t.Fatal(err)
		}
	}
	all = map[uint32]map[desired.Backend]bool{}
	for id, selector := range r.selectors {
		all[id] = map[desired.Backend]bool{}
		n := selector & sizeMask
		for slot := range n {
			b, has := r.slots[0][id][uint32(slot)]
			if !has && !ordered(selector) && n > exactSizes && slot > n/2 { // the rules draw again
				continue
			}
			if !has {
				k.t.Fatalf("pool %d with %#x has no slot %d", id, selector, slot)
			}
			all[id][b] = true
		}
	}
	for _, slots := range r.slots[0] {
		elements += len(slots)
	}
	return all, elements
}

// TestTablesInParts has tables of slots come, change, and go while parts of others are left. After each Apply, the rules
// draw from slots that are there and have backends of the pool, and no others. It writes few elements unless backends are
// removed. In the end the kernel has all tables, and nothing of those that went.
func TestTablesInParts(t *testing.T) {
	slow(t)
	const step, services, hosts = 60, 8, 12
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	t.Log("seed", seed)
	k := newKernel(t)
	k.config.Step = step
	s := desired.New(smallTables(desired.Config{NodeName: "n1"}))
	dataplanetest.Reconcile(t, k.Dataplane, s)
	rests := 0
	apply := func(removes bool) {
		t.Helper()
		stats, err := k.Apply(t.Context(), &s.Change().Change)
		if err != nil {
			t.Fatal(err)
		}
		if rests += len(stats.Rest); !removes && stats.Elements > step+50 {
			t.Fatalf("%d elements are written", stats.Elements)
		}
		drawn, _ := k.drawn()
		for _, p := range s.Reported().Pools {
			has := drawn[k.writer.number(p.ID)]
			for _, b := range p.Added {
				delete(has, b)
			}
			if len(has) > 0 {
				t.Fatalf("%s draws %v, which it does not have", p.Service, has)
			}
			if len(p.Added) > 0 && drawn[k.writer.number(p.ID)] == nil {
				t.Fatalf("%s is missing", p.Service)
			}
		}
		if err := k.checkAll(t); err != nil {
			t.Fatal(err)
		}
	}
	var all [1 + services][]uint8
	for i := 1; rests < 600; {
		removes := false
		for range 1 + r.IntN(3)*r.IntN(2) {
			if r.IntN(4) == 0 {
				i = 1 + r.IntN(services)
			}
			weights := make([]uint8, hosts)
			for h := range weights {
				weights[h] = []uint8{0, 17, 17, 17, 34, 51}[r.IntN(6)]
				removes = removes || weights[h] == 0 && len(all[i]) > 0 && all[i][h] > 0
			}
			switch r.IntN(8) {
			case 0:
				all[i] = nil
				s.DeleteService("default", fmt.Sprint("web-", i))
				fallthrough
			case 1:
				clear(weights) // no endpoint
				removes = true
			}
			if all[i] != nil || weights[0] > 0 {
				all[i] = weights
				tableOf(s, i, []string{"maglev", "mh", "random", "random", "rr"}[r.IntN(5)], weights)
			}
		}
		apply(removes)
	}
	for range 100 {
		apply(false)
	}
	k.has(s)
	slots := 0
	for _, p := range k.pools {
		if p != nil {
			slots += len(p.Slots)
		}
	}
	if _, n := k.drawn(); n != slots || len(k.rests) > 0 {
		t.Errorf("%d slots are in the kernel, want %d; %d rests", n, slots, len(k.rests))
	}
}
