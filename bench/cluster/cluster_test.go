// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/internal/source/manifest"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// An API server would have taken every object that is made.
func TestObjectsAreValid(t *testing.T) {
	c := New(Config{Services: 7, Endpoints: 250, Seed: 1})
	seen := 0
	check := func(e source.Event) {
		t.Helper()
		seen++
		if e.Type == source.Delete {
			return
		}
		if faults := manifest.Validate(e.Object); len(faults) > 0 {
			t.Fatalf("%s: %v", e, faults)
		}
		if s, ok := e.Object.(*discoveryv1.EndpointSlice); ok && len(s.Endpoints) > 100 {
			t.Fatalf("%s has %d endpoints", e, len(s.Endpoints))
		}
	}
	for e := range c.Events() {
		check(e)
	}
	if want := 7 * (1 + 3); seen != want {
		t.Errorf("%d objects, want %d", seen, want)
	}
	for _, change := range changesOf(c) {
		for range 20 {
			for _, e := range change.make() {
				check(e)
			}
		}
	}
}

const (
	endpointRemoved = "endpoint removed"
	serviceRemoved  = "Service removed"
)

type change struct {
	name string
	make func() []source.Event
}

func changesOf(c *Cluster) []change {
	return []change{
		{"endpoint replaced", c.ReplaceEndpoint},
		{"endpoint added", c.AddEndpoint},
		{endpointRemoved, c.RemoveEndpoint},
		{"Service added", c.AddService},
		{serviceRemoved, c.RemoveService},
	}
}

// What the events say, all at first and each change after it, is what the
// cluster says that the content should be.
func TestEventsLeadToContent(t *testing.T) {
	for _, o := range []Config{
		{Services: 20, Endpoints: 3},
		{Services: 3, Endpoints: 205},
		{Services: 1, Endpoints: 1},
		{Services: 20, Endpoints: 3, External: 30},
	} {
		t.Run(fmt.Sprintf("%dx%d, %d %% external", o.Services, o.Endpoints, o.External), func(t *testing.T) {
			c := New(o)
			state := newState()
			check := func(what string) {
				t.Helper()
				full := state.Full()
				if len(full.Problems) > 0 {
					t.Fatal(full.Problems[0])
				}
				want := c.Content()
				if d := dataplane.Difference(want, dataplane.ContentOf(&full.Change)); d != "" {
					t.Fatalf("after %s:\n%s", what, d)
				}
			}
			for e := range c.Events() {
				proxy.ApplyEvent(state, e)
			}
			check("all events")
			if got, want := len(c.Content().Frontends), o.Services+2*(o.Services*o.External/100); got != want {
				t.Fatalf("%d frontends, want %d", got, want)
			}
			for range 30 {
				for _, change := range changesOf(c) {
					before := c.Content().Lines()
					if change.name == endpointRemoved && c.podCount() == 0 || change.name == serviceRemoved && c.Live() == 1 {
						continue
					}
					for _, e := range change.make() {
						proxy.ApplyEvent(state, e)
					}
					if slices.Equal(before, c.Content().Lines()) {
						t.Fatalf("%s changed nothing", change.name)
					}
					check(change.name)
				}
			}
			state = newState()
			for e := range c.Events() {
				proxy.ApplyEvent(state, e)
			}
			check("all events of the changed cluster")
		})
	}
}

func (c *Cluster) podCount() (n int) {
	for i := range c.Each() {
		n += len(c.Pods(i))
	}
	return n
}

func newState() *desired.State {
	state := desired.New(desired.Config{NodeName: LocalNode, DetectLocal: desired.DetectLocal{CIDRs: []netip.Prefix{Pods}}})
	state.SetNodeAddresses([]netip.Addr{Node})
	return state
}

// A removed Service leaves no EndpointSlice: a new one of its name has no endpoints.
func TestRemoveServiceRemovesSlices(t *testing.T) {
	c := New(Config{Services: 1, Endpoints: 250})
	state, svc := newState(), c.Service(0)
	for e := range c.Events() {
		proxy.ApplyEvent(state, e)
	}
	for _, e := range append(c.RemoveService(), source.Event{Type: source.Set, Object: svc}) {
		proxy.ApplyEvent(state, e)
	}
	left := dataplane.ContentOf(&state.Full().Change).Frontends
	if len(left) != 1 {
		t.Errorf("%d frontends, want one", len(left))
	}
	for key, target := range left {
		if len(target.Backends) > 0 {
			t.Errorf("%v has %d backends", key, len(target.Backends))
		}
	}
}

