// SPDX-License-Identifier: Apache-2.0

// Package dataplane is the interface between the desired state (package desired) and the
// kernel. A dataplane translates changes into the kernel's objects. It makes no
// decisions: frontends, their backends and the verdict of empty pools are its input.
package dataplane

import (
	"context"
	"errors"
	"fmt"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/feature"
)

// Dataplane is the Programmer of a proxy mode.
type Dataplane interface {
	Programmer

	// Describe returns what only the dataplane knows of a connection to a frontend that is served by a
	// pool. Both are of the last Reconcile or Apply.
	Describe(f *desired.Frontend, pool desired.PoolID) Detail
}

// Programmer programs the kernel in one network namespace. It owns certain objects there,
// by name, and modifies no others. Its methods are not safe for concurrent use. When its
// context ends, a method returns soon, with an error that wraps the context's.
type Programmer interface {
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
	// still has the programmed content. If a Reconcile is needed, it returns an error
	// that wraps ErrDamaged, or ErrDue if no damage is known.
	Check(ctx context.Context) error

	// Cleanup removes all objects of this kind of dataplane, including those of an
	// earlier run. It is not an error if there are none.
	Cleanup(ctx context.Context) error

	// Close frees the resources of this process. The kernel's objects remain.
	Close() error
}

// Detail is what only a dataplane knows of connections to a frontend.
type Detail struct {
	// Object is the kernel's object that leads from the frontend to its endpoints.
	Object string

	// Scheduler is how an endpoint is chosen in fact: the name of a [desired.Algorithm] or of an
	// IPVS scheduler; "" while the kernel does not have the pool.
	Scheduler string

	// MasqueradesNode says that connections that start on this node are masqueraded, whatever the
	// decision is.
	MasqueradesNode bool
}

// FlowEnder is a Dataplane that keeps the endpoints of established flows itself, beside
// conntrack.
type FlowEnder interface {
	// EndFlows ends flows whose endpoints no longer serve, once the change that they
	// belong to is in effect.
	EndFlows(ctx context.Context, flows []desired.StaleFlows) error
}

// ErrDamaged says that the kernel does not have the programmed content.
var ErrDamaged = errors.New("ruleset modified externally")

// ErrInterrupted says that a [Reader] could not read, as the kernel's content changed all the time.
var ErrInterrupted = errors.New("the kernel's content kept changing while it was read")

// ErrDue says that the configured period for programming everything again has passed.
var ErrDue = errors.New("everything is to be programmed again")

// Refusal is the kernel's refusal of an object of a Service port, not for lack of permission or
// memory. The Service is left out if it recurs. Without a Service, it is not known which the object is of.
type Refusal struct {
	Service desired.ServicePort
	Err     error
}

// Error names the Service.
func (r *Refusal) Error() string {
	if r.Service == (desired.ServicePort{}) {
		return r.Err.Error()
	}
	return fmt.Sprintf("programming Service %s: %v", r.Service, r.Err)
}

// Unwrap returns the kernel's error.
func (r *Refusal) Unwrap() error { return r.Err }

// Stats is the cost of a Reconcile or Apply.
type Stats struct {
	Elements int // number of objects written and deleted: elements of sets and maps, or rules
	Bytes    int // sent to the kernel

	// Rest are the Service ports of which Apply has left a part for the next one, of an empty change if there is none.
	Rest []desired.ServicePort

	// Refused is what the kernel has newly refused. It is left out until the kernel takes it.
	Refused []desired.Problem
}

// Config is the configuration that all dataplanes share.
type Config struct {
	// NetNS is a file descriptor of the network namespace to program. 0 stands for
	// the calling thread's.
	NetNS int

	// MasqueradeBit is the bit of the packet mark, 0 to 31, that marks a packet
	// for masquerading between the hooks.
	MasqueradeBit int

	// Step is how many elements of slots of a namespace's pools one Apply adds and deletes, about; 0 for
	// [desired.MaxChange].
	Step int

	// IPVS says that there are pools that IPVS serves: the dataplane leaves their traffic alone. The
	// addresses of frontends are this node's then, so its own connections to them have them as source
	// addresses too.
	IPVS bool
}

// DefaultMasqueradeBit is kube-proxy's.
const DefaultMasqueradeBit = 14

// Prober is a Dataplane that can detect missing features of the node before it programs.
type Prober interface {
	// Probe tries to use all features that the dataplane needs, in each family,
	// and returns those that are missing. Nothing that it makes stays, even if the
	// process is killed. Afterwards the dataplane does not program a family with a
	// missing feature.
	//
	// An error says that the probe could not tell (package feature).
	Probe(ctx context.Context) ([]Missing, error)
}

// Missing is what a dataplane needs for a family and the node lacks.
type Missing struct {
	Family desired.Family
	feature.Missing
}

// String describes it in one line.
func (m Missing) String() string { return m.Family.String() + ": " + m.Error() }

// OnlyRandom is a [desired.Config.Supports] of a dataplane that chooses backends at random.
func OnlyRandom(a desired.Algorithm) error {
	if a == desired.Random {
		return nil
	}
	return fmt.Errorf("this proxy mode does not have %s; endpoints are chosen at random", a)
}

// Sequence enforces the order of a dataplane's calls: Apply may follow only a successful
// Reconcile or Apply. The zero value is the state before the first call.
type Sequence struct{ valid bool }

// Begin starts a Reconcile or a Cleanup.
func (s *Sequence) Begin() { s.valid = false }

// BeginApply starts an Apply. If it returns an error, the change must not be programmed.
func (s *Sequence) BeginApply(ctx context.Context, change *desired.Change) error {
	valid := s.valid
	s.valid = false // until Done
	switch {
	case !valid:
		return errors.New("no successful Reconcile before this Apply")
	case change.Rebuild:
		return errors.New("a change with Rebuild needs a Reconcile")
	}
	return ctx.Err()
}

// Done ends a successful Reconcile or Apply.
func (s *Sequence) Done() { s.valid = true }

// Check returns an error that wraps ErrDamaged unless the last call succeeded.
func (s *Sequence) Check() error {
	if !s.valid {
		return fmt.Errorf("%w: the last change failed", ErrDamaged)
	}
	return nil
}

// Reasons for which a ruleset rejects packets to Services. They are labels of a metric.
const (
	NoEndpoints        = "no_endpoints"        // refused: the Service port has no endpoints
	NoLocalEndpoints   = "no_local_endpoints"  // dropped: it has none that the traffic policy allows
	SourceNotAllowed   = "source_not_allowed"  // dropped: the client is not in loadBalancerSourceRanges
	UnknownPort        = "unknown_port"        // refused: the ClusterIP has no such port
	UnallocatedAddress = "unallocated_address" // dropped: no Service has the address of a ServiceCIDR

	// New connections beyond desired.Limits.
	TooManyConnections = "max_connections"
	TooManyOfClient    = "max_connections_per_client"
	TooFast            = "connection_rate_per_client"
)

// Rejected are the numbers of packets that a ruleset has rejected, by desired.Family and
// reason. They start from 0 when the kernel's objects are created again.
type Rejected [2]map[string]uint64
