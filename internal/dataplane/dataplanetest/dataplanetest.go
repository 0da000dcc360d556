// SPDX-License-Identifier: Apache-2.0

// Package dataplanetest has the tests that every dataplane has to pass on a real kernel, and
// helpers for further tests.
package dataplanetest

import (
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Backend is a dataplane that can read its content back.
type Backend interface {
	dataplane.Dataplane
	dataplane.Reader
	Supports(desired.Algorithm) error
}

// Reconcile programs the whole content of a state.
func Reconcile(t testing.TB, b dataplane.Dataplane, s *desired.State) {
	t.Helper()
	if _, err := b.Reconcile(t.Context(), &s.Full().Change); err != nil {
		t.Fatal(err)
	}
}

// Apply programs the change of a state. If the change is a Rebuild, it checks that Apply
// refuses it, and programs the whole content.
func Apply(t testing.TB, b dataplane.Dataplane, s *desired.State) {
	t.Helper()
	c := &s.Change().Change
	if c.Rebuild {
		if _, err := b.Apply(t.Context(), c); err == nil {
			t.Fatal("Apply accepted a change with Rebuild")
		}
		Reconcile(t, b, s)
		return
	}
	stats, err := b.Apply(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if s.Pending() || len(stats.Rest) > 0 { // a large change has parts
		Apply(t, b, s)
	}
}

// Has fails the test unless the kernel has the content of a state.
func Has(t testing.TB, kernel dataplane.Reader, s *desired.State) {
	t.Helper()
	v, err := dataplane.Verify(t.Context(), kernel, &s.Full().Change)
	if err != nil {
		t.Fatal(err)
	}
	if len(v.Differences) > 0 {
		t.Fatalf("the kernel differs:\n%s", v)
	}
}

// Hosts returns the host numbers 1 to n.
func Hosts(n int) (all []int) {
	for i := range n {
		all = append(all, 1+i)
	}
	return all
}
