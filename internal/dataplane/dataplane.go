// SPDX-License-Identifier: Apache-2.0

// Package dataplane is the boundary between what is wanted (package desired) and
// the kernel's objects. A backend turns a change into such objects and decides
// nothing: which frontends there are, which backends they have, what happens
// when they have none, has been decided when it is called.
package dataplane

import (
	"context"
	"errors"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Dataplane programs the kernel of one node (one network namespace). It owns
// certain objects there, by name, and touches nothing else. Its methods are not for concurrent
// use. When its context ends, a method returns soon, with an error that wraps the
// context's.
type Dataplane interface {
	// Reconcile makes the kernel hold exactly what full says (as from
	// desired.State.Full), whatever it holds: nothing, what an earlier run
	// left, or something damaged. It takes effect in one step: at no time
	// is a new connection to a frontend refused, or sent to a wrong
	// backend, that both the old and the new content serve. Established
	// connections are not touched. Its cost follows the cluster's size; it
	// is for starting and for repair. It may keep slices of full and change
	// them.
	Reconcile(ctx context.Context, full *desired.Change) (Stats, error)

	// Apply takes the step that change describes (as from
	// desired.State.Change) from what the last Reconcile or Apply left. It
	// takes effect as a whole or not at all, at a cost that follows the
	// change, of which it may keep and change slices too. After an error only
	// Reconcile may follow; so it is after a change with Rebuild, which Apply
	// refuses.
	Apply(ctx context.Context, change *desired.Change) (Stats, error)

	// Check finds out, cheaply enough to be called every second, whether
	// the kernel still holds what was programmed. It returns an error
	// that wraps ErrDamaged when a Reconcile is due, or ErrDue when it is due
	// although nothing is known to be damaged.
	Check(ctx context.Context) error

	// Cleanup removes everything that a backend of this kind has ever
	// programmed, also by an earlier run. Nothing there is no error.
	Cleanup(ctx context.Context) error

	// Close frees what the backend holds in this process and leaves the
	// kernel's objects as they are.
	Close() error
}

// ErrDamaged says that the kernel does not hold what was programmed.
var ErrDamaged = errors.New("ruleset modified externally")

// ErrDue says that it is time to program everything again, as somebody has asked for
// from time to time.
var ErrDue = errors.New("everything is to be programmed again")

// Stats tells what a Reconcile or Apply cost.
type Stats struct {
	Elements int // objects written and deleted: set and map elements, rules or destinations
	Bytes    int // sent to the kernel
}

// Config is what all kinds of backend have to know beside the desired state.
type Config struct {
	// NetNS is a file descriptor of the network namespace to program; 0 is
	// the calling thread's.
	NetNS int

	// MasqueradeBit is the bit of the packet mark, 0 to 31, that a packet
	// carries between the hook where masquerading is decided and the one
	// where it is done.
	MasqueradeBit int
}

// DefaultMasqueradeBit is kube-proxy's.
const DefaultMasqueradeBit = 14
