// SPDX-License-Identifier: Apache-2.0

// Package desired decides what a node's Service proxy should do. It is pure:
// Services, EndpointSlices and the Node go in; frontends, the backends chosen
// for them, and the exact change since it was last asked come out. It does no
// I/O, has no clock and no goroutine, and is not safe for concurrent use.
//
// # Words
//
// A frontend is what a client connects to: an address, a protocol and a port.
// A backend is an endpoint that may answer: an address and a port. Between the
// two stands a pool: the backends that were chosen for one Service port in one
// address family. Frontends that share their backends share their pool.
//
// # How it is used
//
//	s := desired.New(desired.Config{NodeName: "node-1"})
//	s.SetService(svc)          // any number of objects, in any order;
//	s.SetEndpointSlice(slice)  // a slice may come before its Service
//	update := s.Change()       // what differs from the last Change or Full
//
// A dataplane is given the Change part of either [State.Full], the whole content,
// or [State.Change], what differs since. The other parts of an [Update] are for
// health checks, conntrack and the log. Applying each Change to what the last
// one left always gives the content that Full would describe; the final content
// depends on the objects alone and not on the order in which they came. Both
// are fuzzed.
//
// # Cost
//
// The cost of an event, and of the Change it leads to, follows what differs:
// an EndpointSlice that changes one of its endpoints costs a comparison with
// its old self and one step for each endpoint that differs; no other Service,
// and no other slice of the same Service, is looked at. The exceptions follow
// from what they mean: when the last ready endpoint of a Service goes, all of
// its terminating ones are chosen instead, and so all are looked at.
//
// # Where a decision belongs
//
// Every decision about which backends a frontend has, and about what is
// masqueraded, is taken in policy.go. A dataplane gets the outcome as data: pools,
// the verdict of an empty one, and a [MasqueradePolicy].
package desired
