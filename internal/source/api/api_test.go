// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	componentbase "k8s.io/component-base/config/v1alpha1"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

const (
	protobuf = runtime.ContentTypeProtobuf
	inJSON   = runtime.ContentTypeJSON
)

// TestInitial checks that all existing objects are delivered, followed by Synced, by each way
// of listing them.
func TestInitial(t *testing.T) {
	headless := slice("headless", "10.0.0.9")
	headless.Labels[corev1.IsHeadlessService] = ""
	anothers := service("anothers", "10.96.0.9")
	anothers.Labels[labelProxyName] = "cilium"
	all := []source.Object{
		service("web", "10.96.0.1"), anothers, service("none", "None"),
		slice("web-1", "10.0.0.1", "10.0.0.2"), headless,
		node("n1", "a"), node("n2", "b"),
		serviceCIDR("kubernetes", "10.96.0.0/16"),
	}
	for _, c := range []struct {
		name, media string
		noStreaming bool
	}{
		{"streamed, protobuf", protobuf, false},
		{"listed, protobuf", protobuf, true},
		{"streamed, JSON", inJSON, false},
		{"listed, JSON", inJSON, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, c.media, all...)
			w.noStreaming = c.noStreaming
			w.start()
			events := w.expect("Set Service default/web", "Set EndpointSlice default/web-1", "Set Node n1", "Set ServiceCIDR kubernetes", "Synced")
			if last := events[len(events)-1]; last.Type != source.Synced {
				t.Errorf("the last event is %v", last)
			}
			for _, e := range events {
				if e.Object != nil && len(e.Object.GetManagedFields()) > 0 {
					t.Errorf("%s has managed fields", e)
				}
			}
			for resource, want := range map[string]string{
				"nodes":          " metadata.name=n1",
				"services":       "!service.kubernetes.io/service-proxy-name spec.clusterIP!=None",
				"endpointslices": "!service.kubernetes.io/headless ",
				"servicecidrs":   " ",
			} {
				for _, q := range w.query(resource) {
					if got := q.Get("labelSelector") + " " + q.Get("fieldSelector"); got != want {
						t.Errorf("selectors of %s: %q, want %q", resource, got, want)
					}
				}
			}
			if reported := w.reported(); len(reported) > 0 {
				t.Errorf("errors %q", reported)
			}
		})
	}
}

func TestChanges(t *testing.T) {
	w := newWorld(t, protobuf, service("web", "10.96.0.1"), slice("web-1", "10.0.0.1")).start()
	w.expect("Set Service default/web", "Set EndpointSlice default/web-1", "Synced")

	w.set(slice("web-1", "10.0.0.1", "10.0.0.2"))
	s := w.expect("Set EndpointSlice default/web-1")[0].Object.(*discoveryv1.EndpointSlice)
	if len(s.Endpoints) != 2 {
		t.Errorf("%d endpoints, want 2", len(s.Endpoints))
	}
	w.set(service("db", "10.96.0.2"))
	w.expect("Set Service default/db")
	w.remove(service("db", ""))
	w.expect("Delete Service default/db")
	w.set(serviceCIDR("more", "10.97.0.0/16"))
	w.expect("Set ServiceCIDR more")
	w.remove(serviceCIDR("more", ""))
	w.expect("Delete ServiceCIDR more")
}

// TestNodeLater creates the Node after the start.
func TestNodeLater(t *testing.T) {
	w := newWorld(t, protobuf, node("n2", "b")).start()
	w.expect("Synced")
	w.set(node("n1", "a"))
	w.expect("Set Node n1")
	w.set(node("n1", "c"))
	n := w.expect("Set Node n1")[0].Object.(*corev1.Node)
	if zone := n.Labels[corev1.LabelTopologyZone]; zone != "c" {
		t.Errorf("zone %q, want c", zone)
	}
	w.remove(node("n1", ""))
	w.expect("Delete Node n1")
}

