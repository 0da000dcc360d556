// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/source"
)

// largeSlice is a slice as the EndpointSlice controller writes it, with 100 endpoints and a version.
func largeSlice(version int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-abcde", UID: "a7e1b1c0-1111-4222-8333-444444444444", ResourceVersion: fmt.Sprint(1000 + version), Generation: int64(version),
			CreationTimestamp: metav1.NewTime(time.Unix(1.7e9, 0)),
			Labels:            map[string]string{discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"},
			Annotations:       map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-11-27T02:00:00Z"},
			OwnerReferences:   []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: "web", UID: "b7e1b1c0-1111-4222-8333-444444444444", Controller: ptr.To(true)}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To[int32](8080)}},
	}
	for i := range 100 {
		pod := i
		if i == version%100 {
			pod = 100 + version
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.244.%d.%d", pod>>8, pod&255)},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
			NodeName:   ptr.To(fmt.Sprintf("node-%d", i)), Zone: ptr.To(fmt.Sprintf("zone-%d", i%3)),
			Hints:     &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: fmt.Sprintf("zone-%d", i%3)}}},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: fmt.Sprintf("web-%d", pod), UID: "c7e1b1c0-1111-4222-8333-444444444444"},
		})
	}
	return s
}

// inProtobuf is an object in Kubernetes' protobuf encoding.
func inProtobuf(t testing.TB, o source.Object) []byte {
	raw, err := o.(interface{ Marshal() ([]byte, error) }).Marshal()
	check(t, err)
	unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: source.Kind(o)}, Raw: raw}
	out, err := unknown.Marshal()
	check(t, err)
	return append([]byte(magic), out...)
}

// framed is an event of a watch.
func framed(t testing.TB, event string, o source.Object) []byte {
	return inFrame(t, event, inProtobuf(t, o))
}

func inFrame(t testing.TB, event string, raw []byte) []byte {
	out, err := (&metav1.WatchEvent{Type: event, Object: runtime.RawExtension{Raw: raw}}).Marshal()
	check(t, err)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(out))), out...)
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// stripped is a slice without what is left out.
func stripped(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	s = s.DeepCopy()
	for i := range s.Endpoints {
		s.Endpoints[i].Hostname, s.Endpoints[i].TargetRef, s.Endpoints[i].DeprecatedTopology = nil, nil, nil
	}
	return s
}

// TestSlice decodes EndpointSlices, whole and cut off at each byte, as the generated code does.
func TestSlice(t *testing.T) {
	odd := largeSlice(7)
	odd.AddressType, odd.Endpoints = discoveryv1.AddressTypeFQDN, append(odd.Endpoints[:2:2],
		discoveryv1.Endpoint{},
		discoveryv1.Endpoint{Addresses: []string{"a.example", "b.example", ""}, Hostname: ptr.To("a"), NodeName: ptr.To("")},
		discoveryv1.Endpoint{Addresses: []string{"c.example"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(false)}, DeprecatedTopology: map[string]string{"a": "b"}},
		discoveryv1.Endpoint{Zone: ptr.To("z"), Hints: &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: "n"}, {Name: "m"}}}},
		discoveryv1.Endpoint{Hints: &discoveryv1.EndpointHints{}, Conditions: discoveryv1.EndpointConditions{Terminating: ptr.To(true)}})
	for _, s := range []*discoveryv1.EndpointSlice{largeSlice(3), odd, {}, slice("web"), slice("web", "10.0.0.1")} {
		raw, err := s.Marshal()
		check(t, err)
		for size := range len(raw) + 1 {
			var want, got discoveryv1.EndpointSlice
			input := bytes.Clone(raw[:size])
			failed, err := want.Unmarshal(input), unmarshalSlice(input, &got)
			clear(input) // none of it is kept
			if (failed != nil) != (err != nil) {
				t.Fatalf("%d of %d bytes: %v, want %v", size, len(raw), err, failed)
			}
			if failed == nil && !apiequality.Semantic.DeepEqual(stripped(&want), &got) {
				t.Fatalf("%d of %d bytes:\n%+v, want\n%+v", size, len(raw), got, want)
			}
		}
	}
}

// BenchmarkSlice measures a change of one endpoint in a slice of 100, from the API server's stream over TLS and
// HTTP/2 to the desired state, one after the other. The processor time includes the server's writing.
func BenchmarkSlice(b *testing.B) {
	changes := make(chan []byte)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis/discovery.k8s.io/v1/endpointslices" || r.URL.Query().Get("watch") == "" {
			http.Error(w, "", http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
		end := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "999", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}
		_, _ = w.Write(framed(b, "BOOKMARK", end))
		w.(http.Flusher).Flush()
		for {
			select {
			case <-r.Context().Done():
				return
			case c := <-changes:
				_, _ = w.Write(c)
				w.(http.Flusher).Flush()
			}
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	config := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	config.ContentType = runtime.ContentTypeProtobuf
	client, err := NewClient(config)
	check(b, err)
	state, done := desired.New(desired.Config{}), make(chan bool)
	state.SetService(service("web", "10.96.0.1"))
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error)
	go func() {
		ended <- New(client, Options{NodeName: "n1", OnError: func(error) {}}).Run(ctx, func(batch []source.Event) {
			for _, e := range batch {
				if s, is := e.Object.(*discoveryv1.EndpointSlice); is {
					state.SetEndpointSlice(s)
					state.Change()
					done <- true
				}
			}
		})
	}()
	var all [][]byte
	for version := range 5000 {
		all = append(all, framed(b, "MODIFIED", largeSlice(version)))
	}
	changes <- all[0]
	<-done
	version := 0
	var before, after unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &before)
	b.ReportAllocs()
	for b.Loop() {
		version++
		changes <- all[version%len(all)]
		<-done
	}
	_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
	used := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
	b.ReportMetric(float64(used)/float64(b.N)/1e3, "cpu-us/op")
	cancel()
	<-ended
}
