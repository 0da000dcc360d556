// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestAnnotated has annotations count in Namespaces with a label only, as the label comes and goes.
func TestAnnotated(t *testing.T) {
	s, m := New(Config{
		NodeName: "n1", Annotated: func(l map[string]string) bool { return l["annotations"] == "allowed" }, NamespaceChange: math.MaxInt,
	}), newModel()
	namespace := func(name, label string) {
		s.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"annotations": label}}})
	}
	want := func(what string, problems int, services string) {
		t.Helper()
		u := s.Change()
		if err := m.apply(u); err != nil || len(u.Problems) != problems {
			t.Errorf("%s: problems %v, %v", what, u.Problems, err)
		}
		weights, slow := 0, len(m.sets[SlowPathIPs])
		for _, p := range m.pools {
			weights += len(p.weights)
		}
		for _, f := range m.frontends {
			if f.SlowPath {
				slow++
			}
		}
		if _, special := served(s); fmt.Sprintf("%v, %d weights, %d slow", special, weights, slow) != services {
			t.Errorf("%s: %v, %d weights, %d slow; want %s", what, special, weights, slow, services)
		}
	}
	all := map[string]string{AnnotationScheduler: "maglev", AnnotationFastPath: "off"}
	addService(s, "x", 1, 1, 2, corev1.ServiceSpec{}, all, "30")
	addService(s, "xx", 1, 1, 2, corev1.ServiceSpec{}, all, "30")
	addService(s, "x", 2, 1, 2, corev1.ServiceSpec{}, map[string]string{AnnotationScheduler: "no such"}, "")
	s.SetPod(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "pod", Annotations: all},
		Status:     corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.244.0.9"}}},
	})
	namespace("x", "")
	want("none is allowed", 0, "[], 0 weights, 0 slow")
	namespace("x", "allowed")
	want("one is", 1, "[x/s1], 4 weights, 3 slow")
	namespace("x", "no")
	want("none again", 0, "[], 0 weights, 0 slow")
	namespace("xx", "allowed")
	addService(s, "xx", 1, 1, 2, corev1.ServiceSpec{}, nil, "")
	want("one that has none any more", 0, "[], 0 weights, 0 slow")
	addService(s, "xx", 1, 1, 2, corev1.ServiceSpec{}, all, "30")
	want("it has them again", 0, "[xx/s1], 4 weights, 2 slow")
	s.DeleteNamespace("xx")
	want("the Namespace is deleted", 0, "[], 0 weights, 0 slow")
	for _, name := range []string{"s1", "s2"} {
		for _, ns := range []string{"x", "xx"} {
			s.DeleteService(ns, name)
			s.DeleteEndpointSlice(ns, name)
			s.DeleteEndpointSlice(ns, name+"-v6")
		}
	}
	s.DeletePod("x", "pod")
	namespace("x", "allowed")
	want("all is deleted", 0, "[], 0 weights, 0 slow")
	if len(s.permits.objects) != 0 {
		t.Errorf("there are records: %v", s.permits.objects)
	}
}