// TestWithoutServiceCIDRs does without them until they are there.
func TestWithoutServiceCIDRs(t *testing.T) {
	for code, cause := range map[int]string{
		http.StatusNotFound:  "the server could not find the requested resource",
		http.StatusForbidden: "servicecidrs refused",
	} {
		t.Run(cause, func(t *testing.T) {
			w := newWorld(t, protobuf, service("web", "10.96.0.1"), serviceCIDR("kubernetes", "10.96.0.0/16"))
			w.refuse["servicecidrs"] = code
			w.start()
			w.expect("Set Service default/web", "Synced")
			w.eventually("being asked again", func() bool { return len(w.query("servicecidrs")) > 4 })
			reported := w.reported()
			if len(reported) != 1 || !strings.HasPrefix(reported[0], "going on without ServiceCIDRs, ") || !strings.Contains(reported[0], "refused") {
				t.Errorf("errors %q, want one", reported)
			}
			w.change(func() { delete(w.refuse, "servicecidrs") })
			w.expect("Set ServiceCIDR kubernetes")
		})
	}
}

// TestRefusedAfterOutage has a server that starts again, and refuses an optional kind as its first answer, as while it does
// not know the roles yet: the outage is over.
func TestRefusedAfterOutage(t *testing.T) {
	w := newWorld(t, protobuf, service("web", "10.96.0.1"), serviceCIDR("kubernetes", "10.96.0.0/16")).start()
	w.expect("Set Service default/web", "Set ServiceCIDR kubernetes", "Synced")
	w.change(func() { w.broken = true })
	w.hangUp()
	w.eventually("requests for all kinds fail", func() bool { return !w.source.Contact().Failing.IsZero() && len(w.query("servicecidrs")) > 4 })
	w.change(func() { w.broken, w.refuse["servicecidrs"] = false, http.StatusForbidden })
	w.eventually("contact", func() bool { return w.source.Contact().Failing.IsZero() })
}

// TestForFastPath watches the kinds that only the fast path uses, with and without the right to
// do so. Without it, there is no error.
func TestForFastPath(t *testing.T) {
	pod := func(name, node string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "1", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}},
			Spec:       corev1.PodSpec{NodeName: node, HostNetwork: true, Containers: []corev1.Container{{Name: "main", Image: "example"}}},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}, Message: "long"},
		}
	}
	kinds := []struct {
		resource string
		object   source.Object
	}{
		{"networkpolicies", &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "deny"}}},
		{"namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Annotations: map[string]string{"c": "d"}}}},
		{"pods", pod("web-1", "n1")},
	}
	for _, noStreaming := range []bool{false, true} {
		for _, refused := range kinds {
			w := newWorld(t, protobuf, service("web", "10.96.0.1"), pod("web-2", "n2"))
			w.options.FastPath, w.noStreaming = true, noStreaming
			want := []string{"Set Service default/web", "Synced"}
			for _, k := range kinds {
				w.set(k.object)
				if k.resource != refused.resource {
					want = append(want, "Set "+source.Name(k.object))
				}
			}
			w.refuse[refused.resource] = http.StatusForbidden
			w.start()
			events := w.expect(want...)
			w.eventually("being asked again", func() bool { return len(w.query(refused.resource)) > 4 })
			w.change(func() { delete(w.refuse, refused.resource) })
			events = append(events, w.expect("Set "+source.Name(refused.object))...)
			for _, e := range events {
				if p, is := e.Object.(*corev1.Pod); is {
					p = p.DeepCopy()
					p.ResourceVersion = ""
					if !reflect.DeepEqual(p, &corev1.Pod{
						ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}},
						Spec:       corev1.PodSpec{HostNetwork: true},
						Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}},
					}) {
						t.Errorf("pod %+v", p)
					}
				}
				if n, is := e.Object.(*corev1.Namespace); is && n.Annotations["c"] != "d" {
					t.Errorf("namespace %+v", n)
				}
			}
			w.eventually("the watches", func() bool {
				return w.watching("networkpolicies")+w.watching("namespaces")+w.watching("pods") == len(kinds)
			})
			w.set(pod("web-2", "n2"))
			for _, k := range kinds {
				w.set(k.object)
				w.expect("Set " + source.Name(k.object))
				w.remove(k.object)
				w.expect("Delete " + source.Name(k.object))
			}
			if reported := w.reported(); len(reported) > 0 {
				t.Errorf("errors %q", reported)
			}
			w.stop()
		}
	}
}

