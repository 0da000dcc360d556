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
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/slipstream-proxy/slipstream/internal/source"
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

// open starts a watch.
func (w *watcher) open(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	w.kind.selectFrom(&o)
	ctx, cancel := context.WithCancel(ctx)
	body, err := w.rest.Get().Resource(w.kind.resource).VersionedParams(&o, metav1.ParameterCodec).Stream(ctx)
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