// TestNoAnnotationCounts gives objects each annotation that there is, in a Namespace where none counts. All change
// something once they count.
func TestNoAnnotationCounts(t *testing.T) {
	values := map[string]string{
		AnnotationScheduler: "maglev", AnnotationLocalZone: "30", AnnotationSlowStart: "1h", AnnotationOutliers: "on", AnnotationWeight: "30",
		AnnotationFastPath: "off", AnnotationFailover: "passthrough", AnnotationPortRanges: "tcp/90-99", AnnotationMaxConnections: "1",
		AnnotationMaxPerClient: "1", AnnotationRatePerClient: "1/s", AnnotationLimitAction: "drop",
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`Annotation\w+ += "(slipstream\.io/[^"]+)"`).FindAllSubmatch(text, -1) {
			if values[string(m[1])] == "" {
				t.Errorf("%s has the annotation %s, which this test does not try", file, m[1])
			}
		}
	}
	for annotation, value := range values {
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "x", Annotations: map[string]string{annotation: value}},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}}},
		}
		if annotation == AnnotationLimitAction {
			svc.Annotations[AnnotationMaxConnections] = "1"
		}
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "x", Name: "x", Annotations: svc.Annotations, Labels: map[string]string{discoveryv1.LabelServiceName: "x"}},
			AddressType: discoveryv1.AddressTypeIPv4,
		}
		s := New(Config{NodeName: "n1", Annotated: func(l map[string]string) bool { return l["allowed"] == "yes" }})
		parse := func(svc *corev1.Service, slice *discoveryv1.EndpointSlice) []any {
			return []any{s.compactService(permitted(s, svc)), s.compactSlice(permitted(s, slice))}
		}
		no := parse(svc, slice)
		s.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x", Labels: map[string]string{"allowed": "yes"}}})
		yes := parse(svc, slice)
		slice = slice.DeepCopy()
		if svc.Annotations, slice.Annotations = nil, nil; !reflect.DeepEqual(no, parse(svc, slice)) {
			t.Errorf("%s counts", annotation)
		}
		if reflect.DeepEqual(yes, parse(svc, slice)) {
			t.Errorf("%s does not count where it may", annotation)
		}
	}
}

// TestSwitch switches the annotations of a namespace on and off, as a label of its Namespace does, while Services use what
// they can do: outlier detection ejects, an endpoint is warming, ranges are served, connections are limited, packets pass.
// Each time, the content is that of Services with, or without, the annotations.
func TestSwitch(t *testing.T) {
	all := map[string]string{
		AnnotationScheduler: "maglev", AnnotationOutliers: EjectOutliers, AnnotationPortRanges: "udp/100-200, tcp/5-9",
		AnnotationMaxConnections: "100", AnnotationMaxPerClient: "10", AnnotationRatePerClient: "5/s", AnnotationLimitAction: "drop",
		AnnotationFailover: "passthrough", AnnotationFastPath: "off", AnnotationLocalZone: "80",
	}
	setup := func(c Config, annotations map[string]string) *State {
		s := New(c)
		s.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x", Labels: map[string]string{"allowed": "yes"}}})
		s.Full()
		s.Advance(time.Unix(1000, 0))
		spec := corev1.ServiceSpec{ExternalIPs: []string{"192.0.2.1"}}
		addService(s, "x", 1, 2, 4, spec, annotations, "")
		spec.ExternalIPs = []string{"192.0.2.2"}
		addService(s, "x", 2, 1, 0, spec, annotations, "")
		s.Silent("x", Target{TCP, NewBackend(netip.MustParseAddrPort("10.244.0.1:1"))}, true)
		s.Silent("x", Target{TCP, NewBackend(netip.MustParseAddrPort("10.244.0.2:1"))}, true)
		return s
	}
	s, m := setup(Config{NodeName: "n1", Annotated: func(l map[string]string) bool { return l["allowed"] == "yes" }}, all), newModel()
	if err := m.apply(s.Full()); err != nil {
		t.Fatal(err)
	}
	with := setup(Config{NodeName: "n1"}, all)
	without := setup(Config{NodeName: "n1"}, nil)
	for i := range 5 {
		label, like := "yes", with
		if i%2 == 1 {
			label, like = "no", without
		}
		s.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x", Labels: map[string]string{"allowed": label}}})
		for first := true; first || s.Pending(); first = false {
			if err := m.apply(s.Change()); err != nil {
				t.Fatal(err)
			}
		}
		want := newModel()
		if err := want.apply(like.Full()); err != nil || m.String() != want.String() {
			t.Errorf("%s: %v\n%s\nwant\n%s", label, err, m, want)
		}
		ranges, limited, passes, slow, ejected := 0, 0, 0, 0, 0
		for _, f := range m.frontends {
			ranges += map[bool]int{true: 1}[f.IsRange()]
			limited += map[bool]int{true: 1}[f.Limits != Limits{}]
			passes += map[bool]int{true: 1}[f.Passes]
			slow += map[bool]int{true: 1}[f.SlowPath]
		}
		for _, p := range m.pools {
			ejected += map[bool]int{true: 1}[len(p.backends) == 2]
		}
		got, none := []int{ranges, limited, passes, slow, ejected}, []int{0, 0, 0, 0, 0}
		if slices.Equal(got, none) != (label == "no") || label == "yes" && slices.Contains(got, 0) || s.Detecting() != (label == "yes") {
			t.Errorf("%s: %v ranges, limits, passing, slow, ejected", label, got)
		}
	}
	// Slow start counts for endpoints that become ready while it does.
	for i, label := range []string{"yes", "no", "yes"} {
		s.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x", Labels: map[string]string{"allowed": label}}})
		addService(s, "x", 3, 1, 1+i, corev1.ServiceSpec{}, map[string]string{AnnotationSlowStart: "1h"}, "")
		weights := 0
		for first := true; first || s.Pending(); first = false {
			for _, p := range s.Change().Pools {
				for _, w := range p.Weights {
					if w.Weight != DefaultWeight {
						weights++
					}
				}
			}
		}
		if on := label == "yes"; s.Warming() != on || i > 0 && on != (weights > 0) {
			t.Errorf("%s: warming %t, %d weights", label, s.Warming(), weights)
		}
	}
}

