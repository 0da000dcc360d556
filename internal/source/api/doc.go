// SPDX-License-Identifier: Apache-2.0

// Package api is a source that watches a Kubernetes API server: Services, EndpointSlices,
// ServiceCIDRs, the Node that Slipstream runs on, and where options ask for it NetworkPolicies,
// Namespaces, the pods of the Node, and all Nodes or their metadata. The selectors are those of kube-proxy 1.37 (kinds.go).
//
// The Reflector of client-go decides what to request: WatchList (KEP-3157), or a list where the
// server does not stream, and resumption after a lost connection. Whoever reads an object (stream.go, list.go)
// delivers it to the sink at once, past the Reflector, and keeps only its name and version.
// EndpointSlices are decoded by code of their own, which leaves out what a proxy does not use (slice.go). A server that is
// near is asked not to compress (client.go).
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
//   - A backup of etcd that is restored with the old revisions (without etcdutl's
//     --bump-revision) is not noticed: the server lets a watch resume at a version that it
//     has not reached. The same is true for kube-proxy. Both have to be restarted then.
//   - ServiceCIDRs that a server does not have (before 1.33) or does not allow to list are
//     asked for every ten minutes. Synced does not wait for them, nor for a Node that does
//     not exist yet.
package api
