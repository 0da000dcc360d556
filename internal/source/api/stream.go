// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"

	"github.com/slipstream-proxy/slipstream/internal/source"
	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// stream reads the answer to a watch. The goroutine that reads an object delivers it, without the two further
// goroutines and the copies of client-go's watch. The Reflector receives bookmarks and errors, and in the end the version
// to resume from.
type stream struct {
	w       *watcher
	body    io.ReadCloser
	cancel  context.CancelFunc
	ended   <-chan struct{}
	running sync.WaitGroup
	events  chan watch.Event

	initial bool   // the objects that exist are being read
	reached string // the last version; the Reflector does not resume from it before the end of the initial objects
	count   int
}

// open starts a watch, which does not count for the limit on the rate of requests, as with client-go.
func (w *watcher) open(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	w.kind.selectFrom(&o)
	ctx, cancel := context.WithCancel(ctx)
	body, err := w.rest.Get().Throttle(nil).Resource(w.kind.resource).VersionedParams(&o, metav1.ParameterCodec).Stream(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	s := &stream{w: w, body: body, cancel: cancel, ended: ctx.Done(), events: make(chan watch.Event)}
	if s.initial = ptr.Deref(o.SendInitialEvents, false); s.initial {
		w.store.begin()
	}
	s.running.Go(s.read)
	return s, nil
}

// ResultChan implements watch.Interface.
func (s *stream) ResultChan() <-chan watch.Event { return s.events }

// Stop implements watch.Interface. Nothing is delivered afterwards.
func (s *stream) Stop() {
	s.cancel()
	s.running.Wait()
}

// read delivers what the server sends until it ends.
func (s *stream) read() {
	defer close(s.events)
	defer s.body.Close()
	in := reader{Reader: bufio.NewReaderSize(s.body, 16<<10)}
	next := func() error { return s.frame(&in) }
	if start, _ := in.Peek(1); string(start) == "{" {
		d := json.NewDecoder(in)
		next = func() error { return s.json(d) }
	}
	for next() == nil {
	}
	s.resume()
}

// frame reads an event in protobuf encoding: its length in 4 bytes, and a metav1.WatchEvent.
func (s *stream) frame(in *reader) error {
	var size [4]byte
	if _, err := io.ReadFull(in, size[:]); err != nil {
		return err
	}
	return in.message(uint64(binary.BigEndian.Uint32(size[:])), func(raw []byte) error {
		object := bytes.TrimPrefix(field(field(raw, 2), 1), []byte(magic))
		var of runtime.TypeMeta
		_ = of.Unmarshal(field(object, 1))
		return s.take(watch.EventType(field(raw, 1)), of.Kind, func(into any) error { return unmarshal(field(object, 2), into) })
	})
}

// field returns a field of a message, which is of bytes; nil if the message is malformed.
func field(message []byte, of protowire.Number) (value []byte) {
	if err := eachField(message, func(number protowire.Number, _, v []byte) error {
		if number == of {
			value = v
		}
		return nil
	}); err != nil {
		return nil
	}
	return value
}

// json reads an event in JSON.
func (s *stream) json(in *json.Decoder) error {
	var e struct {
		Type   watch.EventType
		Object json.RawMessage
	}
	if err := in.Decode(&e); err != nil {
		return err
	}
	var of metav1.TypeMeta
	_ = json.Unmarshal(e.Object, &of)
	return s.take(e.Type, of.Kind, func(into any) error { return json.Unmarshal(e.Object, into) })
}

// errEnds ends a stream after an error that the server has sent, or an event that is malformed.
var errEnds = errors.New("the watch ends")

// take acts on an event about an object of a kind.
func (s *stream) take(typ watch.EventType, kind string, decode func(into any) error) error {
	into, want := runtime.Object(s.w.kind.object("", "")), s.w.kind.served()
	if typ == watch.Error {
		into, want = &metav1.Status{}, "Status"
	}
	err := decode(into)
	if kind != want {
		err = fmt.Errorf("%q instead of %s", kind, want)
	}
	if err != nil {
		typ, into = watch.Error, &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: "malformed event: " + err.Error()}
	}
	if typ == watch.Error {
		s.resume()
		s.pass(typ, into)
		return errEnds
	}
	o := into.(source.Object)
	o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	s.w.heard()
	s.reached = o.GetResourceVersion()
	switch typ {
	case watch.Added, watch.Modified:
		if s.initial && s.count%1000 == 0 { // the Reflector warns when it sees nothing for a while
			s.pass(typ, s.w.kind.object("", o.GetName()))
		}
		s.count++
		s.w.store.set(o, s.initial)
	case watch.Deleted:
		s.w.store.remove(o)
	case watch.Bookmark:
		if s.initial && o.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
			s.initial = false
			s.w.store.end()
		}
		s.pass(typ, o)
	}
	return nil
}

// resume tells the Reflector from which version to watch again.
func (s *stream) resume() {
	if s.reached != "" {
		o := s.w.kind.object("", "")
		o.SetResourceVersion(s.reached)
		s.pass(watch.Bookmark, o)
		s.reached = ""
	}
}

// pass gives an event to the Reflector.
func (s *stream) pass(typ watch.EventType, o runtime.Object) {
	select {
	case s.events <- watch.Event{Type: typ, Object: o}:
	case <-s.ended:
	}
}

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