// TestRecordsAreSmall has objects of up to a quarter of a megabyte, of a kind that a tenant may write, in a namespace whose
// annotations count, or not yet: annotations that nobody reads, or long ones of the proxy, labels, selectors,
// addresses. The state keeps kilobytes of each.
func TestRecordsAreSmall(t *testing.T) {
	const objects, each = 10, 12 << 10
	long := func(i int) string { return fmt.Sprint(i) + strings.Repeat("x", 250_000) }
	many := func(i int) map[string]string {
		all := map[string]string{}
		for j := range 200 {
			all[fmt.Sprintf("%s-%d-%d", strings.Repeat("x", 200), i, j)] = fmt.Sprint(i)
		}
		return all
	}
	annotations := map[string]func(i int) string{
		AnnotationScheduler: func(i int) string { return "maglev" + strings.Repeat(",maglev-port", 20_000) + fmt.Sprint(i) },
		AnnotationPortRanges: func(i int) string {
			return "udp/" + strings.Repeat("0", 100_000) + "1-9," + strings.Repeat(" ", 100_000) + fmt.Sprint("tcp/1-", i+2)
		},
		AnnotationFastPath: long, AnnotationWeight: long, AnnotationLimitAction: long, "example.com/x": long, AnnotationSlowStart: func(int) string { return "9s" },
	}
	for what, config := range map[string]Config{"all": {}, "selector": {Annotated: func(l map[string]string) bool { return l["allowed"] == "yes" }}} {
		for annotation, value := range annotations {
			if testing.Short() && annotation != AnnotationPortRanges {
				continue
			}
			for kind, add := range map[string]func(s *State, meta metav1.ObjectMeta, i int){
				"Service": func(s *State, meta metav1.ObjectMeta, i int) {
					meta.OwnerReferences = []metav1.OwnerReference{{Name: long(i)}}
					s.SetService(&corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
						ClusterIP: fmt.Sprint("10.96.1.", i), Ports: []corev1.ServicePort{{Port: 80}}, Selector: many(i),
					}})
				},
				"EndpointSlice": func(s *State, meta metav1.ObjectMeta, i int) {
					meta.Labels[discoveryv1.LabelServiceName] = "x"
					sl := &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv6}
					for j := range 10 {
						e := discoveryv1.Endpoint{Hostname: ptr.To(fmt.Sprint("host-", j))}
						for k := range 100 {
							e.Addresses = append(e.Addresses, fmt.Sprintf("2001:db8::%d:%d:%d", i, j, k))
						}
						sl.Endpoints = append(sl.Endpoints, e)
					}
					s.SetEndpointSlice(sl)
				},
				"Pod": func(s *State, meta metav1.ObjectMeta, i int) { s.SetPod(&corev1.Pod{ObjectMeta: meta}) },
			} {
				s := New(config)
				heap := func() (m runtime.MemStats) {
					runtime.GC()
					runtime.GC()
					runtime.ReadMemStats(&m)
					return m
				}
				before := heap()
				for i := range objects {
					add(s, metav1.ObjectMeta{Namespace: "x", Name: fmt.Sprint("x", i), Labels: many(i), Annotations: map[string]string{annotation: value(i), "example.com/y": long(i)}}, i)
				}
				s.Full()
				if n := (int64(heap().HeapAlloc) - int64(before.HeapAlloc)) / objects; n > each {
					t.Errorf("%s: a %s with %s takes %d bytes", what, kind, annotation, n)
				}
				s.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x", Labels: map[string]string{"allowed": "yes"}}})
				s.Full()
				if n := (int64(heap().HeapAlloc) - int64(before.HeapAlloc)) / objects; n > each {
					t.Errorf("%s, once allowed: a %s with %s takes %d bytes", what, kind, annotation, n)
				}
				runtime.KeepAlive(s)
			}
		}
	}
}

