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
// They are those of kube-proxy 1.37: Services without the label
// service.kubernetes.io/service-proxy-name and with a cluster IP; EndpointSlices
// without the label service.kubernetes.io/headless; this Node; all ServiceCIDRs. If an
// API server has no ServiceCIDRs (before 1.33) or does not allow to list them, the source
// tries again every ten minutes. Synced does not wait for them, nor for a Node that
// does not exist yet.
//
// # Memory
//
// The Reflector of client-go lists and watches: WatchList (KEP-3157), or a list where
// the server does not stream, and resumption after a lost connection. Its informers
// would keep every object. This source keeps only the resourceVersion of each object, to
// recognize unchanged and deleted objects when everything is listed again.
//
// The Reflector collects a stream of initial objects in a store. The objects are
// delivered when they are added to it, and only their names are collected (store.go).
// The answer to a list is decoded object by object (list.go). Decoding a whole answer
// would take several times the memory that is kept.
//
// The REST clients know only the types that are used. kubernetes.Interface registers
// all groups of the API, which takes megabytes.
//
// # Delivery
//
// Events of the watches enter a queue (queue.go). When the sink returns, it is called with
// the whole queue, which has only the last version of each object. A sink that blocks, for
// example while iptables-restore waits for its lock, does not keep watches from being read.
//
// # Failures
//
// While the API server cannot be reached, nothing changes. Each cause is reported once.
// Reconnecting is client-go's: after 0.8 s at first, then after up to 60 s.
//
//   - After 410 Gone, or another error of a watch, everything is listed again. Deleted
//     objects are known when the list is complete.
//   - Objects of a list are delivered even if they are older than the known version, as
//     after a restore of etcd from a backup.
//   - In a watch, versions that are not newer than the delivered one are ignored.
package api
