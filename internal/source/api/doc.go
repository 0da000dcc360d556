// SPDX-License-Identifier: Apache-2.0

// Package api is a source that watches a Kubernetes API server: Services,
// EndpointSlices, ServiceCIDRs, and the Node that Slipstream runs on.
//
//	config, err := api.ClientConfig(connection, master, version)
//	client, err := api.NewClient(config)
//	s := api.New(client, api.Options{NodeName: name, OnError: report})
//	err = s.Run(ctx, sink)
//
// # Selectors
//
// They are those of kube-proxy 1.36: Services without the label
// service.kubernetes.io/service-proxy-name and with a cluster IP; EndpointSlices
// without the label service.kubernetes.io/headless; the one Node; all ServiceCIDRs. An
// API server that has no ServiceCIDRs (before 1.33), or does not allow to list them, is
// asked again every ten minutes. Synced does not wait for them, nor for a Node that
// does not exist yet.
//
// # Memory
//
// The Reflector of client-go lists and watches: WatchList (KEP-3157), or a list where
// the server does not stream, and resumption after a lost connection. Its informers
// would keep every object. Here only the resourceVersion of each object is kept, to
// recognize unchanged objects when everything is listed again, and deleted ones.
//
// The Reflector collects a stream of initial objects in a store. The objects are
// delivered when they are added to it, and only their names are collected (store.go).
// The answer to a list is decoded object by object (list.go). So memory does not peak
// at the start: decoding a whole answer takes several times what is kept of it.
//
// The REST clients know only the types that are used. kubernetes.Interface registers
// all groups of the API, which takes megabytes.
//
// # Delivery
//
// Events of the watches enter a queue, from which the sink is given all that waits
// whenever it returns. Of an object that changes meanwhile, the last version is
// delivered. When the queue is full, connections are not read.
//
// # Failures
//
// While the API server cannot be reached, nothing changes. Each cause is reported once.
// Reconnecting is client-go's: after 0.8 s at first, then after up to 60 s.
//
//   - After 410 Gone, or another error of a watch, everything is listed again. Deleted
//     objects are known when the list is complete.
//   - Objects of a list count whatever their version: after etcd was restored from a
//     backup they are older than before.
//   - In a watch, versions that are not newer than the delivered one are ignored.
package api
