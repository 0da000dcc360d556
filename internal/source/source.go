// SPDX-License-Identifier: Apache-2.0

// Package source defines sources of Services, EndpointSlices, Nodes, ServiceCIDRs, NetworkPolicies,
// Namespaces and Pods, which deliver them as a stream of events. Package api watches a Kubernetes
// API server, package manifest a directory of manifests.
//
// Objects are decoded, but need not be valid: an API server keeps objects that it has
// stored by the laxer rules of earlier releases, and defaults may be missing. Package
// desired assumes the API's defaults, leaves out what cannot be programmed, and reports
// it.
package source

import (
	"context"
	"fmt"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Object is a *corev1.Service, a *discoveryv1.EndpointSlice, a *corev1.Node, a
// *networkingv1.ServiceCIDR, a *networkingv1.NetworkPolicy, a *corev1.Namespace, a *corev1.Pod, or a
// *metav1.PartialObjectMetadata, which is the metadata of a Node.
type Object interface {
	metav1.Object
	runtime.Object
}

// Type is the meaning of an event for its object.
type Type int

const (
	// Set: the object is new or has changed.
	Set Type = iota + 1
	// Delete: the object no longer exists.
	Delete
	// Synced: all objects that existed at the start have been delivered. It
	// occurs once in a run. Before it, an object that is missing may still be
	// delivered, so nothing must be removed.
	Synced
)

// String returns "Set", "Delete" or "Synced".
func (t Type) String() string {
	if t < Set || t > Synced {
		return fmt.Sprintf("Type(%d)", int(t))
	}
	return [...]string{Set: "Set", Delete: "Delete", Synced: "Synced"}[t]
}

// Event is a change of one object, or Synced.
type Event struct {
	Type Type
	// Object is the current object (Set), an object of the same Go type with at
	// least a namespace and a name (Delete), or nil (Synced). It is shared with
	// the source and must not be modified.
	Object Object
}

// String returns the event for logs, e.g. "Set Service default/web".
func (e Event) String() string {
	if e.Object == nil {
		return e.Type.String()
	}
	return e.Type.String() + " " + Name(e.Object)
}

// Source delivers objects.
type Source interface {
	// Run delivers events to sink: the objects that exist at the start, one
	// Synced event, then changes. It returns nil when ctx ends, and an error
	// when it cannot start or continue.
	//
	// A batch is not empty and has at most one event for an object. Its events
	// belong together. An object that has not changed is not delivered again.
	//
	// sink, which is [Queue.Put], may be called concurrently, and blocks at most until Synced.
	// It is not called after Run has returned.
	Run(ctx context.Context, sink func(batch []Event)) error
}

// Contact is the state of a connection to an API server.
type Contact struct {
	Heard   time.Time `json:"heard,omitzero"`   // when it last answered a request or sent something over a watch
	Failing time.Time `json:"failing,omitzero"` // since when requests fail; zero if they do not
	Cause   string    `json:"cause,omitempty"`  // why the first of these failed
}

// Kind returns the Kubernetes kind of an object, which is the name of its Go type, and "NodeMetadata" for the
// metadata of a Node. Decoded objects of an API server have an empty kind.
func Kind(o Object) string {
	if _, is := o.(*metav1.PartialObjectMetadata); is {
		return "NodeMetadata"
	}
	return reflect.TypeOf(o).Elem().Name()
}

// Name returns an object's kind, namespace and name for messages, e.g. "Service default/web" or
// "Node worker-1".
func Name(o Object) string {
	if ns := o.GetNamespace(); ns != "" {
		return Kind(o) + " " + ns + "/" + o.GetName()
	}
	return Kind(o) + " " + o.GetName()
}
