// SPDX-License-Identifier: Apache-2.0

// Package desired computes the desired state of a node's Service proxy. Its input is Services, EndpointSlices,
// ServiceCIDRs and the Node, and for the fast path Namespaces and the pods of this node. Its output is the frontends,
// the pools of backends, and the exact difference from the previous output. The package does no I/O, uses no clock and
// no goroutine, and is not safe for concurrent use. docs/architecture.md explains its terms: frontends, pools and
// changes. policy.go decides which backends a frontend has.
//
// # Usage
//
//	s := desired.New(desired.Config{NodeName: "node-1"})
//	s.SetService(svc)          // any number of objects, in any order;
//	s.SetEndpointSlice(slice)  // a slice may precede its Service
//	update := s.Change()       // the difference from the last Change or Full
//
// A dataplane receives the Change part of either [State.Full], the whole content, or [State.Change], the difference.
// Applying each Change in turn, until none is pending, leads to the content that Full describes, which depends on the
// objects only, not on the order of events. Fuzz tests check both.
//
// The cost of an event is proportional to the difference that it makes: an EndpointSlice with one changed endpoint is
// compared with its previous version, and one entry is updated. All endpoints of a Service port are visited only when
// the choice among them changes, for example when its last ready endpoint is removed, and those of a Service with a
// health check port after each change.
package desired
