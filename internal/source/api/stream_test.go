// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	componentbase "k8s.io/component-base/config/v1alpha1"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// streamed reads a stream of EndpointSlices. It returns the events that are delivered and those that the Reflector sees.
func streamed(in []byte, initial bool) (delivered, passed []string) {
	w := &watcher{run: &run{source: &Source{}}, kind: (&Options{}).kinds()[3]}
	w.store = &store{kind: w.kind, known: map[string]known{}, full: func() { delivered = append(delivered, "full") },
		put: func(e source.Event) { delivered = append(delivered, e.String()) }}
	ctx, cancel := context.WithCancel(context.Background())
	s := &stream{w: w, body: io.NopCloser(bytes.NewReader(in)), cancel: cancel, ended: ctx.Done(), events: make(chan watch.Event), initial: initial}
	s.running.Go(s.read)
	for e := range s.ResultChan() {
		text := ""
		switch o := e.Object.(type) {
		case *discoveryv1.EndpointSlice:
			text = strings.TrimSpace(o.Name + " " + o.ResourceVersion)
		case *metav1.Status:
			text = o.Message
		}
		passed = append(passed, strings.TrimSpace(string(e.Type)+" "+text))
	}
	s.Stop()
	return delivered, passed
}

// inFrames are events in the encodings of a watch.
func inFrames(t *testing.T, events ...watch.Event) map[string][]byte {
	all := map[string][]byte{}
	for _, e := range events {
		kind := "Status"
		if o, is := e.Object.(source.Object); is {
			kind = source.Kind(o)
		}
		raw, err := e.Object.(interface{ Marshal() ([]byte, error) }).Marshal()
		check(t, err)
		unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{Kind: kind}, Raw: raw}
		raw, err = unknown.Marshal()
		check(t, err)
		all["protobuf"] = append(all["protobuf"], inFrame(t, string(e.Type), append([]byte(magic), raw...))...)
		e.Object.GetObjectKind().SetGroupVersionKind(discoveryv1.SchemeGroupVersion.WithKind(kind))
		raw, err = json.Marshal(metav1.WatchEvent{Type: string(e.Type), Object: runtime.RawExtension{Object: e.Object}})
		check(t, err)
		all["JSON"] = append(append(all["JSON"], raw...), '\n')
	}
	return all
}

func versioned(name string, version int) *discoveryv1.EndpointSlice {
	s := slice(name, "10.0.0.1")
	s.ResourceVersion = fmt.Sprint(version)
	return s
}

// TestStream reads streams in both encodings, whole and broken.
func TestStream(t *testing.T) {
	end := versioned("", 9)
	end.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	gone := &metav1.Status{Message: "too old"}
	for _, c := range []struct {
		name              string
		events            []watch.Event
		initial           bool
		delivered, passed string
	}{
		{"nothing", nil, false, "", ""},
		{"initial objects", []watch.Event{{Type: watch.Added, Object: versioned("a", 7)}, {Type: watch.Bookmark, Object: versioned("", 8)}, {Type: watch.Added, Object: versioned("b", 3)}, {Type: watch.Bookmark, Object: end}, {Type: watch.Added, Object: versioned("c", 10)}}, true,
			"Set EndpointSlice default/a, Set EndpointSlice default/b, full, Set EndpointSlice default/c", "ADDED a, BOOKMARK 8, BOOKMARK 9, BOOKMARK 10"},
		{"a part of the initial objects", []watch.Event{{Type: watch.Added, Object: versioned("a", 7)}, {Type: watch.Added, Object: versioned("b", 3)}}, true,
			"Set EndpointSlice default/a, Set EndpointSlice default/b", "ADDED a, BOOKMARK 3"},
		{"changes", []watch.Event{{Type: watch.Added, Object: versioned("a", 7)}, {Type: watch.Modified, Object: versioned("a", 8)}, {Type: watch.Deleted, Object: versioned("a", 11)}}, false,
			"Set EndpointSlice default/a, Set EndpointSlice default/a, Delete EndpointSlice default/a", "BOOKMARK 11"},
		{"an error", []watch.Event{{Type: watch.Added, Object: versioned("a", 7)}, {Type: watch.Error, Object: gone}, {Type: watch.Added, Object: versioned("b", 8)}}, false,
			"Set EndpointSlice default/a", "BOOKMARK 7, ERROR too old"},
		{"another kind", []watch.Event{{Type: watch.Added, Object: versioned("a", 7)}, {Type: watch.Added, Object: service("b", "")}, {Type: watch.Added, Object: versioned("c", 9)}}, false,
			"Set EndpointSlice default/a", `BOOKMARK 7, ERROR malformed event: "Service" instead of EndpointSlice`},
	} {
		for encoding, in := range inFrames(t, c.events...) {
			delivered, passed := streamed(in, c.initial)
			if got := strings.Join(delivered, ", "); got != c.delivered {
				t.Errorf("%s, %s: delivered %s, want %s", c.name, encoding, got, c.delivered)
			}
			if got := strings.Join(passed, ", "); got != c.passed {
				t.Errorf("%s, %s: passed %s, want %s", c.name, encoding, got, c.passed)
			}
			for n := range len(in) { // no part of an event counts, nor does it panic
				if part, _ := streamed(in[:n], c.initial); len(part) > len(delivered) || !slices.Equal(part, delivered[:len(part)]) {
					t.Fatalf("%s, %s, %d of %d bytes: delivered %s", c.name, encoding, n, len(in), part)
				}
			}
		}
	}
	broken := inFrame(t, "ADDED", append([]byte(magic+"\x0a\x0f\x12\x0dEndpointSlice"), "\x12\x02\x0a\x7f"...))
	if delivered, passed := streamed(broken, false); len(delivered) > 0 || len(passed) != 1 || !strings.HasPrefix(passed[0], "ERROR malformed event: ") {
		t.Errorf("a malformed object: %s, %s", delivered, passed)
	}
	var many []watch.Event
	for i := range 2001 {
		many = append(many, watch.Event{Type: watch.Added, Object: versioned(fmt.Sprint("n", i), 1)})
	}
	if _, passed := streamed(inFrames(t, many...)["protobuf"], true); strings.Join(passed, ", ") != "ADDED n0, ADDED n1000, ADDED n2000, BOOKMARK 1" {
		t.Errorf("of many initial objects, the Reflector sees %s", passed)
	}
}

