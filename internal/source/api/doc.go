// SPDX-License-Identifier: Apache-2.0

// Package api is a source that watches a Kubernetes API server: Services,
// EndpointSlices, ServiceCIDRs, and the Node that Slipstream runs on.
//
//	config, err := api.ClientConfig(connection, master, version)
//	client, err := api.NewClient(config)
//	s := api.New(client, api.Options{NodeName: name})
//	err = s.Run(ctx, sink)
//
// # What is watched
//
// What kube-proxy 1.36 watches, with its selectors: Services without the label
// service.kubernetes.io/service-proxy-name and with a cluster IP; EndpointSlices
// without the label service.kubernetes.io/headless; the one Node; all ServiceCIDRs.
// An API server that has no ServiceCIDRs (before 1.33), or does not let them be
// listed, is told of in one line and asked again every ten minutes; all else goes on
// without them. Of the Node there may be none: Synced does not wait for it, and it
// is taken when it appears.
//
// # What is kept
//
// client-go's Reflector does the talking: WatchList (KEP-3157), or a list where the
// server does not stream; resumption after a lost connection. Its informers are not
// used: they keep every object, and the desired state keeps what it needs of them
// already, in a far smaller form. Here, a version is kept for each object, by
// its name: enough to pass over what has not changed when the API server lists
// everything again, and to know what is gone. (Of the Node and of ServiceCIDRs the
// last version is kept whole. There are few, and most of their changes, such as
// heartbeats, are of what does not matter.)
//
// Nor is there a full copy on the way. The Reflector collects what WatchList streams
// in a store of its own, until the stream says that all is there; objects are
// delivered and let go of when they go into it, leaving their names (store.go). A
// server that does not stream sends one long answer; it is read object by object, too
// (list.go). So the first listing takes as much memory as what waits in the queue and
// in the connection, where decoding a whole answer takes several times what is kept.
//
// The REST clients know the few kinds that are used. kubernetes.Interface would link
// in and register all groups of the API, which takes megabytes before the first request.
//
// # When it is delivered
//
// At once, and without timers: an event of a watch goes into a queue, from which the
// sink is given what is there whenever it can take something. What came meanwhile is
// one batch, in which the last version of an object counts. The queue is bounded:
// when it is full nothing more is read from the connections.
//
// # What trouble does
//
// While the API server cannot be reached, everything stays. One line says why and
// another when it is back. Reconnecting is client-go's: after 0.8 s at first, then
// longer and longer, up to between 30 and 60 s.
//
//   - 410 Gone, or a watch that ends with another error: all is listed again. What
//     is as it was is not delivered; what is gone is deleted when the list is
//     complete, not before.
//   - A list counts, whatever versions it has: after etcd was restored from a
//     backup they are older than before.
//   - In a watch, a version that was delivered already and one older than that are
//     passed over.
//   - Of an address that nothing can be sent to (see check.go) there is one error,
//     and it is left out.
//
// An API server has validated and defaulted what it stores, by rules that may have
// been laxer when it was stored, so objects are not validated again by the rules for
// new ones: what they say means here what it means to kube-proxy. What package
// desired cannot act on it tells itself.
package api
