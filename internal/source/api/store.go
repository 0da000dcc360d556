// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strconv"

	"k8s.io/client-go/tools/cache"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// store delivers objects and keeps only their versions. It is used by one goroutine at a time.
type store struct {
	kind  *kind
	put   func(source.Event)
	full  func()           // called when all existing objects have been delivered
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

// begin starts a list of all objects.
func (s *store) begin() { s.round++ }

// end says that a list is complete. Objects that it does not have are deleted.
func (s *store) end() {
	for name, k := range s.known {
		if k.round != s.round {
			s.deleted(name)
		}
	}
	s.full()
}

// set delivers an object, unless this version was delivered. In a watch, older versions are ignored.
func (s *store) set(o source.Object, listed bool) {
	name := cache.MetaObjectToName(o).String()
	version := versionOf(o)
	k, ok := s.known[name]
	if !listed && older(version, k.version) {
		return
	}
	same := ok && version != 0 && version == k.version
	s.known[name] = known{version, s.round}
	if same || ok && s.kind.metadata {
		return
	}
	o.SetManagedFields(nil) // may be most of the object
	if s.kind.strip != nil {
		s.kind.strip(o)
	}
	s.put(source.Event{Type: source.Set, Object: o})
}

// remove takes a deleted object of a watch, with the version of its deletion.
func (s *store) remove(o source.Object) {
	name := cache.MetaObjectToName(o).String()
	if k, ok := s.known[name]; ok && !older(versionOf(o), k.version) {
		s.deleted(name)
	}
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

// reflected is the store that the Reflector fills. It does nothing: whoever reads an object delivers it.
type reflected struct{}

var _ cache.ReflectorStore = reflected{}

func (reflected) Add(any) error               { return nil }
func (reflected) Update(any) error            { return nil }
func (reflected) Delete(any) error            { return nil }
func (reflected) Replace([]any, string) error { return nil }
func (reflected) Resync() error               { return nil }
