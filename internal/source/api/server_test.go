// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

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

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// server is as much of an API server as this source uses: lists and watches of a few
// kinds, with versions, streamed or not; and things that a real one does seldom. (The real
// one is in test/cluster.)
type server struct {
	*httptest.Server
	t     *testing.T
	codec serializer.CodecFactory
	media string // of answers

	mu        sync.Mutex
	version   uint64
	compacted uint64                              // earlier versions were removed
	objects   map[string]map[string]source.Object // by resource, then by namespace/name
	log       []logged
	streams   map[*connection]bool
	requests  []*http.Request
	lists     map[string]int // complete ones, by resource

	noStreaming  bool           // of lists
	refuse       map[string]int // status by resource
	down         bool           // cuts connections
	cutAfter     map[string]int // cuts streams of a resource after so many initial events, once
	atCut        func()         // is called then
	unauthorized bool           // refuses all tokens
	broken       bool           // answers with an error
}

// logged is a change.
type logged struct {
	watch.Event
	resource string
	version  uint64
}

// connection is a watch that is open.
type connection struct {
	resource string
	events   chan watch.Event // closed to end the stream
}

func newServer(t *testing.T, media string) *server {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme, metav1.AddMetaToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	s := &server{
		t: t, media: media, codec: serializer.NewCodecFactory(scheme), version: 10,
		objects: map[string]map[string]source.Object{}, streams: map[*connection]bool{},
		lists: map[string]int{}, refuse: map[string]int{}, cutAfter: map[string]int{},
	}
	s.Server = httptest.NewUnstartedServer(s)
	s.Config.SetKeepAlivesEnabled(false) // so that there are connections to refuse
	s.Start()
	t.Cleanup(func() {
		s.hangUp()
		s.Close()
	})
	return s
}

func resourceOf(o source.Object) string {
	return strings.Replace(strings.ToLower(source.Kind(o))+"s", "policys", "policies", 1)
}

func (s *server) info(media string) runtime.SerializerInfo {
	info, ok := runtime.SerializerInfoForMediaType(s.codec.SupportedMediaTypes(), media)
	if !ok {
		s.t.Errorf("no serializer for %s", media)
	}
	return info
}

// set creates or changes objects.
func (s *server) set(objects ...source.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range objects {
		o = o.DeepCopyObject().(source.Object)
		s.version++
		o.SetResourceVersion(strconv.FormatUint(s.version, 10))
		name, resource := o.GetNamespace()+"/"+o.GetName(), resourceOf(o)
		if s.objects[resource] == nil {
			s.objects[resource] = map[string]source.Object{}
		}
		typ := watch.Added
		if s.objects[resource][name] != nil {
			typ = watch.Modified
		}
		s.objects[resource][name] = o
		s.happened(resource, typ, o)
	}
}

func (s *server) remove(o source.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	name, resource := o.GetNamespace()+"/"+o.GetName(), resourceOf(o)
	o = s.objects[resource][name].DeepCopyObject().(source.Object)
	delete(s.objects[resource], name)
	o.SetResourceVersion(strconv.FormatUint(s.version, 10))
	s.happened(resource, watch.Deleted, o)
}

func (s *server) happened(resource string, typ watch.EventType, o source.Object) {
	e := watch.Event{Type: typ, Object: o}
	s.log = append(s.log, logged{e, resource, s.version})
	s.sendLocked(resource, e)
}

// send sends an event to the open watches, whether it is true or not.
func (s *server) send(typ watch.EventType, o source.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sendLocked(resourceOf(o), watch.Event{Type: typ, Object: o})
}

// copyOf returns an event with a copy of the object that may be encoded, which writes to it for
// a moment.
func copyOf(e watch.Event) watch.Event {
	return watch.Event{Type: e.Type, Object: e.Object.DeepCopyObject()}
}

func (s *server) sendLocked(resource string, e watch.Event) {
	for st := range s.streams {
		if st.resource == resource {
			st.events <- copyOf(e)
		}
	}
}

// unsent returns the number of events that the open watches have not been sent yet.
func (s *server) unsent() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		n += len(st.events)
	}
	return n
}

// hangUp ends the open watches.
func (s *server) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		close(st.events)
		delete(s.streams, st)
	}
}

// compact forgets all changes: watches from before them get 410 Gone.
func (s *server) compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log, s.compacted = nil, s.version
}

