// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/source"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
)

// server is a virtual API server. It is an http.RoundTripper, so there is no network. It lists and watches the kinds
// that the source asks for, in JSON or in protobuf.
type server struct {
	media string

	mu        sync.Mutex
	version   uint64
	compacted uint64 // earlier versions are gone
	kinds     map[string]*kind
	streams   []*stream
	events    int // of watches

	noStreaming bool // of lists
	down        bool
	status      int // of all answers, if not 0
}

// kind is a resource.
type kind struct {
	version schema.GroupVersion
	list    runtime.Object
	empty   source.Object
	objects map[string]source.Object
	log     []logged
}

type logged struct {
	version  uint64
	old, now source.Object // nil if there was or is none
}

var codecs = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme, metav1.AddMetaToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return serializer.NewCodecFactory(scheme)
}()

func newServer(media string, version uint64) *server {
	return &server{media: media, version: version, kinds: map[string]*kind{
		"nodes":          {version: corev1.SchemeGroupVersion, list: &corev1.NodeList{}, empty: &corev1.Node{}, objects: map[string]source.Object{}},
		"services":       {version: corev1.SchemeGroupVersion, list: &corev1.ServiceList{}, empty: &corev1.Service{}, objects: map[string]source.Object{}},
		"endpointslices": {version: discoveryv1.SchemeGroupVersion, list: &discoveryv1.EndpointSliceList{}, empty: &discoveryv1.EndpointSlice{}, objects: map[string]source.Object{}},
		"servicecidrs":   {version: networkingv1.SchemeGroupVersion, list: &networkingv1.ServiceCIDRList{}, empty: &networkingv1.ServiceCIDR{}, objects: map[string]source.Object{}},
	}}
}

// put creates, changes or, with delete, deletes an object.
func (s *server) put(o source.Object, delete bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	resource := strings.ToLower(source.Kind(o)) + "s"
	k, name := s.kinds[resource], o.GetNamespace()+"/"+o.GetName()
	old := k.objects[name]
	if delete && old == nil {
		return
	}
	s.version++
	if delete {
		o = old
	}
	o = o.DeepCopyObject().(source.Object)
	o.SetResourceVersion(strconv.FormatUint(s.version, 10))
	l := logged{s.version, old, o}
	if delete {
		maps.DeleteFunc(k.objects, func(n string, _ source.Object) bool { return n == name })
		l.old, l.now = o, nil
	} else {
		k.objects[name] = o
	}
	k.log = append(k.log, l)
	for _, st := range s.streams {
		if st.resource == resource {
			st.change(l)
		}
	}
}

// repeat sends the last event about each object once more, or an earlier version of an object that exists.
func (s *server) repeat(stale bool) {
	s.each(func(st *stream) {
		s.mu.Lock()
		defer s.mu.Unlock()
		k := s.kinds[st.resource]
		for _, l := range slices.Backward(k.log) {
			switch {
			case !stale:
				st.change(l)
			case l.now == nil || l.old == nil || k.objects[l.now.GetNamespace()+"/"+l.now.GetName()] != l.now:
				continue
			case st.matches(l.now) && st.matches(l.old):
				st.send(watch.Modified, l.old)
			}
			break
		}
	})
}

// compact forgets all changes: watches from before them get 410 Gone.
func (s *server) compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.kinds {
		k.log = nil
	}
	s.compacted = s.version
}

// cut ends the watches of a resource, all for "", within an event or after one.
func (s *server) cut(resource string, within bool) {
	s.each(func(st *stream) {
		if resource != "" && st.resource != resource {
			return
		}
		s.mu.Lock()
		s.streams = slices.DeleteFunc(s.streams, func(is *stream) bool { return is == st })
		s.mu.Unlock()
		if within {
			_, _ = st.Write([]byte{0, 0, 1, 0, '{'})
		}
		st.end(io.EOF)
	})
}

// pause stops or continues the watches.
func (s *server) pause(paused bool) { s.each(func(st *stream) { st.pause(paused) }) }

// each calls a function for each watch, one after the other: what follows from one has happened before the next. The
// client's delays are numbers from one sequence, and on a busy machine the scheduler would decide who gets which.
func (s *server) each(do func(*stream)) {
	s.mu.Lock()
	streams := slices.Clone(s.streams)
	s.mu.Unlock()
	for _, st := range streams {
		do(st)
		synctest.Wait()
	}
}

func (s *server) set(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

var errDown = errors.New("connection refused")

// RoundTrip implements http.RoundTripper.
func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	resource, q := path[len(path)-1], r.URL.Query()
	// Requests that begin at the same time, as when the proxy starts, are answered in this order.
	time.Sleep(time.Duration(1+slices.Index([]string{"nodes", "services", "endpointslices", "servicecidrs"}, resource)) * time.Microsecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kinds[resource]
	switch {
	case s.down:
		return nil, errDown
	case s.status != 0:
		return s.refuse(r, s.status, "InternalError", "out of order"), nil
	case k == nil:
		return s.refuse(r, http.StatusNotFound, metav1.StatusReasonNotFound, "no "+resource), nil
	case q.Get("watch") == "":
		list := k.list.DeepCopyObject()
		var items []runtime.Object
		for _, o := range k.matching(q) {
			items = append(items, o.DeepCopyObject())
		}
		if err := meta.SetList(list, items); err != nil {
			panic(err)
		}
		list.(metav1.ListInterface).SetResourceVersion(strconv.FormatUint(s.version, 10))
		s.events += len(items)
		return s.response(r, http.StatusOK, s.media, io.NopCloser(bytes.NewReader(s.encode(list, k.version)))), nil
	}
	return s.watch(r, k, resource, q), nil
}

func (s *server) info() runtime.SerializerInfo {
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), s.media)
	return info
}