// Some Services have a single endpoint, and only those.
func TestSingles(t *testing.T) {
	c := New(Config{Services: 300, Endpoints: 250, Singles: 16, Namespace: "default", Seed: 7})
	seen := map[string]bool{}
	slices, endpoints := 0, 0
	for i := range c.Each() {
		if got, want := c.Service(i).Spec.ClusterIP, ClusterIP(i).String(); got != want || seen[got] {
			t.Errorf("Service %d: %s, want %s, seen before: %v", i, got, want, seen[got])
		}
		seen[ClusterIP(i).String()] = true
		for _, s := range c.Slices(i) {
			slices++
			for _, e := range s.Endpoints {
				endpoints++
				if seen[e.Addresses[0]] {
					t.Errorf("%s: %s was seen before", s.Name, e.Addresses[0])
				}
				seen[e.Addresses[0]] = true
			}
		}
	}
	if want := (300-16)*3 + 16; slices != want || len(c.Single) != 16 || len(c.Others) != 300-16 {
		t.Errorf("%d slices, want %d; %d and %d Services", slices, want, len(c.Single), len(c.Others))
	}
	if want := (300-16)*250 + 16; endpoints != want {
		t.Errorf("%d endpoints, want %d", endpoints, want)
	}
	i := c.Single[3]
	pod := c.Replace(i, 0, 0)
	if got := c.Slices(i)[0].Endpoints[0].Addresses[0]; got != PodIP(pod).String() || seen[got] {
		t.Errorf("replaced endpoint: %s, seen before: %v", got, seen[got])
	}
}

func TestSeedDecides(t *testing.T) {
	choices := func(seed uint64) (all []int) {
		c := New(Config{Services: 1000, Endpoints: 10, Seed: seed})
		for range 20 {
			all = append(all, c.randomService())
		}
		return all
	}
	if !slices.Equal(choices(1), choices(1)) {
		t.Error("the same seed led to other choices")
	}
	if slices.Equal(choices(1), choices(2)) {
		t.Error("another seed led to the same choices")
	}
}

func TestAddresses(t *testing.T) {
	tests := []struct{ got, want string }{
		{ClusterIP(0).String(), "172.16.1.0"},
		{ClusterIP(MaxServices - 1).String(), "172.31.67.63"},
		{PodIP(255).String(), "10.0.1.0"},
		{PodIP(podIPs - 1).String(), "10.255.255.254"},
		{PodIP(podIPs).String(), "10.0.0.1"},
	}
	for _, test := range tests {
		if test.got != test.want {
			t.Errorf("%s, want %s", test.got, test.want)
		}
	}
	if !Services.Contains(ClusterIP(MaxServices-1)) || !Pods.Contains(PodIP(podIPs-1)) {
		t.Error("the last address is outside of the range")
	}
}

// Content is the content that the kernel should have for the cluster as it is. It follows from the
// numbers alone: none of the measured code takes part.
func (c *Cluster) Content() *dataplane.Content {
	out := dataplane.NewContent()
	out.Sets[desired.NodeAddresses] = map[desired.Member]bool{desired.Address(Node): true}
	for i := range c.Each() {
		var t dataplane.Target
		var local []desired.Backend
		for _, pod := range c.Pods(i) {
			b := desired.NewBackend(PodAddr(pod))
			t.Backends = append(t.Backends, b)
			if nodeOf(pod, c.nodes) == LocalNode {
				out.Sets[desired.HairpinIPs][desired.Address(PodIP(pod))] = true
				local = append(local, b)
			}
		}
		slices.SortFunc(t.Backends, desired.Backend.Compare)
		slices.SortFunc(local, desired.Backend.Compare)
		if before, is := c.external(i); is {
			t.Affinity = affinitySeconds
			outside := t
			outside.External = true
			outside.FromOutside = &dataplane.Choice{Backends: local}
			if len(local) == 0 && len(t.Backends) > 0 {
				outside.FromOutside.IfEmpty = desired.Drop
			}
			out.Frontends[key(Node, nodePort(before)).NodePort()] = outside
			outside.Sources = sources
			out.Frontends[key(loadBalancerIP(before), Port)] = outside
		}
		ip := ClusterIP(i)
		out.Sets[desired.ClusterIPs][desired.Address(ip)] = true
		out.Frontends[key(ip, Port)] = t
	}
	return out
}

func key(ip netip.Addr, port uint16) desired.FrontendKey {
	return desired.FrontendKey{AddrPort: netip.AddrPortFrom(ip, port), Protocol: desired.TCP}
}
