// SPDX-License-Identifier: Apache-2.0

// Package source says where the objects that Slipstream acts on come from:
// Services, EndpointSlices, Nodes and ServiceCIDRs, delivered as a stream of
// events.
//
// A source hands over complete objects, with the defaults of the Kubernetes
// API applied and valid by the rules of its validation, so that whoever
// consumes the events never has to ask either question again. The package
// internal/source/manifest is a source that reads a directory of manifests.
package source

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Object is what an event is about: a *corev1.Service, a
// *discoveryv1.EndpointSlice, a *corev1.Node or a *networkingv1.ServiceCIDR.
type Object interface {
	metav1.Object
	runtime.Object
}

// Type tells what an event means for the object it carries.
type Type int

const (
	// Set says that the object exists and is now as Event.Object has it. It
	// does not tell a new object from a changed one.
	Set Type = iota + 1
	// Delete says that the object no longer exists.
	Delete
	// Synced says that everything the source knew when it started has been
	// delivered. It comes once in a run. Until then what is missing may merely
	// not have been delivered yet, so nothing should be removed on its account.
	Synced
)

// String returns "Set", "Delete" or "Synced".
func (t Type) String() string {
	switch t {
	case Set:
		return "Set"
	case Delete:
		return "Delete"
	case Synced:
		return "Synced"
	}
	return fmt.Sprintf("Type(%d)", int(t))
}

// Event is one thing that a source has learned.
type Event struct {
	Type Type
	// Object is the object as it is now (Set), or an object of the right Go
	// type with at least its namespace and name (Delete), or nil (Synced). It
	// is shared with the source, which compares later versions with it: read
	// it, never write to it.
	Object Object
}

// String returns the event for logs, e.g. "Set Service default/web".
func (e Event) String() string {
	if e.Object == nil {
		return e.Type.String()
	}
	return e.Type.String() + " " + Name(e.Object)
}

// Source is where objects come from.
type Source interface {
	// Run delivers events to sink: first the objects that exist at the start,
	// then one Synced event, then changes as they happen. It returns nil when
	// ctx ends, and an error when it could not start or cannot go on.
	//
	// A batch holds what changed together and is meant to be acted on
	// together; it has at most one event for an object and is not empty. An
	// object that has not changed is not delivered again.
	//
	// sink is never called concurrently and never after Run has returned. It
	// may block: the source then waits, and what happens meanwhile follows in
	// a later batch.
	Run(ctx context.Context, sink func(batch []Event)) error
}
