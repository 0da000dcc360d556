// SPDX-License-Identifier: Apache-2.0

// Package dataplanetest is what the tests of all backends have in common: stories that
// each has to pass on a real kernel, and the steps of such stories.
package dataplanetest

import (
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Backend is one whose kernel can be looked at.
type Backend interface {
	dataplane.Dataplane
	dataplane.Reader
}

// Reconcile has a backend program all of a state.
func Reconcile(t testing.TB, b dataplane.Dataplane, s *desired.State) {
	t.Helper()
	if _, err := b.Reconcile(t.Context(), &s.Full().Change); err != nil {
		t.Fatal(err)
	}
}

// Apply has a backend program what changed in a state; all of it where only that will do,
// which Apply then has to refuse.
func Apply(t testing.TB, b dataplane.Dataplane, s *desired.State) {
	t.Helper()
	c := &s.Change().Change
	if c.Rebuild {
		if _, err := b.Apply(t.Context(), c); err == nil {
			t.Fatal("Apply has taken a change that only Reconcile can make")
		}
		Reconcile(t, b, s)
		return
	}
	if _, err := b.Apply(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// Has fails the test unless the kernel has what a state says.
func Has(t testing.TB, kernel dataplane.Reader, s *desired.State) {
	t.Helper()
	diff, err := dataplane.Compare(t.Context(), kernel, dataplane.ContentOf(&s.Full().Change))
	if err != nil {
		t.Fatal(err)
	}
	if diff != "" {
		t.Fatalf("the kernel differs:\n%s", diff)
	}
}

// Hosts are n host numbers.
func Hosts(n int) (all []int) {
	for i := range n {
		all = append(all, 1+i)
	}
	return all
}
