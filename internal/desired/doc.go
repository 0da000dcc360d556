// SPDX-License-Identifier: Apache-2.0

// Package desired computes the desired state of a node's Service proxy. Its input is
// Services, EndpointSlices, ServiceCIDRs and the Node. Its output is the frontends,
// the pools of backends, and the exact difference from the previous output. The
// package does no I/O, uses no clock and no goroutine, and is not safe for concurrent
// use.
//
// # Terms
//
// A frontend is an address, protocol and port that clients connect to. A backend is
// the address and port of an endpoint. A pool is the set of backends chosen for one
// Service port in one address family. Frontends with the same backends share a pool.
//
// # Usage
//
//	s := desired.New(desired.Config{NodeName: "node-1"})
//	s.SetService(svc)          // any number of objects, in any order;
//	s.SetEndpointSlice(slice)  // a slice may precede its Service
//	update := s.Change()       // the difference from the last Change or Full
//
// A dataplane receives the Change part of either [State.Full], the whole content, or
// [State.Change], the difference. The other parts of an [Update] are for health
// checks, conntrack and the log. Applying each Change in turn always leads to the
// content that Full describes. The final content depends on the objects only, not on
// the order of events. Fuzz tests check both.
//
// # Cost
//
// The cost of an event is proportional to the difference that it makes. An
// EndpointSlice with one changed endpoint is compared with its previous version, and
// one entry is updated; no other Service and no other slice of the same Service is
// visited. All endpoints of a Service port are visited only when the choice among them
// changes: for example, when its last ready endpoint is removed, all terminating
// endpoints are chosen instead. And those of a Service with a health check port are counted.
//
// # Where decisions are made
//
// Which backends a frontend has and which traffic is masqueraded is decided in
// policy.go and nowhere else. A dataplane receives the outcome as data: pools, the
// verdict of an empty pool, and a [MasqueradePolicy].
package desired