// change changes the server under its lock.
func (s *server) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// watching says how many watches of a resource are open.
func (s *server) watching(resource string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		if st.resource == resource {
			n++
		}
	}
	return n
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	resource := path[len(path)-1]
	group := schema.GroupVersion{Version: path[len(path)-2]}
	if path[0] == "apis" {
		group.Group = path[1]
	}
	s.mu.Lock()
	s.requests = append(s.requests, r)
	down, code, unauthorized := s.down, s.refuse[resource], s.unauthorized
	broken := s.broken
	s.mu.Unlock()
	q := r.URL.Query()
	switch {
	case down:
		panic(http.ErrAbortHandler) // cuts the connection
	case broken:
		s.status(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "out of order")
	case unauthorized:
		s.status(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")
	case code != 0:
		s.status(w, code, metav1.StatusReason(strings.ReplaceAll(http.StatusText(code), " ", "")), resource+" refused")
	case q.Get("watch") == "":
		s.serveList(w, r, group, resource, q, asMetadata(r))
	default:
		s.serveWatch(w, r, group, resource, q, asMetadata(r))
	}
}

// asMetadata returns the function that converts objects as the request asks: to their metadata, or
// not at all.
func asMetadata(r *http.Request) func(runtime.Object) runtime.Object {
	if !strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata") {
		return nil
	}
	return func(o runtime.Object) runtime.Object {
		m, err := meta.Accessor(o)
		if err != nil {
			return o // an error
		}
		out := meta.AsPartialObjectMetadata(m)
		out.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata"))
		return out
	}
}

// metadataVersion is the version of the type of metadata.
var metadataVersion = schema.GroupVersion{Group: "meta.k8s.io", Version: "v1"}

// status answers with an error.
func (s *server) status(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(&metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	})
}

// matching are the objects that a request is for, by name.
func (s *server) matching(resource string, q url.Values) (out []source.Object) {
	for _, o := range s.objects[resource] {
		if s.matches(o, q) {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b source.Object) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out
}

func (s *server) matches(o source.Object, q url.Values) bool {
	selector, err := labels.Parse(q.Get("labelSelector"))
	if err != nil {
		s.t.Error(err)
		return false
	}
	if !selector.Matches(labels.Set(o.GetLabels())) {
		return false
	}
	switch f := q.Get("fieldSelector"); {
	case f == "":
		return true
	case strings.HasPrefix(f, "metadata.name="):
		return f == "metadata.name="+o.GetName()
	case strings.HasPrefix(f, "spec.nodeName="):
		return f == "spec.nodeName="+o.(*corev1.Pod).Spec.NodeName
	case f == "spec.clusterIP!=None":
		return o.(*corev1.Service).Spec.ClusterIP != "None"
	default:
		s.t.Errorf("field selector %q", f)
		return false
	}
}

func (s *server) serveList(w http.ResponseWriter, r *http.Request, group schema.GroupVersion, resource string, q url.Values, convert func(runtime.Object) runtime.Object) {
	list := map[string]runtime.Object{
		"nodes": &corev1.NodeList{}, "services": &corev1.ServiceList{},
		"endpointslices": &discoveryv1.EndpointSliceList{}, "servicecidrs": &networkingv1.ServiceCIDRList{},
		"networkpolicies": &networkingv1.NetworkPolicyList{}, "namespaces": &corev1.NamespaceList{}, "pods": &corev1.PodList{},
	}[resource]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists[resource]++
	var items []runtime.Object
	accept := r.Header.Get("Accept")
	lists := strings.Count(accept, "=PartialObjectMetadataList;") // in each media type, or in none
	if s.media == protobuf && !strings.HasPrefix(accept, protobuf) || convert != nil && lists != strings.Count(accept, "application/") {
		s.t.Errorf("list of %s with Accept: %s", resource, accept)
	}
	if convert != nil {
		list, group = &metav1.PartialObjectMetadataList{}, metadataVersion
	}
	for _, o := range s.matching(resource, q) {
		if convert != nil {
			items = append(items, convert(o))
		} else {
			items = append(items, o)
		}
	}
	if err := meta.SetList(list, items); err != nil {
		s.t.Error(err)
	}
	list.(metav1.ListInterface).SetResourceVersion(strconv.FormatUint(s.version, 10))
	w.Header().Set("Content-Type", s.media)
	if err := s.codec.EncoderForVersion(s.info(s.media).Serializer, group).Encode(list, w); err != nil {
		s.t.Error(err)
	}
}

func (s *server) serveWatch(w http.ResponseWriter, r *http.Request, group schema.GroupVersion, resource string, q url.Values, convert func(runtime.Object) runtime.Object) {
	s.mu.Lock()
	initial := q.Get("sendInitialEvents") == "true"
	if initial && s.noStreaming {
		s.mu.Unlock()
		s.status(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "sendInitialEvents is forbidden")
		return
	}
	from, _ := strconv.ParseUint(q.Get("resourceVersion"), 10, 64)
	var first []watch.Event
	cut := -1
	switch {
	case initial:
		for _, o := range s.matching(resource, q) {
			first = append(first, watch.Event{Type: watch.Added, Object: o})
		}
		first = append(first, s.bookmark(resource))
		if n, ok := s.cutAfter[resource]; ok {
			first, cut = first[:n], n
			delete(s.cutAfter, resource)
		} else {
			s.lists[resource]++
		}
	case from < s.compacted:
		first = append(first, watch.Event{Type: watch.Error, Object: &metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old resource version",
		}})
	default:
		for _, l := range s.log {
			if l.resource == resource && l.version > from && s.matches(l.Object.(source.Object), q) {
				first = append(first, l.Event)
			}
		}
	}
	for i := range first {
		first[i] = copyOf(first[i])
	}
	st := &connection{resource, make(chan watch.Event, 10000)}
	s.streams[st] = true
	atCut := s.atCut
	s.mu.Unlock()
	defer s.change(func() { delete(s.streams, st) })

	if convert != nil {
		group = metadataVersion
	}
	encode := s.writer(w, group)
	write := encode
	if convert != nil {
		write = func(e watch.Event) { encode(watch.Event{Type: e.Type, Object: convert(e.Object)}) }
	}
	for _, e := range first {
		write(e)
	}
	if cut >= 0 {
		if atCut != nil {
			atCut()
		}
		panic(http.ErrAbortHandler)
	}
	for {
		select {
		case e, ok := <-st.events:
			if !ok {
				return
			}
			if s.matches(e.Object.(source.Object), q) {
				write(e)
			}
		case <-r.Context().Done():
			return
		}
	}
}

