// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired/desiredtest"
	"k8s.io/apimachinery/pkg/types"
)

// checkSequence runs a sequence of events. It returns an error unless every change
// fits the content before it and the final content equals that of a fresh State.
func checkSequence(input []byte) error {
	c := desiredtest.NewChoices(input)
	config := Config{
		NodeName:    desiredtest.ThisNode,
		NodePorts:   NodePortAddresses{Primary: c.Below(2) == 1},
		DetectLocal: DetectLocal{Mode: DetectLocalMode(c.Below(2))},
	}
	if c.Below(2) == 1 {
		config.NodePorts.CIDRs = []netip.Prefix{netip.MustParsePrefix("192.168.0.0/24")}
	}
	config.IPVS = c.Below(2) == 1
	for f := range config.LoopbackNodePorts {
		config.LoopbackNodePorts[f] = LoopbackNodePorts(c.Below(3))
	}
	if c.Below(3) == 0 { // budgets that many meet
		config.NamespaceSlots, config.NamespaceElements = 1+c.Below(9000), 1+c.Below(60)
	}
	if c.Below(2) == 0 {
		config.NamespaceChange = 1 + c.Below(20)
	}
	if c.Below(2) == 0 {
		config.Scheduler = func(text string, weighted bool) (string, error) { return fmt.Sprint(text, weighted), nil }
	}
	var objects desiredtest.Objects
	s := New(config)
	kernel, flows := newModel(), newModelFlows()
	now := time.Unix(0, 0)
	for step := 1; c.More(); step++ {
		objects.Step(c, s)
		if now = now.Add(time.Duration(c.Below(10)) * time.Second); step > 1 {
			s.Advance(now)
		}
		if p := c.Below(8); p < len(s.pools) && s.pools[p] != nil && len(s.pools[p].of.entries) > 0 {
			s.Silent(s.pools[p].of.port.service.name.Namespace, Target{s.pools[p].of.port.protocol, s.pools[p].of.entries[0].backend}, c.Below(2) == 1)
		}
		if err := checkEjected(s); err != nil {
			return err
		}
		if step%16 == 0 {
			if err := checkReported(s, kernel); err != nil {
				return err
			}
		}
		if c.Below(3) > 0 {
			continue // so that a change covers several events
		}
		if c.Below(8) == 0 { // as after a failure
			flows.pending = s.Change().Flows
			if c.Below(2) == 0 {
				objects.Step(c, s)
			}
			kernel = newModel()
			full := s.Full()
			err := kernel.apply(full)
			if err == nil {
				err = flows.check(s, kernel, full)
			}
			if err != nil {
				return fmt.Errorf("full: %w", err)
			}
			if again := s.Change(); !again.Empty() {
				return fmt.Errorf("a change after the full content: %+v", again)
			}
			continue
		}
		if err := kernel.step(s, flows); err != nil {
			return fmt.Errorf("change: %w", err)
		}
	}
	for range 2 { // the second time, endpoints are warm, as in a fresh State
		if err := kernel.step(s, flows); err != nil {
			return fmt.Errorf("last change: %w", err)
		}
		for s.Pending() {
			if err := kernel.step(s, flows); err != nil {
				return fmt.Errorf("postponed: %w", err)
			}
		}
		now = now.Add(2 * time.Hour)
		s.Advance(now)
		for namespace, silent := range s.silent {
			for b := range silent {
				s.Silent(namespace, b, false)
			}
		}
	}
	if s.Warming() {
		return fmt.Errorf("endpoints do not get warm: %v", s.warming)
	}
	again := s.Change()
	if !again.Empty() {
		return fmt.Errorf("a change without an event: %+v", again)
	}
	if err := checkViews(s); err != nil {
		return err
	}
	var seed [32]byte
	copy(seed[:], input)
	fresh := New(config)
	objects.SetAll(fresh, rand.New(rand.NewChaCha8(seed)))
	byChanges := s.NoLocalEndpoints()
	for what, other := range map[string]*State{"the state's own full content": s, "a fresh computation": fresh} {
		full := newModel()
		if err := full.apply(other.Full()); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if got, want := kernel.String(), full.String(); got != want {
			return fmt.Errorf("%s differs; by changes:\n%s\n\nfull:\n%s", what, got, want)
		}
	}
	if fromScratch := fresh.NoLocalEndpoints(); byChanges != fromScratch {
		return fmt.Errorf("no local endpoints: %+v, by changes: %+v", fromScratch, byChanges)
	}
	for name, other := range map[string]*State{"by changes": s, "fresh": fresh} {
		if counted, is := fmt.Sprint(other.contested), fmt.Sprint(contestedOf(other)); counted != is {
			return fmt.Errorf("contested frontends %s: counted %s, are %s", name, counted, is)
		}
	}
	return checkResidue(s)
}

