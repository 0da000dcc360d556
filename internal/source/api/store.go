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

// store is what the Reflector of one kind takes for its cache. It passes objects on
// and keeps their versions. It is used by one goroutine at a time.
type store struct {
	kind  *kind
	put   func(source.Event)
	full  func()           // all objects there are have been passed on
	known map[string]known // by namespace/name: what was passed on
	round uint32
}

// known is what is kept of an object.
type known struct {
	// version is the resourceVersion; 0 if it is not a number of 64 bits. The API
	// promises numbers that can be compared (KEP-5504), of any length; with longer
	// ones there is no passing over, and everything else works.
	version uint64
	round   uint32 // the last complete list that had it
}

var _ cache.TransformingStore = (*store)(nil)

// passed is the name of an object that was passed on when it was read, in a list that
// the Reflector has instead of objects.
type passed string

// GetObjectKind implements runtime.Object.
func (passed) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object.
func (p passed) DeepCopyObject() runtime.Object { return p }

// Transformer is what the Reflector does with each object of a stream before it puts
// it into the store in which it collects them, until it calls Replace with what is in
// there. Objects are passed on right here, and only their names are collected. If the
// stream breaks off, what came of it was as true as any, and Replace is called after
// a later one.
func (s *store) Transformer() cache.TransformFunc {
	return func(o any) (any, error) { return s.set(o, true) }
}

// Replace takes a complete list, of objects or of the names of those that were passed
// on already, and forgets what is not in it.
func (s *store) Replace(list []any, _ string) error {
	s.round++
	for i, o := range list {
		name, done := o.(passed)
		if !done {
			var err error
			if name, err = s.set(o, true); err != nil {
				return err
			}
			list[i] = nil // it need not wait for the others
		}
		k := s.known[string(name)]
		k.round = s.round
		s.known[string(name)] = k
	}
	for name, k := range s.known {
		if k.round != s.round {
			s.gone(name)
		}
	}
	s.full()
	return nil
}

// Add takes an object that a watch says is new.
func (s *store) Add(o any) error {
	_, err := s.set(o, false)
	return err
}

// Update takes an object that a watch says has changed.
func (s *store) Update(o any) error { return s.Add(o) }

// Delete takes an object that a watch says is gone, with the version of its end.
func (s *store) Delete(object any) error {
	o, ok := object.(source.Object)
	if !ok {
		return fmt.Errorf("%T instead of %s", object, s.kind.name)
	}
	name := cache.MetaObjectToName(o).String()
	if k, ok := s.known[name]; ok && !older(versionOf(o), k.version) {
		s.gone(name)
	}
	return nil
}

// Resync does nothing: there are no copies that could be delivered again.
func (s *store) Resync() error { return nil }

// set passes an object on, unless that version was, and returns its name. What a list
// says counts; in a watch, nothing older than what is known does.
func (s *store) set(object any, listed bool) (passed, error) {
	o, ok := object.(source.Object)
	if !ok {
		return "", fmt.Errorf("%T instead of %s", object, s.kind.name)
	}
	name := cache.MetaObjectToName(o).String()
	version := versionOf(o)
	k, ok := s.known[name]
	if ok && version != 0 && version == k.version || !listed && older(version, k.version) {
		return passed(name), nil
	}
	k.version = version
	s.known[name] = k
	o.SetManagedFields(nil) // may be most of an object that waits in the queue
	s.put(source.Event{Type: source.Set, Object: o})
	return passed(name), nil
}

// gone passes on that an object is gone.
func (s *store) gone(name string) {
	delete(s.known, name)
	n, err := cache.ParseObjectName(name)
	if err != nil {
		return // it was made by String
	}
	s.put(source.Event{Type: source.Delete, Object: s.kind.object(n.Namespace, n.Name)})
}

// versionOf is an object's version, or 0.
func versionOf(o source.Object) uint64 {
	v, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return 0
	}
	return v
}

// older says whether version a comes before b, as far as that is known.
func older(a, b uint64) bool { return a != 0 && a < b }