func (s *server) encode(o runtime.Object, v schema.GroupVersion) []byte {
	raw, err := runtime.Encode(codecs.EncoderForVersion(s.info().Serializer, v), o)
	if err != nil {
		panic(err)
	}
	return raw
}

func (s *server) response(r *http.Request, code int, media string, body io.ReadCloser) *http.Response {
	return &http.Response{
		StatusCode: code, Status: http.StatusText(code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {media}}, Body: body, ContentLength: -1, Request: r,
	}
}

func (s *server) refuse(r *http.Request, code int, reason metav1.StatusReason, message string) *http.Response {
	status := &metav1.Status{Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message}
	return s.response(r, code, s.media, io.NopCloser(bytes.NewReader(s.encode(status, schema.GroupVersion{Version: "v1"}))))
}

func (k *kind) matching(q url.Values) (all []source.Object) {
	matches := selector(q)
	for _, name := range slices.Sorted(maps.Keys(k.objects)) {
		if matches(k.objects[name]) {
			all = append(all, k.objects[name])
		}
	}
	return all
}

// selector returns the function that selects objects as a request does, by the selectors that the source uses.
func selector(q url.Values) func(source.Object) bool {
	byLabels, err := labels.Parse(q.Get("labelSelector"))
	if err != nil {
		panic(err)
	}
	field, value, _ := strings.Cut(q.Get("fieldSelector"), "=")
	return func(o source.Object) bool {
		switch {
		case o == nil || !byLabels.Matches(labels.Set(o.GetLabels())):
			return false
		case field == "metadata.name":
			return o.GetName() == value
		case field == "spec.clusterIP!":
			return o.(*corev1.Service).Spec.ClusterIP != value
		case field != "":
			panic(fmt.Sprintf("field selector %s", q.Get("fieldSelector")))
		}
		return true
	}
}

func (s *server) watch(r *http.Request, k *kind, resource string, q url.Values) *http.Response {
	initial := q.Get("sendInitialEvents") == "true"
	if initial && s.noStreaming {
		return s.refuse(r, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "sendInitialEvents is forbidden")
	}
	st := &stream{server: s, kind: k, resource: resource, matches: selector(q)}
	st.cond.L = &st.mu
	info := s.info()
	st.frames = info.StreamSerializer.NewFrameWriter(st)
	from, _ := strconv.ParseUint(q.Get("resourceVersion"), 10, 64)
	switch {
	case initial:
		for _, o := range k.matching(q) {
			st.send(watch.Added, o)
		}
		o := k.empty.DeepCopyObject().(source.Object)
		o.SetResourceVersion(strconv.FormatUint(s.version, 10))
		o.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		st.send(watch.Bookmark, o)
	case from < s.compacted:
		st.send(watch.Error, &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old resource version"})
	default:
		for _, l := range k.log {
			if l.version > from {
				st.change(l)
			}
		}
	}
	s.streams = append(s.streams, st)
	context.AfterFunc(r.Context(), func() { st.Close() })
	media := s.media
	if media == runtime.ContentTypeProtobuf {
		media += ";stream=watch"
	}
	return s.response(r, http.StatusOK, media, st)
}

// stream is the body of the answer to a watch.
type stream struct {
	server   *server
	kind     *kind
	resource string
	matches  func(source.Object) bool
	frames   io.Writer

	mu     sync.Mutex
	cond   sync.Cond
	unread []byte
	paused bool
	err    error
}

// change sends a change of an object, as the watch sees it.
func (st *stream) change(l logged) {
	was, is := l.old != nil && st.matches(l.old), l.now != nil && st.matches(l.now)
	switch {
	case was && is:
		st.send(watch.Modified, l.now)
	case is:
		st.send(watch.Added, l.now)
	case was:
		gone := l.old.DeepCopyObject().(source.Object)
		gone.SetResourceVersion(strconv.FormatUint(l.version, 10))
		st.send(watch.Deleted, gone)
	}
}

func (st *stream) send(typ watch.EventType, o runtime.Object) {
	v := st.kind.version
	if typ == watch.Error {
		v = schema.GroupVersion{Version: "v1"}
	}
	st.server.events++
	event := &metav1.WatchEvent{Type: string(typ), Object: runtime.RawExtension{Raw: st.server.encode(o.DeepCopyObject(), v)}}
	if err := st.server.info().StreamSerializer.Encode(event, st.frames); err != nil {
		panic(err)
	}
}

// Write takes a part of an event.
func (st *stream) Write(b []byte) (int, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.unread = append(st.unread, b...)
	st.cond.Broadcast()
	return len(b), nil
}

// Read implements io.Reader.
func (st *stream) Read(b []byte) (int, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for st.err == nil && (st.paused || len(st.unread) == 0) {
		st.cond.Wait()
	}
	if len(st.unread) > 0 && (st.err == nil || st.err == io.EOF) {
		n := copy(b, st.unread)
		st.unread = st.unread[n:]
		return n, nil
	}
	return 0, st.err
}

func (st *stream) end(err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.err == nil {
		st.err = err
	}
	st.cond.Broadcast()
}

func (st *stream) pause(paused bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.paused = paused
	st.cond.Broadcast()
}

// Close implements io.Closer.
func (st *stream) Close() error {
	st.end(io.ErrClosedPipe)
	return nil
}
