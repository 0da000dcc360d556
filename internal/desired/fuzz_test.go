// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired/desiredtest"
)

// checkSequence runs a sequence of events and returns an error unless every
// change fits the content before it, and the end is what a fresh computation
// comes to.
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
	var w desiredtest.World
	s := New(config)
	kernel := newModel()
	for step := 1; c.More(); step++ {
		w.Step(c, s)
		if step%16 == 0 {
			if err := checkTold(s, kernel); err != nil {
				return err
			}
		}
		if c.Below(3) > 0 {
			continue // let some more events come together
		}
		if c.Below(8) == 0 { // as after a failure
			kernel = newModel()
			if err := kernel.apply(s.Full()); err != nil {
				return fmt.Errorf("full: %w", err)
			}
			if again := s.Change(); !again.Empty() {
				return fmt.Errorf("a change after the full content: %+v", again)
			}
			continue
		}
		if err := kernel.step(s); err != nil {
			return fmt.Errorf("change: %w", err)
		}
	}
	if err := kernel.step(s); err != nil {
		return fmt.Errorf("last change: %w", err)
	}
	again := s.Change()
	if !again.Empty() {
		return fmt.Errorf("a change without an event: %+v", again)
	}
	var seed [32]byte
	copy(seed[:], input)
	fresh := New(config)
	w.Tell(fresh, rand.New(rand.NewChaCha8(seed)))
	counted := s.NoLocalEndpoints()
	for what, other := range map[string]*State{"the state's own full content": s, "a fresh computation": fresh} {
		full := newModel()
		if err := full.apply(other.Full()); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if got, want := kernel.String(), full.String(); got != want {
			return fmt.Errorf("%s differs; by changes:\n%s\n\nfull:\n%s", what, got, want)
		}
	}
	if recounted := fresh.NoLocalEndpoints(); counted != recounted {
		return fmt.Errorf("no local endpoints: %+v, by changes: %+v", recounted, counted)
	}
	return checkResidue(s, &w)
}

// checkTold returns an error unless what a State says it has told is what the kernel
// has, whatever has come since.
func checkTold(s *State, kernel *model) error {
	told := newModel()
	if err := told.apply(&Update{Change: *s.Told()}); err != nil {
		return fmt.Errorf("told: %w", err)
	}
	told.health = kernel.health
	if kernel.local == (LocalTraffic{}) { // nothing has been told yet
		told.local = kernel.local
	}
	if got, want := told.String(), kernel.String(); got != want {
		return fmt.Errorf("told is\n%s\n\nby changes:\n%s", got, want)
	}
	return nil
}

// checkResidue returns an error when a State remembers more than it has to: of
// endpoints that are gone, and of anything once all objects are.
func checkResidue(s *State, w *desiredtest.World) error {
	for _, p := range s.pools {
		if p == nil {
			continue
		}
		for _, e := range p.entries {
			if e.slices == 0 {
				return fmt.Errorf("pool %s remembers %s, which is in no slice", p.port.name, e.backend)
			}
		}
	}
	w.Clear(s)
	s.Change()
	if n := s.NoLocalEndpoints(); n != (NoLocalEndpoints{}) {
		return fmt.Errorf("ports without local endpoints after all objects are gone: %+v", n)
	}
	if n := len(s.nodePortServices) + len(s.restricted) + len(s.serviceCIDRs.told) + len(s.dirtyHealths); n != 0 {
		return fmt.Errorf("%d lists of Services are not empty after all objects are gone", n)
	}
	if n := len(s.services) + len(s.slices) + len(s.frontends) + len(s.clusterIPs.all) + len(s.hairpins.all) + len(s.pools) - len(s.freePools) + s.proxied; n != 0 {
		return fmt.Errorf("%d things are remembered after all objects are gone", n)
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

// TestRandomSequences is the fuzzer's property on long random inputs, which a
// coverage-guided fuzzer with its short ones seldom comes to.
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