// TestResumes watches again from the version that the objects have, and lists nothing again.
func TestResumes(t *testing.T) {
	for _, noStreaming := range []bool{false, true} {
		for _, media := range []string{protobuf, inJSON} {
			w := newWorld(t, media, service("a", "10.96.0.1"))
			w.noStreaming = noStreaming
			w.start()
			w.expect("Set Service default/a", "Synced")
			w.allWatch()
			w.set(service("b", "10.96.0.2"))
			w.expect("Set Service default/b")
			w.remove(service("b", ""))
			w.expect("Delete Service default/b")
			w.set(service("c", "10.96.0.3"))
			w.expect("Set Service default/c")
			w.mu.Lock()
			version := fmt.Sprint(w.version)
			w.mu.Unlock()
			before := len(w.query("services"))
			w.hangUp()
			w.eventually("another watch", func() bool { return len(w.query("services")) > before && w.watching("services") == 1 })
			asked := w.query("services")
			if got := asked[len(asked)-1]; got.Get("resourceVersion") != version || got.Get("sendInitialEvents") != "" {
				t.Errorf("%s: watches from %v, want version %s", media, got, version)
			}
			w.settled()
			w.expect()
			w.stop()
		}
	}
}

// TestCutShortly cuts connections for a moment: nothing is listed again.
func TestCutShortly(t *testing.T) {
	w := newWorld(t, protobuf, service("a", "10.96.0.1")).start()
	w.expect("Set Service default/a", "Synced")
	w.allWatch()
	time.Sleep(1100 * time.Millisecond) // the Reflector lists again after shorter watches without events
	before := len(w.query("services"))
	w.change(func() { w.down = true })
	w.hangUp()
	w.eventually("an attempt", func() bool { return len(w.query("services")) > before })
	w.change(func() { w.down = false })
	w.allWatch()
	if n := w.listings("services"); n != 1 {
		t.Errorf("Services were listed %d times, want once", n)
	}
}

// TestWatchesAreNotLimited allows no more requests than lists.
func TestWatchesAreNotLimited(t *testing.T) {
	w := newWorld(t, protobuf)
	w.noStreaming = true
	w.client = w.newClient(componentbase.ClientConnectionConfiguration{QPS: 1e-4, Burst: 4}, w.URL)
	w.start()
	w.allWatch()
}

// TestSinkAfterRun ends the source while an object is being delivered.
func TestSinkAfterRun(t *testing.T) {
	for _, noStreaming := range []bool{false, true} {
		w := newWorld(t, protobuf, service("a", "10.96.0.1"))
		w.noStreaming = noStreaming
		ctx, cancel := context.WithCancel(t.Context())
		var delivering atomic.Bool
		err := New(w.client, w.options).Run(ctx, func(batch []source.Event) {
			if batch[0].Object != nil {
				delivering.Store(true)
				cancel()
				time.Sleep(200 * time.Millisecond)
				delivering.Store(false)
			}
		})
		if err != nil || delivering.Load() {
			t.Errorf("Run returned %v, delivering: %v", err, delivering.Load())
		}
	}
}

// TestStop checks that Stop waits for an object that is being delivered.
func TestStop(t *testing.T) {
	w := newWorld(t, protobuf)
	delivering, delivered := make(chan bool), false
	slices, err := newWatcher(&run{source: &Source{}, sink: func([]source.Event) {
		delivering <- true
		time.Sleep(100 * time.Millisecond)
		delivered = true
	}}, w.client, (&Options{}).kinds()[3])
	check(t, err)
	s, err := slices.open(t.Context(), metav1.ListOptions{ResourceVersion: "10"})
	check(t, err)
	w.eventually("the watch", func() bool { return w.watching("endpointslices") == 1 })
	w.set(slice("a", "10.0.0.1"))
	<-delivering
	s.Stop()
	if !delivered {
		t.Error("Stop does not wait")
	}
}
