// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// endpointAt is an endpoint of a slowStarter.
func endpointAt(i int) Backend {
	return NewBackend(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 8080))
}

// TestEjected: pools leave out endpoints that do not answer, at most half of those that readiness and policies leave, in
// the order in which they fell silent. Their connections without an answer are stale, once.
func TestEjected(t *testing.T) {
	s := newSlowStarter(t, Config{}, map[string]string{AnnotationOutliers: "on", AnnotationScheduler: "maglev"})
	for i := 1; i <= 5; i++ {
		s.endpoint(i, "a", "", true)
	}
	want := func(what, stale string, left ...int) {
		t.Helper()
		u := s.Change()
		if err := s.apply(u); err != nil {
			t.Fatal(err)
		}
		var got []int
		for i := range s.shares() {
			got = append(got, i)
		}
		slices.Sort(got)
		if flows := fmt.Sprint(u.Flows); !slices.Equal(got, left) || flows != stale {
			t.Errorf("%s: endpoints %v, want %v; stale flows %s, want %s", what, got, left, flows, stale)
		}
	}
	const none = "[]"
	flows := func(b ...Backend) string {
		return fmt.Sprint([]StaleFlows{{Protocol: TCP, Frontends: []FrontendKey{{AddrPort: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: TCP}}, Backends: b}})
	}
	want("all answer", none, 1, 2, 3, 4, 5)
	s.Silent("other", Target{TCP, endpointAt(1)}, true)
	s.Silent("default", Target{UDP, endpointAt(1)}, true)
	want("one is silent for another namespace, and over another protocol", none, 1, 2, 3, 4, 5)
	s.Silent("default", Target{TCP, endpointAt(3)}, true)
	want("one is silent", flows(endpointAt(3)), 1, 2, 4, 5)
	s.Silent("default", Target{TCP, endpointAt(1)}, true)
	s.Silent("default", Target{TCP, endpointAt(2)}, true)
	want("more than half are", flows(endpointAt(1)), 2, 4, 5)
	s.endpoint(5, "a", "", false)
	want("one of the others is not ready", none, 2, 4)
	s.endpoint(4, "a", "", false)
	want("another one", none, 1, 2)
	s.Silent("default", Target{TCP, endpointAt(3)}, false)
	want("one answers", flows(endpointAt(1)), 2, 3)
	s.endpoint(1, "a", "", false)
	s.endpoint(3, "a", "", false)
	want("one is left", none, 2)
	s.service(map[string]string{AnnotationOutliers: "report"})
	for _, i := range []int{1, 3, 4, 5} {
		s.endpoint(i, "a", "", true)
	}
	want("report only", none, 1, 2, 3, 4, 5)
	s.service(map[string]string{AnnotationOutliers: "on"})
	want("on again", flows(endpointAt(1), endpointAt(2)), 3, 4, 5)
	s.service(map[string]string{})
	if want("off", none, 1, 2, 3, 4, 5); s.Detecting() {
		t.Error("it is watched")
	}
}

// TestEjectedUDP: pools of UDP leave out endpoints that do not answer over UDP. All flows to them are stale, once.
func TestEjectedUDP(t *testing.T) {
	s := New(Config{})
	udp := corev1.ProtocolUDP
	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: map[string]string{AnnotationOutliers: "on"}},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 53, Protocol: udp}}},
	})
	s.SetEndpointSlice(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: ptr.To[int32](8080), Protocol: &udp}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}, {Addresses: []string{"10.0.0.2"}}},
	})
	s.Full()
	to := FrontendKey{AddrPort: netip.MustParseAddrPort("10.96.0.1:53"), Protocol: UDP}
	if detection, _ := s.DetectionOf(to, endpointAt(1)); detection != "on" {
		t.Errorf("detection %q", detection)
	}
	for i, c := range []struct {
		Protocol
		silent bool
		stale  []StaleFlows
		left   int
	}{
		{TCP, true, nil, 2},
		{UDP, true, []StaleFlows{{Protocol: UDP, Frontends: []FrontendKey{to}, Backends: []Backend{endpointAt(1)}}}, 1},
		{TCP, false, nil, 1},
		{UDP, false, nil, 2},
	} {
		s.Silent("default", Target{c.Protocol, endpointAt(1)}, c.silent)
		u := s.Change()
		if left := s.Decide(Origin{}, to).Port.Pools[0].Backends; fmt.Sprint(u.Flows) != fmt.Sprint(c.stale) || left != c.left {
			t.Errorf("%d: %d endpoints, want %d; stale flows %v, want %v", i, left, c.left, u.Flows, c.stale)
		}
	}
}

// TestEjectedView: the view of a Service, and the decision about a connection, say that an endpoint is ejected.
func TestEjectedView(t *testing.T) {
	s := newSlowStarter(t, Config{}, map[string]string{AnnotationOutliers: "on", AnnotationSlowStart: "1h"})
	s.endpoint(1, "a", "", true)
	s.endpoint(2, "a", "", true)
	s.Full()
	s.Silent("default", Target{TCP, endpointAt(1)}, true)
	s.Advance(time.Unix(1e9, 0))
	s.Change()
	d := s.Decide(Origin{}, FrontendKey{AddrPort: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: TCP})
	if e := d.Port.Endpoints; e[0].Uses() != "ejected: it does not answer" || e[1].Uses() != "used" || d.Port.Pools[0].Backends != 1 {
		t.Errorf("%+v", d.Port)
	}
	if len(d.Candidates) != 1 || d.Candidates[0].Backend != endpointAt(2) {
		t.Errorf("%+v", d.Candidates)
	}
}

// TestDetectionValues reports values that do not exist, names the Service and the annotation, and ignores them, in IPVS mode
// too.
func TestDetectionValues(t *testing.T) {
	for value, want := range map[string]string{"": "", "on": "on", "report": "report", "off": "bad", "On": "bad", "true": "bad"} {
		for _, ipvs := range []bool{false, true} {
			s := newSlowStarter(t, Config{IPVS: ipvs}, map[string]string{AnnotationOutliers: value})
			bad := want == "bad"
			s.endpoint(1, "a", "", true)
			problems := s.Change().Problems
			got, service := s.DetectionOf(FrontendKey{AddrPort: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: TCP}, endpointAt(1))
			if bad != (len(problems) == 1) || bad && got != "" || !bad && got != want || (got != "") != (service.Name == "web") {
				t.Errorf("%q, IPVS %v: %s of %s, problems %v", value, ipvs, got, service, problems)
			}
			for _, p := range problems {
				if p.Object != "Service default/web" || p.Field != "metadata.annotations[slipstream.io/outlier-detection]" || p.Service.Name != "web" {
					t.Errorf("%q: %v", value, p)
				}
			}
		}
	}
}

// TestEjectedZones: weights of zones count for the endpoints that are left, and the only endpoint that nearest takes stays.
func TestEjectedZones(t *testing.T) {
	for _, c := range []struct {
		annotation, value string
		want              map[int]float64
	}{
		{AnnotationLocalZone, "80", map[int]float64{2: 50, 3: 50}},
		{AnnotationScheduler, "nearest", map[int]float64{1: 100}},
	} {
		s := newSlowStarter(t, Config{}, map[string]string{AnnotationOutliers: "on", c.annotation: c.value})
		s.endpoint(1, "a", "", true)
		s.endpoint(2, "b", "", true)
		s.endpoint(3, "b", "", true)
		if err := s.apply(s.Full()); err != nil {
			t.Fatal(err)
		}
		s.Silent("default", Target{TCP, endpointAt(1)}, true)
		s.program()
		s.want(c.annotation, c.want)
	}
}
