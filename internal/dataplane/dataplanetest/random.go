// SPDX-License-Identifier: Apache-2.0

package dataplanetest

import (
	"math/rand/v2"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/desired/desiredtest"
)

// RandomSequence applies a random sequence of changes to a dataplane. It compares the
// kernel's content with the desired content, and with that of another dataplane that is
// programmed from nothing. The seed determines the sequence. size is its length in bytes of
// random input.
func RandomSequence(t *testing.T, seed uint64, size int, k, other Backend) {
	t.Helper()
	c := desiredtest.NewChoices(desiredtest.RandomInput(seed, size))
	var objects desiredtest.Objects
	s := desired.New(desired.Config{
		NodeName:    desiredtest.ThisNode,
		DetectLocal: desired.DetectLocal{Mode: desired.ByNodeCIDR},
	})
	Reconcile(t, k, s)
	for n := 0; c.More(); n++ {
		objects.Step(c, s)
		if c.Below(3) > 0 {
			continue
		}
		if c.Below(16) == 0 {
			Reconcile(t, k, s)
		} else {
			Apply(t, k, s)
		}
		if n%8 == 0 {
			Has(t, k, s)
		}
	}
	Apply(t, k, s)
	Has(t, k, s)
	if err := k.Check(t.Context()); err != nil {
		t.Error(err)
	}

	fresh := desired.New(desired.Config{NodeName: desiredtest.ThisNode})
	objects.SetAll(fresh, rand.New(rand.NewPCG(seed, 1)))
	Reconcile(t, other, fresh)
	Has(t, other, fresh)
	Has(t, k, fresh) // so the results of changes and of fresh programming are equal
}
