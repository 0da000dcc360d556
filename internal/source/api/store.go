// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// store is the cache of a kind's Reflector. It delivers objects and keeps only their
// versions. It is used by one goroutine at a time.
type store struct {
	kind  *kind
	put   func(source.Event)
	full  func()           // called when all existing objects have been delivered
	heard func()           // called at each event of a watch
	known map[string]known // delivered objects by namespace/name
	round uint32
}

type known struct {
	// version is the resourceVersion; 0 if it is not a number of 64 bits. The API
	// promises comparable numbers of any length (KEP-5504). Objects with longer
	// ones are delivered even if they have not changed.
	version uint64
	round   uint32 // the last complete list that had it
}

var (
	_ cache.TransformingStore      = (*store)(nil)
	_ cache.ResourceVersionUpdater = (*store)(nil)
)

// delivered is the name of an object that was delivered when it was read. The Reflector
// collects it instead of the object.
type delivered string

// GetObjectKind implements runtime.Object.
func (delivered) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object.
func (d delivered) DeepCopyObject() runtime.Object { return d }

// Transformer returns a function that the Reflector applies to each initial object of a
// stream, before it collects them for Replace. The function delivers the object, and its name
// is collected. If the stream ends early, Replace follows a later stream.
func (s *store) Transformer() cache.TransformFunc {
	return func(o any) (any, error) { return s.set(o, true) }
}

// Replace takes a complete list, of objects or of names of those delivered, and deletes
// all other objects.
func (s *store) Replace(list []any, _ string) error {
	s.round++
	for i, o := range list {
		name, done := o.(delivered)
		if !done {
			var err error
			if name, err = s.set(o, true); err != nil {
				return err
			}
			list[i] = nil // frees the object early
		}
		k := s.known[string(name)]
		k.round = s.round
		s.known[string(name)] = k
	}
	for name, k := range s.known {
		if k.round != s.round {
			s.deleted(name)
		}
	}
	s.full()
	return nil
}

// Add takes a new object of a watch.
func (s *store) Add(o any) error {
	_, err := s.set(o, false)
	return err
}

// Update takes a changed object of a watch.
func (s *store) Update(o any) error { return s.Add(o) }

// Delete takes a deleted object of a watch, with the version of its deletion.
func (s *store) Delete(object any) error {
	o, ok := object.(source.Object)
	if !ok {
		return fmt.Errorf("%T instead of %s", object, s.kind.name)
	}
	name := cache.MetaObjectToName(o).String()
	if k, ok := s.known[name]; ok && !older(versionOf(o), k.version) {
		s.deleted(name)
	}
	return nil
}

// UpdateResourceVersion is called at each event of a watch. The server sends a bookmark about each
// minute if nothing changes.
func (s *store) UpdateResourceVersion(string) { s.heard() }

// Resync does nothing, as the store has no copies to deliver again.
func (s *store) Resync() error { return nil }

// set delivers an object, unless this version was delivered, and returns its name. In a
// watch, older versions are ignored.
func (s *store) set(object any, listed bool) (delivered, error) {
	o, ok := object.(source.Object)
	if !ok {
		return "", fmt.Errorf("%T instead of %s", object, s.kind.name)
	}
	name := cache.MetaObjectToName(o).String()
	version := versionOf(o)
	k, ok := s.known[name]
	if ok && version != 0 && version == k.version || !listed && older(version, k.version) {
		return delivered(name), nil
	}
	k.version = version
	s.known[name] = k
	if ok && s.kind.metadata {
		return delivered(name), nil
	}
	o.SetManagedFields(nil) // may be most of the object
	if s.kind.strip != nil {
		s.kind.strip(o)
	}
	s.put(source.Event{Type: source.Set, Object: o})
	return delivered(name), nil
}

// deleted delivers the deletion of an object.
func (s *store) deleted(name string) {
	delete(s.known, name)
	n, err := cache.ParseObjectName(name)
	if err != nil {
		return // cannot happen: String made the name
	}
	s.put(source.Event{Type: source.Delete, Object: s.kind.object(n.Namespace, n.Name)})
}

// versionOf returns an object's version as in known.
func versionOf(o source.Object) uint64 {
	v, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return 0
	}
	return v
}

// older reports whether version a is known to precede b.
func older(a, b uint64) bool { return a != 0 && a < b }
