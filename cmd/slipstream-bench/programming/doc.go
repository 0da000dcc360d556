// SPDX-License-Identifier: Apache-2.0

// Package programming measures what Slipstream costs on the machine at hand, with
// the real kernel, and next to it what the same Services cost as a ruleset in
// the shape of kube-proxy's in the same mode, nftables or iptables.
//
// [Sync] measures programming: a cold start, a restart, single changes, bursts
// and memory. Every measured system runs in a child process of its own, so that
// memory numbers are its own, and in that process's own network namespace, so
// that nothing is left behind. The parent tells the children step by step what
// to do, taking turns between them, and collects what they report; see child.go.
//
// The measured code is the product's: package desired and a backend, called as
// package proxy calls them. The cluster is made up by a seeded generator, object
// by object, so that the generator takes up no memory to speak of.
package programming
