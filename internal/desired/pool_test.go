// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPoolIDs: the ID of a pool that was deleted is used again as late as possible, as a packet in the
// kernel may still refer to it.
func TestPoolIDs(t *testing.T) {
	s := New(Config{})
	service := func(i int) string { return fmt.Sprint("web-", i) }
	add := func(i int) {
		s.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: service(i)},
			Spec:       corev1.ServiceSpec{ClusterIP: fmt.Sprint("10.96.0.", 1+i), Ports: []corev1.ServicePort{{Port: 80}}},
		})
	}
	ids := map[string]PoolID{}
	change := func() (fresh []PoolID) {
		for _, p := range s.Change().Pools {
			if p.New {
				fresh = append(fresh, p.ID)
				ids[p.Service.Name] = p.ID
			}
		}
		return fresh
	}
	const services = 5
	for i := range services {
		add(i)
	}
	change()
	var freed []PoolID
	for _, i := range []int{3, 0, 4} {
		freed = append(freed, ids[service(i)])
		s.DeleteService("default", service(i))
		change()
	}
	var used []PoolID
	for i := range 3 {
		add(services + i)
		used = append(used, change()...)
	}
	if !slices.Equal(used, freed) {
		t.Errorf("pools %v were deleted in this order, and %v are used again", freed, used)
	}
}

// TestConditionMerge merges random conditions and compares every bit of the result with those
// of the conditions.
func TestConditionMerge(t *testing.T) {
	for range 10_000 {
		n := 1 + rand.IntN(4)
		var all listings
		var counts [conditionBits]int
		for range n {
			c := condition(rand.Uint32()) & (1<<conditionBits - 1)
			all.count(c, 0, 1)
			for bit := range counts {
				counts[bit] += int(c >> bit & 1)
			}
		}
		gone := condition(rand.Uint32()) & (1<<conditionBits - 1)
		all.count(gone, 1, 1)
		all.count(gone, 1, -1)
		merged, weight := all.merged(n)
		if weight != 0 {
			t.Fatalf("the weight is %d", weight)
		}
		for bit, has := range counts {
			want := has > 0
			if 1<<bit == terminating {
				want = has == n
			}
			if got := merged>>bit&1 == 1; got != want {
				t.Fatalf("bit %d of %b is %t; %d of %d conditions have it", bit, merged, got, has, n)
			}
		}
	}
	if inZone != 1<<(conditionBits-1) {
		t.Errorf("there are bits beyond %d", conditionBits)
	}
}
