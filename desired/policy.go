// SPDX-License-Identifier: Apache-2.0

package desired

import corev1 "k8s.io/api/core/v1"

// This file decides which endpoints of a Service port become its backends.
// Decisions are made from counts (tally), never from a walk over endpoints, so
// that their cost does not depend on how many there are; only when a decision
// comes out differently from before (choice differs) is every endpoint of that
// one Service port looked at again.

// condition is what is known about an endpoint, as bits.
type condition uint8

const (
	ready       condition = 1 << iota // takes new connections
	serving                           // answers, though perhaps terminating
	terminating                       // is on its way out
	local                             // is on this node
	maybeLocal                        // is on this node, or does not say where
)

// class sorts an endpoint by its fitness to take new connections.
type class uint8

const (
	unusable class = iota
	lastResort
	usable
	classes
)

// class of an endpoint: terminating endpoints that still serve are a last
// resort (KEP-1669), not ready ones are of no use.
func (c condition) class() class {
	switch {
	case c&ready != 0:
		return usable
	case c&serving != 0 && c&terminating != 0:
		return lastResort
	}
	return unusable
}

// tally counts endpoints by class.
type tally struct {
	all   [classes]int
	local [classes]int
}

func (t *tally) count(c condition, n int) {
	t.all[c.class()] += n
	if c&local != 0 {
		t.local[c.class()] += n
	}
}

// policy is what a Service says about the choice of its backends.
type policy struct {
	localOnly bool // internalTrafficPolicy: Local (KEP-2086)
}

func policyOf(svc *corev1.Service) (p policy) {
	if l := svc.Spec.InternalTrafficPolicy; l != nil {
		p.localOnly = *l == corev1.ServiceInternalTrafficPolicyLocal
	}
	return p
}

// choice is which endpoints are backends, and what happens when none is.
type choice struct {
	class     class
	localOnly bool
	ifEmpty   Verdict
}

// choose decides. Endpoints of the best class that has any are taken.
func (p policy) choose(t *tally) choice {
	among := &t.all
	if p.localOnly {
		among = &t.local
	}
	c := choice{class: usable, localOnly: p.localOnly}
	if among[usable] == 0 && among[lastResort] > 0 {
		c.class = lastResort
	}
	if p.localOnly && t.all[usable]+t.all[lastResort] > 0 {
		c.ifEmpty = Drop
	}
	return c
}

// takes says whether an endpoint of that condition is a backend.
func (c choice) takes(e condition) bool {
	return e.class() == c.class && (!c.localOnly || e&local != 0)
}