// TestForSockets watches pods and nothing else of the fast path's.
func TestForSockets(t *testing.T) {
	w := newWorld(t, protobuf, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.PodSpec{NodeName: "n1"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	w.options.Pods = true
	w.start()
	w.expect("Set Pod default/web", "Synced")
	w.eventually("the watch", func() bool { return w.watching("pods") == 1 })
	if n := w.watching("namespaces"); n != 0 {
		t.Errorf("%d watches of Namespaces", n)
	}
}

// TestAllNodes receives the metadata of all Nodes, once for each, beside this Node.
func TestAllNodes(t *testing.T) {
	for _, media := range []string{protobuf, runtime.ContentTypeJSON} {
		for _, noStreaming := range []bool{false, true} {
			w := newWorld(t, media, node("n1", "a"), node("n2", "b"))
			w.noStreaming = noStreaming
			w.options.AllNodes = true
			if media != protobuf {
				w.client = w.newClient(componentbase.ClientConnectionConfiguration{QPS: 10000, Burst: 10000, ContentType: media, AcceptContentTypes: media}, w.URL)
			}
			w.start()
			events := w.expect("Set Node n1", "Set NodeMetadata n1", "Set NodeMetadata n2", "Synced")
			for _, e := range events {
				if m, is := e.Object.(*metav1.PartialObjectMetadata); is && m.Labels["a"] != "b" {
					t.Errorf("metadata %+v", m)
				}
			}
			w.eventually("the watches", func() bool { return w.watching("nodes") == 2 })
			w.set(node("n2", "c"), node("n3", "c"))
			w.expect("Set NodeMetadata n3")
			w.remove(node("n2", ""))
			w.expect("Delete NodeMetadata n2")
			w.set(node("n2", "c"))
			w.expect("Set NodeMetadata n2")
			if reported := w.reported(); len(reported) > 0 {
				t.Errorf("errors %q", reported)
			}
			w.stop()
		}
	}
}

// TestOtherNodes receives other Nodes too.
func TestOtherNodes(t *testing.T) {
	w := newWorld(t, protobuf, node("n1", "a"), node("n2", "b"))
	w.options.OtherNodes = true
	w.start()
	w.expect("Set Node n1", "Set Node n2", "Synced")
	w.set(node("n3", "c"))
	w.expect("Set Node n3")
	w.remove(node("n2", ""))
	w.expect("Delete Node n2")
}

// TestRefused checks that the source waits while a required kind is refused.
func TestRefused(t *testing.T) {
	w := newWorld(t, protobuf, service("web", "10.96.0.1"), slice("web-1", "10.0.0.1"))
	w.refuse["endpointslices"] = http.StatusForbidden
	w.start()
	w.expect("Set Service default/web")
	w.eventually("more attempts", func() bool { return len(w.query("endpointslices")) > 6 })
	w.expectReported("API server URL: cannot list and watch EndpointSlices: endpointslices refused (the ruleset stays; trying again)")
	if w.has("Synced") {
		t.Error("synced without EndpointSlices")
	}
	w.change(func() { delete(w.refuse, "endpointslices") })
	w.expect("Set EndpointSlice default/web-1", "Synced")
}

// TestGone loses a watch and its resource version: only differing objects are delivered.
func TestGone(t *testing.T) {
	for _, noStreaming := range []bool{false, true} {
		w := newWorld(t, protobuf, service("same", "10.96.0.1"), service("old", "10.96.0.2"), service("gone", "10.96.0.3"), slice("web-1"))
		w.noStreaming = noStreaming
		w.start()
		w.expect("Set Service default/same", "Set Service default/old", "Set Service default/gone", "Set EndpointSlice default/web-1", "Synced")
		w.allWatch()
		w.change(func() { w.down = true })
		w.hangUp()
		w.set(service("old", "10.96.0.9"), service("new", "10.96.0.4"))
		w.remove(service("gone", ""))
		w.compact()
		w.change(func() { w.down = false })
		w.expect("Set Service default/old", "Set Service default/new", "Delete Service default/gone")
		w.settled()
		w.expect()
		if n := w.listings("services"); n < 2 {
			t.Errorf("Services were listed %d times, want at least 2", n)
		}
	}
}

// TestOutage checks that a server that cannot be reached, or answers with errors, is reported
// once, that no object is withdrawn, and that the watch continues where it was.
func TestOutage(t *testing.T) {
	for _, c := range []struct {
		cause string
		set   func(w *world, down bool)
	}{
		{"out of order", func(w *world, down bool) { w.broken = down }},
		{"dial tcp: connect: connection refused", func(w *world, down bool) { w.closed.Store(down) }},
	} {
		t.Run(c.cause, func(t *testing.T) {
			began := time.Now()
			w := newWorld(t, protobuf, service("web", "10.96.0.1"), slice("web-1", "10.0.0.1"), node("n1", "a")).start()
			w.expect("Set Service default/web", "Set EndpointSlice default/web-1", "Set Node n1", "Synced")
			w.change(func() { c.set(w, true) })
			w.hangUp()
			w.eventually("an error", func() bool { return len(w.reported()) > 0 })
			time.Sleep(300 * time.Millisecond) // for some attempts: more errors would be reported now
			w.expectReported("API server URL: cannot list and watch " + kindIn(w.reported()) + "s: " + c.cause + " (the ruleset stays; trying again)")
			w.expect() // nothing
			if c := w.source.Contact(); c.Failing.IsZero() || c.Failing.Before(began) || c.Heard.Before(began) || c.Cause == "" {
				t.Errorf("contact in an outage: %+v", c)
			}
			w.set(slice("web-1", "10.0.0.2"))
			w.remove(service("web", ""))
			w.change(func() { c.set(w, false) })
			w.expect("Set EndpointSlice default/web-1", "Delete Service default/web")
			w.eventually("contact", func() bool { return w.source.Contact().Failing.IsZero() })
			w.allWatch()
			before := w.source.Contact().Heard
			w.set(slice("web-1", "10.0.0.3"))
			w.expect("Set EndpointSlice default/web-1")
			w.eventually("the event to count as contact", func() bool { return w.source.Contact().Heard.After(before) })

			// The next outage is reported again.
			w.allWatch()
			w.change(func() { c.set(w, true) })
			w.hangUp()
			w.eventually("another error", func() bool { return len(w.reported()) == 2 })
		})
	}
}

// TestEndInOutage: the end does not wait for the next attempt to connect.
func TestEndInOutage(t *testing.T) {
	was := backoff
	defer func() { backoff = was }()
	backoff.Duration, backoff.Cap, backoff.Factor = 50*time.Millisecond, time.Hour, 2000 // the second wait is a long one
	w := newWorld(t, protobuf, service("web", "10.96.0.1")).start()
	w.expect("Set Service default/web", "Synced")
	w.closed.Store(true)
	w.hangUp()
	w.eventually("an error", func() bool { return len(w.reported()) > 0 })
	time.Sleep(500 * time.Millisecond) // until all kinds wait
	w.cancel()
	select {
	case err := <-w.done:
		if err != nil {
			t.Error(err)
		}
		w.done <- nil // for the world's own end
	case <-time.After(patience):
		t.Fatal("Run goes on after its context has ended")
	}
}

// TestNoProtobuf checks that metadata is asked for in JSON alone if that is configured.
func TestNoProtobuf(t *testing.T) {
	for accept, want := range map[string]bool{"": true, "application/json": false, "application/vnd.kubernetes.protobuf,application/json": true} {
		config := rest.Config{ContentConfig: rest.ContentConfig{AcceptContentTypes: accept, ContentType: protobuf}}
		c, err := NewClient(&config)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.metadata().config.AcceptContentTypes; strings.Contains(got, protobuf) != want {
			t.Errorf("acceptContentTypes %q: %s", accept, got)
		}
	}
}

// TestCut checks that connections that are accepted and closed are reported.
func TestCut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, protobuf, service("web", "10.96.0.1"))
	w.down = true
	w.start()
	w.eventually("an error", func() bool { return len(w.reported()) > 0 })
	w.expectReported("API server URL: cannot list and watch " + kindIn(w.reported()) + "s: the connection ended before an answer came (the ruleset stays; trying again)")
}