// bookmark says that all initial events have been sent.
func (s *server) bookmark(resource string) watch.Event {
	var o source.Object
	for _, k := range (&Options{FastPath: true}).kinds() {
		if k.resource == resource && !k.metadata {
			o = k.object("", "")
		}
	}
	o.SetResourceVersion(strconv.FormatUint(s.version, 10))
	o.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return watch.Event{Type: watch.Bookmark, Object: o}
}

// writer writes events to a stream, in frames of its media type.
func (s *server) writer(w http.ResponseWriter, group schema.GroupVersion) func(watch.Event) {
	info := s.info(s.media)
	media := s.media
	if media == runtime.ContentTypeProtobuf {
		media += ";stream=watch"
	}
	w.Header().Set("Content-Type", media)
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	frames := info.StreamSerializer.NewFrameWriter(w)
	return func(e watch.Event) {
		v := group
		if e.Type == watch.Error {
			v = schema.GroupVersion{Version: "v1"}
		}
		raw, err := runtime.Encode(s.codec.EncoderForVersion(info.Serializer, v), e.Object)
		if err != nil {
			s.t.Error(err)
			return
		}
		event := &metav1.WatchEvent{Type: string(e.Type), Object: runtime.RawExtension{Raw: raw}}
		if err := info.StreamSerializer.Encode(event, frames); err != nil && err != io.ErrShortWrite {
			return // the client has disconnected
		}
		w.(http.Flusher).Flush()
	}
}

// query returns the parameters of the requests for a resource.
func (s *server) query(resource string) (out []url.Values) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		if strings.HasSuffix(r.URL.Path, "/"+resource) {
			out = append(out, r.URL.Query())
		}
	}
	return out
}

// service, slice, node and serviceCIDR make objects as an API server has them.

func service(name, ip string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: "1",
			Labels:        map[string]string{"app": "web"},
			Annotations:   map[string]string{"note": "long"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
		},
		Spec: corev1.ServiceSpec{
			ClusterIP: ip, ClusterIPs: []string{ip}, Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
}

func slice(name string, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name,
			Labels:      map[string]string{discoveryv1.LabelServiceName: "web", "endpointslice.kubernetes.io/managed-by": "x"},
			Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-02T03:04:05Z"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{a}, NodeName: new("n1"),
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: fmt.Sprintf("pod-%s", a)},
		})
	}
	return s
}

func node(name, zone string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone, "a": "b"}},
		Spec:       corev1.NodeSpec{PodCIDR: "10.0.0.0/24", PodCIDRs: []string{"10.0.0.0/24"}, ProviderID: "x"},
		Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady}},
		},
	}
}

func serviceCIDR(name, cidr string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{cidr}},
	}
}

// TestNamespacesOnly checks that Namespaces are watched without what only the fast path needs.
func TestNamespacesOnly(t *testing.T) {
	var optional []string
	for _, k := range (&Options{Namespaces: true}).kinds() {
		if k.optional && k.consequence != "" {
			optional = append(optional, k.name)
		}
	}
	if fmt.Sprint(optional) != "[Namespace]" {
		t.Errorf("%v", optional)
	}
}
