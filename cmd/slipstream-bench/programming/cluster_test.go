// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/internal/source/manifest"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// An API server would have taken every object that is made.
func TestObjectsAreValid(t *testing.T) {
	for _, family := range Families {
		t.Run(family, func(t *testing.T) {
			c := newCluster(&SyncOptions{Services: 7, Endpoints: 250, Family: family, Seed: 1})
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
			for e := range c.events() {
				check(e)
			}
			if want := 7 * (1 + 3*len(c.families)); seen != want {
				t.Errorf("%d objects, want %d", seen, want)
			}
			for _, change := range changesOf(c) {
				for range 20 {
					for _, e := range change.make() {
						check(e)
					}
				}
			}
		})
	}
}

func errorsOf[E error](all []E) (out []error) {
	for _, e := range all {
		out = append(out, e)
	}
	return out
}

type change struct {
	name string
	make func() []source.Event
}

func changesOf(c *cluster) []change {
	return []change{
		{endpointReplaced, c.replaceEndpoint},
		{endpointAdded, c.addEndpoint},
		{endpointRemoved, c.removeEndpoint},
		{serviceAdded, c.addService},
		{serviceRemoved, c.removeService},
	}
}

// What the events say, all at first and each change after it, is what the
// cluster says that the content should be.
func TestEventsLeadToContent(t *testing.T) {
	for _, o := range []SyncOptions{
		{Services: 20, Endpoints: 3, Family: FamilyDual},
		{Services: 3, Endpoints: 205, Family: FamilyIPv6},
		{Services: 1, Endpoints: 1, Family: FamilyIPv4},
		{Services: 20, Endpoints: 3, Family: FamilyDual, External: 30},
	} {
		t.Run(fmt.Sprintf("%dx%d", o.Services, o.Endpoints), func(t *testing.T) {
			c := newCluster(&o)
			s := &slipstream{cluster: c, state: desired.New(c.stateConfig())}
			addresses := []netip.Addr{ipv4.node, ipv6.node}
			s.state.SetNodeAddresses(addresses)
			check := func(what string) {
				t.Helper()
				full := s.state.Full()
				if err := problem(full); err != nil {
					t.Fatal(err)
				}
				want := c.content()
				if d := dataplane.Difference(want, dataplane.ContentOf(full)); d != "" {
					t.Fatalf("after %s:\n%s", what, d)
				}
			}
			for e := range c.events() {
				s.take(e)
			}
			check("all events")
			if got, want := len(c.content().Frontends), (o.Services+2*(o.Services*o.External/100))*len(c.families); got != want {
				t.Fatalf("%d frontends, want %d", got, want)
			}
			for range 30 {
				for _, change := range changesOf(c) {
					before := c.content().Lines()
					if change.name == endpointRemoved && c.podCount() == 0 || change.name == serviceRemoved && c.live() == 1 {
						continue
					}
					for _, e := range change.make() {
						s.take(e)
					}
					if slices.Equal(before, c.content().Lines()) {
						t.Fatalf("%s changed nothing", change.name)
					}
					check(change.name)
				}
			}
			again := desired.New(c.stateConfig())
			s.state = again
			s.state.SetNodeAddresses(addresses)
			for e := range c.events() {
				s.take(e)
			}
			check("all events of the changed cluster")
		})
	}
}

func (c *cluster) podCount() (n int) {
	for i := range c.each() {
		for _, one := range c.pods(i) {
			n += len(one)
		}
	}
	return n
}

func TestSeedDecides(t *testing.T) {
	choices := func(seed uint64) (all []int) {
		c := newCluster(&SyncOptions{Services: 1000, Endpoints: 10, Family: FamilyIPv4, Seed: seed})
		for range 20 {
			all = append(all, c.random())
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
		{ipv4.clusterIP(0).String(), "172.16.0.1"},
		{ipv4.clusterIP(maxServices - 1).String(), "172.31.66.64"},
		{ipv4.podIP(255).String(), "10.0.1.0"},
		{ipv4.podIP(podIPs - 1).String(), "10.255.255.254"},
		{ipv4.podIP(podIPs).String(), "10.0.0.1"},
		{ipv6.clusterIP(65535).String(), "fd00:10:96::1:0"},
		{ipv6.podIP(0).String(), "fd00:10:244::1"},
	}
	for _, test := range tests {
		if test.got != test.want {
			t.Errorf("%s, want %s", test.got, test.want)
		}
	}
	for _, f := range []family{ipv4, ipv6} {
		if !f.services.Contains(f.clusterIP(maxServices-1)) || !f.pods.Contains(f.podIP(podIPs-1)) {
			t.Errorf("%s: the last address is outside of the range", f.name)
		}
	}
}