// checkEjected returns an error if a pool leaves out more than half of the endpoints, or one of a Service that does not have that.
func checkEjected(s *State) error {
	for _, p := range s.pools {
		if p == nil || len(p.ejected) == 0 || p.of.dirty {
			continue
		}
		left := p.backends()
		if len(p.ejected) > left || p.of.port.service.spec.detection != EjectOutliers || p.of.port.protocol == SCTP {
			return fmt.Errorf("pool %s with detection %s leaves out %d endpoints and has %d", p.of.port.name, p.of.port.service.spec.detection, len(p.ejected), left)
		}
		for b := range p.ejected {
			if i := p.of.find(b); i < 0 || p.of.entries[i].flags&p.kind.flag() != 0 || s.silent[p.of.port.service.name.Namespace][Target{p.of.port.protocol, b}] == 0 {
				return fmt.Errorf("pool %s leaves out %s, which it has, or which answers", p.of.port.name, b)
			}
		}
	}
	return nil
}

// contestedOf counts the contested frontends from nothing.
func contestedOf(s *State) map[types.NamespacedName]int {
	all := map[types.NamespacedName]int{}
	overridden := map[*frontend]*frontend{}
	for _, f := range s.frontends {
		for _, c := range f.claims {
			if name := c.port.service.name; name != f.claims[0].port.service.name {
				all[name]++
			}
			if on := f.key.NodePort(); s.frontends[on] != nil && slices.Contains(s.nodePortAddrs, f.key.Addr()) {
				overridden[f] = s.frontends[on]
			}
		}
	}
	for f, nodePort := range overridden {
		if len(nodePort.claims) == 0 {
			continue
		}
		winner, loser := f.claims[0].port.service.name, nodePort.claims[0].port.service.name
		if f.claims[0].kind == ExternalIP {
			winner, loser = loser, winner
		}
		if winner != loser {
			all[loser]++
		}
	}
	return all
}

// checkReported returns an error unless State.Reported equals the kernel's content,
// whatever events there were since the last change.
func checkReported(s *State, kernel *model) error {
	reported := newModel()
	if err := reported.apply(&Update{Change: *s.Reported()}); err != nil {
		return fmt.Errorf("reported content: %w", err)
	}
	reported.health, reported.relays = kernel.health, kernel.relays
	if kernel.local == (LocalTraffic{}) { // nothing has been reported yet
		reported.local = kernel.local
	}
	if got, want := reported.String(), kernel.String(); got != want {
		return fmt.Errorf("reported content:\n%s\n\nby changes:\n%s", got, want)
	}
	return nil
}

// checkResidue returns an error if a State retains removed endpoints, or anything after
// all objects are deleted.
func checkResidue(s *State) error {
	for _, p := range s.pools {
		if p == nil {
			continue
		}
		for _, e := range p.of.entries {
			if e.listed == 0 {
				return fmt.Errorf("pool %s retains %s, which is in no slice", p.of.port.name, e.backend)
			}
		}
	}
	for i := range 10 {
		s.DeleteService("ns", fmt.Sprint("svc", i))
		s.DeleteEndpointSlice("ns", fmt.Sprint("slice", i))
		s.DeleteServiceCIDR(fmt.Sprint("cidr", i))
		s.DeletePod("ns", fmt.Sprint("pod", i))
	}
	s.DeleteNamespace("ns")
	s.DeleteNode("there")
	for s.Change(); s.Pending(); {
		s.Change()
	}
	if n := s.NoLocalEndpoints(); n != (NoLocalEndpoints{}) {
		return fmt.Errorf("ports without local endpoints after all objects are deleted: %+v", n)
	}
	if n := len(s.serviceCIDRs) + len(s.dirtyHealths); n != 0 {
		return fmt.Errorf("%d lists of Services are not empty after all objects are deleted", n)
	}
	for set := range Sets {
		if n := len(s.sets[set].all); n != 0 && set != OwnIPs && set != NodeAddresses {
			return fmt.Errorf("%d members of the set %q are retained after all objects are deleted", n, set)
		}
	}
	if n := len(s.following) + len(s.moves) + len(s.warming) + len(s.detecting) + len(s.limited) + len(s.told) + len(s.contested) + len(s.services) + len(s.slices) + len(s.frontends) + len(s.otherNodes) + len(s.balancers.frontends) + len(s.balancers.others) + len(s.balancers.placed) + len(s.optOuts.pods) + len(s.optOuts.namespaces) + len(s.pools) - len(s.freePools) + s.proxied; n != 0 {
		return fmt.Errorf("%d entries are retained after all objects are deleted", n)
	}
	return nil
}

func FuzzEvents(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		f.Add(desiredtest.RandomInput(r.Uint64(), 1<<r.IntN(12)))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		if err := checkSequence(input); err != nil {
			t.Fatal(err)
		}
	})
}

// TestRandomSequences checks the property of FuzzEvents on long random inputs, which the
// coverage-guided fuzzer rarely generates.
func TestRandomSequences(t *testing.T) {
	n := 300
	if testing.Short() {
		n = 30
	}
	for i := range n {
		seed := uint64(time.Now().UnixNano()) + uint64(i)
		if err := checkSequence(desiredtest.RandomInput(seed, 20_000)); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}
