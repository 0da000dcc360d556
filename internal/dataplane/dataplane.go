// SPDX-License-Identifier: Apache-2.0

// Package dataplane is the interface between the desired state (package desired) and the
// kernel. A dataplane translates changes into the kernel's objects. It makes no
// decisions: frontends, their backends and the verdict of empty pools are its input.
package dataplane

import (
	"context"
	"errors"
	"net/netip"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Dataplane programs the kernel in one network namespace. It owns certain objects there,
// by name, and modifies no others. Its methods are not safe for concurrent use. When its
// context ends, a method returns soon, with an error that wraps the context's.
type Dataplane interface {
	// Reconcile programs the whole content (from desired.State.Full), whatever the
	// kernel has: nothing, the objects of an earlier run, or damaged objects. It
	// takes effect atomically: new connections to a frontend that both the old and
	// the new content serve are never rejected or sent to a wrong backend.
	// Established connections are not affected. Its cost is proportional to the
	// size of the cluster; it is for the start and for repair. It may retain and
	// modify slices of full.
	Reconcile(ctx context.Context, full *desired.Change) (Stats, error)

	// Apply programs a change (from desired.State.Change) to the content of the
	// last Reconcile or Apply. It takes effect atomically or not at all. Its cost
	// is proportional to the size of the change. It may retain and modify slices
	// of change. It refuses a change with Rebuild. After an error, only Reconcile
	// may follow.
	Apply(ctx context.Context, change *desired.Change) (Stats, error)

	// Check checks, cheaply enough to be called every second, whether the kernel
	// still has what was programmed. If a Reconcile is needed, it returns an error
	// that wraps ErrDamaged, or ErrDue if no damage is known.
	Check(ctx context.Context) error

	// Cleanup removes all objects of this kind of dataplane, including those of an
	// earlier run. It is not an error if there are none.
	Cleanup(ctx context.Context) error

	// Close frees the resources of this process. The kernel's objects remain.
	Close() error
}

// FlowEnder is a Dataplane that keeps the endpoints of established flows itself, beside
// conntrack.
type FlowEnder interface {
	// EndFlows ends flows whose endpoints no longer serve, once the change that they
	// belong to is in effect.
	EndFlows(ctx context.Context, flows []desired.StaleFlows) error
}

// ErrDamaged says that the kernel does not hold what was programmed.
var ErrDamaged = errors.New("ruleset modified externally")

// ErrDue says that the configured period for programming everything again has passed.
var ErrDue = errors.New("everything is to be programmed again")

// Stats is the cost of a Reconcile or Apply.
type Stats struct {
	Elements int // number of objects written and deleted: elements of sets and maps, or rules
	Bytes    int // sent to the kernel
}

// Config is the configuration that all dataplanes share.
type Config struct {
	// NetNS is a file descriptor of the network namespace to program. 0 stands for
	// the calling thread's.
	NetNS int

	// MasqueradeBit is the bit of the packet mark, 0 to 31, that marks a packet
	// for masquerading between the hooks.
	MasqueradeBit int

	// VirtualServers says that IPVS serves the pools whose only backend is Elsewhere: the
	// dataplane leaves their traffic alone. The addresses of frontends are this node's
	// then, so its own connections to them have them as source addresses too.
	VirtualServers bool
}

// Elsewhere stands for the backends of a pool that IPVS serves; see Config.VirtualServers.
var Elsewhere = desired.NewBackend(netip.AddrPortFrom(netip.IPv6Unspecified(), 0))

// DefaultMasqueradeBit is kube-proxy's.
const DefaultMasqueradeBit = 14