// kindIn is the kind that the first error is about: any may be the first to fail.
func kindIn(reported []string) string {
	if len(reported) > 0 {
		for _, k := range (&Options{}).kinds() {
			if strings.Contains(reported[0], " "+k.name+"s:") {
				return k.name
			}
		}
	}
	return "?"
}

// TestRepeated sends in a watch objects that were delivered before, and older ones.
func TestRepeated(t *testing.T) {
	w := newWorld(t, protobuf).start()
	w.expect("Synced")
	w.set(slice("a", "10.0.0.1"))
	first := w.log[len(w.log)-1].Object.(source.Object)
	w.set(slice("a", "10.0.0.2"))
	second := w.log[len(w.log)-1].Object.(source.Object)
	w.eventually("the second", func() bool {
		w.seeing.Lock()
		defer w.seeing.Unlock()
		last := w.events[len(w.events)-1].Object
		s, ok := last.(*discoveryv1.EndpointSlice)
		return ok && s.Endpoints[0].Addresses[0] == "10.0.0.2"
	})
	w.seen()
	w.send(watch.Modified, second)
	w.send(watch.Added, first)
	w.send(watch.Modified, first)
	w.send(watch.Deleted, first)
	w.send(watch.Added, second)
	w.settled()
	w.expect() // nothing

	w.remove(slice("a"))
	w.expect("Delete EndpointSlice default/a")
	w.send(watch.Deleted, second)
	w.settled()
	w.expect()
	w.set(slice("a", "10.0.0.3"))
	w.expect("Set EndpointSlice default/a")
}

