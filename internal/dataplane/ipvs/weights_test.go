// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// TestWeights: destinations have the weights of their slices, which wrr follows exactly.
func TestWeights(t *testing.T) {
	s := newStreet(t, 3, Options{Scheduler: "wrr"})
	weigh := func(weights ...string) {
		t.Helper()
		for i, w := range weights {
			slice := dataplanetest.Slice(i)
			slice.Annotations = map[string]string{desired.AnnotationWeight: w}
			s.state.SetEndpointSlice(slice)
		}
		dataplanetest.Apply(t, s.backend, s.state)
		dataplanetest.Has(t, s.backend, s.state)
		if err := s.backend.Check(t.Context()); err != nil {
			t.Errorf("weights %v: %v", weights, err)
		}
	}
	for _, step := range []struct {
		weights []string
		hits    []int
	}{
		{[]string{"100", "10", "40"}, []int{20, 2, 8}},
		{[]string{"0", "10", "20"}, []int{0, 10, 20}},
		{[]string{"100", "100", "100"}, []int{10, 10, 10}},
	} {
		weigh(step.weights...)
		hits := s.hits(30)
		for i, want := range step.hits {
			// wrr goes on in its round, where the weights were others.
			if got := hits[dataplanetest.FirstPort+uint16(i)]; got < want-1 || got > want+1 || want == 0 && got > 0 {
				t.Errorf("weights %v: hits %v", step.weights, hits)
			}
		}
	}
	weigh("50", "100", "100")
	dataplanetest.Reconcile(t, s.backend, s.state)
	dataplanetest.Has(t, s.backend, s.state)
}