// TestManyZones has slices whose endpoints have zones and hints of their own, all with long names. A slice keeps a part
// of them.
func TestManyZones(t *testing.T) {
	const objects, endpoints, each = 10, 1000, 120 << 10
	s := New(Config{NodeName: "n1"})
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for i := range objects {
		sl := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "x", Name: fmt.Sprint("x", i), Labels: map[string]string{discoveryv1.LabelServiceName: "x"}},
			AddressType: discoveryv1.AddressTypeIPv4,
		}
		for j := range endpoints {
			e := discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", i, j>>8, j&255)}, Zone: ptr.To(fmt.Sprint("zone-", i, "-", j)), Hints: &discoveryv1.EndpointHints{}}
			for k := range 8 {
				e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: fmt.Sprint("zone-", i, "-", j, "-", k, strings.Repeat("x", 40))})
			}
			sl.Endpoints = append(sl.Endpoints, e)
		}
		s.SetEndpointSlice(sl)
	}
	if n := (heap() - before) / objects; n > each {
		t.Errorf("a slice with %d zones takes %d bytes", endpoints, n)
	}
	for _, sl := range s.slices {
		if len(sl.zones) != mostZones || sl.zones.get(sl.endpoints[50].zones).own == "" || len(sl.endpoints) != endpoints {
			t.Errorf("%d zones of %d endpoints", len(sl.zones), len(sl.endpoints))
		}
	}
}

// TestPodSwitch has the annotation of a pod count while the label of its Namespace says so. What the configuration
// excludes by other annotations is excluded always.
func TestPodSwitch(t *testing.T) {
	s := New(Config{
		Annotated:   func(l map[string]string) bool { return l["allowed"] == "yes" },
		SlowPathPod: func(p *corev1.Pod) bool { return p.Annotations["example.com/slow"] == "yes" },
	})
	pod := func(name, ip string, annotations map[string]string) {
		s.SetPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name, Annotations: annotations}, Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: ip}}}})
	}
	pod("a", "10.0.0.1", map[string]string{AnnotationFastPath: "off"})
	pod("b", "10.0.0.2", map[string]string{AnnotationFastPath: "on", "example.com/slow": "yes"})
	pod("c", "10.0.0.3", map[string]string{AnnotationFastPath: "nonsense"})
	s.Full()
	for i, label := range []string{"no", "yes", "no", "yes"} {
		s.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x", Labels: map[string]string{"allowed": label}}})
		u := s.Change()
		if got, want := len(s.sets[SlowPathIPs].all), map[string]int{"no": 1, "yes": 2}[label]; got != want || len(u.Problems) > 0 {
			t.Errorf("%d: %s: %d addresses stay off the fast path; problems %v", i, label, got, u.Problems)
		}
	}
	pod("c", "10.0.0.3", map[string]string{AnnotationFastPath: "no nonsense"})
	if u := s.Change(); len(u.Problems) != 1 {
		t.Errorf("problems %v", u.Problems)
	}
	for _, name := range []string{"a", "b", "c"} {
		s.DeletePod("x", name)
	}
	s.Change()
	if n := len(s.sets[SlowPathIPs].all); n != 0 {
		t.Errorf("%d addresses of deleted pods", n)
	}
}