// TestOlderList: after a backup was restored, a list has older versions. It counts, and
// so do the changes that follow.
func TestOlderList(t *testing.T) {
	for _, noStreaming := range []bool{false, true} {
		w := newWorld(t, protobuf, service("kept", "10.96.0.1"), service("lost", "10.96.0.2"), service("changed", "10.96.0.3"))
		w.noStreaming = noStreaming
		w.change(func() { w.version = 1000 })
		w.set(service("changed", "10.96.0.4"))
		w.start()
		w.expect("Set Service default/kept", "Set Service default/lost", "Set Service default/changed", "Synced")

		w.change(func() {
			w.down = true
			w.version, w.compacted, w.log = 500, 2000, nil
			delete(w.objects["services"], "default/lost")
			s := service("changed", "10.96.0.3")
			s.ResourceVersion = "13"
			w.objects["services"]["default/changed"] = s
		})
		w.hangUp()
		w.change(func() { w.down = false })
		s := w.expectSet("changed", "Delete Service default/lost")
		if s.Spec.ClusterIP != "10.96.0.3" {
			t.Errorf("address %s, want the restored one", s.Spec.ClusterIP)
		}
		w.change(func() { w.compacted = 0 })
		w.set(service("changed", "10.96.0.5"))
		if s := w.expectSet("changed"); s.Spec.ClusterIP != "10.96.0.5" {
			t.Errorf("address %s, want the new one", s.Spec.ClusterIP)
		}
	}
}

// expectSet expects a Service, and other events.
func (w *world) expectSet(name string, others ...string) *corev1.Service {
	w.t.Helper()
	events := w.expect(append(others, "Set Service default/"+name)...)
	i := slices.IndexFunc(events, func(e source.Event) bool { return e.Object.GetName() == name })
	return events[i].Object.(*corev1.Service)
}

// TestBrokenStream cuts the first stream in its middle and removes an object that was
// delivered: the next stream shows that it is missing.
func TestBrokenStream(t *testing.T) {
	w := newWorld(t, protobuf, service("a", "10.96.0.1"), service("b", "10.96.0.2"), service("c", "10.96.0.3"))
	w.cutAfter["services"] = 2
	w.atCut = func() {
		for end := time.Now().Add(patience); !w.has("Set Service default/a") && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		w.remove(service("a", ""))
	}
	w.start()
	events := w.expect("Set Service default/a", "Set Service default/b", "Set Service default/c", "Delete Service default/a", "Synced")
	at := map[string]int{}
	for i, e := range events {
		at[e.String()] = i
	}
	if at["Synced"] != len(events)-1 {
		t.Errorf("events %v: Synced is not the last", events)
	}
}

// TestSlowSink makes events wait: only the last one of an object is delivered.
func TestSlowSink(t *testing.T) {
	w := newWorld(t, protobuf, slice("a", "10.0.0.1"))
	w.start()
	w.expect("Set EndpointSlice default/a", "Synced")
	block := make(chan struct{})
	w.seeing.Lock()
	w.block = block
	w.seeing.Unlock()
	w.set(slice("a", "10.0.0.2"))
	w.eventually("a sink that waits", func() bool {
		w.seeing.Lock()
		defer w.seeing.Unlock()
		return w.blocked
	})
	w.set(slice("b", "10.0.0.1"))
	for range 100 {
		w.set(slice("a", "10.0.0.3"))
	}
	w.set(slice("a", "10.0.0.4"))
	w.remove(slice("b"))
	w.eventually("all changes being read", func() bool { return w.unsent() == 0 })
	time.Sleep(time.Second) // most of it is in the queue by now; none has to be
	w.seeing.Lock()
	w.block = nil
	w.seeing.Unlock()
	close(block)
	w.eventually("the last version", func() bool {
		w.seeing.Lock()
		defer w.seeing.Unlock()
		last := map[string]source.Event{}
		for _, e := range w.events {
			if e.Object != nil {
				last[e.Object.GetName()] = e
			}
		}
		s, ok := last["a"].Object.(*discoveryv1.EndpointSlice)
		return ok && s.Endpoints[0].Addresses[0] == "10.0.0.4" && last["b"].Type == source.Delete
	})
	if n := len(w.seen()); n > 50 {
		t.Errorf("%d events came, want few", n)
	}
}

// TestReadsWhileSinkIsBlocked makes more changes than fit into the queue or into socket
// buffers. Watches must be read while the sink is blocked, as an API server closes others.
func TestReadsWhileSinkIsBlocked(t *testing.T) {
	const slices, endpoints, rounds = 64, 100, 10
	large := strings.Repeat("x", 40000)
	w := newWorld(t, protobuf, slice("0", "10.0.0.1")).start()
	w.expect("Set EndpointSlice default/0", "Synced")
	w.allWatch()
	block := make(chan struct{})
	w.seeing.Lock()
	w.block = block
	w.seeing.Unlock()
	for r := range rounds {
		for i := range slices {
			s := slice(fmt.Sprint(i))
			s.Annotations["large"] = large
			for e := range endpoints {
				s.Endpoints = append(s.Endpoints, slice("", fmt.Sprintf("10.%d.0.%d", r, e)).Endpoints...)
			}
			w.set(s)
		}
	}
	w.eventually("all changes being read", func() bool { return w.unsent() == 0 })
	w.seeing.Lock()
	if !w.blocked {
		t.Error("the sink is not blocked")
	}
	w.block = nil
	w.seeing.Unlock()
	close(block)
	w.eventually("the last version of each", func() bool {
		w.seeing.Lock()
		defer w.seeing.Unlock()
		last := map[string]string{}
		for _, e := range w.events {
			if s, ok := e.Object.(*discoveryv1.EndpointSlice); ok {
				last[s.Name] = s.Endpoints[0].Addresses[0]
			}
		}
		newest := 0
		for _, address := range last {
			if address == fmt.Sprintf("10.%d.0.0", rounds-1) {
				newest++
			}
		}
		return newest == slices
	})
	if n := len(w.seen()); n > rounds*slices/2 {
		t.Errorf("%d events came, want few", n)
	}
}

// TestExpiredToken: with a token that is not valid any more everything stays, until it
// is. (That its file is read again every minute is client-go's, see TestClientConfig.)
func TestExpiredToken(t *testing.T) {
	w := newWorld(t, protobuf, service("web", "10.96.0.1")).start()
	w.expect("Set Service default/web", "Synced")
	w.change(func() { w.unauthorized = true })
	w.hangUp()
	w.set(service("web", "10.96.0.2"))
	w.eventually("an error", func() bool { return len(w.reported()) > 0 })
	time.Sleep(200 * time.Millisecond) // for more errors
	w.expectReported("API server URL: cannot list and watch " + kindIn(w.reported()) + "s: Unauthorized (the ruleset stays; trying again)")
	w.expect()
	w.change(func() { w.unauthorized = false })
	w.expect("Set Service default/web")
}

func TestNoNodeName(t *testing.T) {
	if err := New(&Client{}, Options{}).Run(t.Context(), nil); err == nil {
		t.Error("runs without the name of the node")
	}
}
