// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
)

// TestEnough draws backends as kernels do. With the number of draws that enough says,
// none may be left out in a thousand tries; with a fifth of it, some are.
func TestEnough(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	missed := func(k, draws int) (n int) {
		for range 1000 {
			seen := map[int]bool{}
			for range draws {
				seen[r.IntN(k)] = true
			}
			if len(seen) < k {
				n++
			}
		}
		return n
	}
	for k := 2; k <= 8; k++ {
		if n := missed(k, enough(k)); n > 0 {
			t.Errorf("%d backends: missed in %d of 1000", k, n)
		}
		if n := missed(k, enough(k)/5); n == 0 {
			t.Errorf("%d backends: a fifth would be enough", k)
		}
	}
	if enough(0) == 0 || enough(1) == 0 {
		t.Error("nothing is enough")
	}
}

func TestOutcome(t *testing.T) {
	a := tally{{server: "c:8080", as: "n1"}: true, {failure: "refused"}: true, {server: "b:8080", as: "n1"}: true, {server: "c:8080", as: "a"}: true}
	if got, want := a.outcome("").String(), "c:8080 seen as a; b:8080 c:8080 seen as n1; refused"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	b := tally{{server: "c:8080", as: "n1"}: true}
	if a.outcome("").Equal(b.outcome("")) {
		t.Error("different outcomes are equal")
	}
}

// TestPlan checks that each address of each Service port is observed.
func TestPlan(t *testing.T) {
	for seed := range uint64(20) {
		c := RandomCluster(seed)
		probes := Plan(c)
		for _, svc := range c.Services {
			for _, port := range svc.Spec.Ports {
				for _, at := range placesOf(svc, port) {
					if svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP && slices.Equal(at.from, onNode) {
						continue // see sticky
					}
					if !slices.ContainsFunc(probes, func(p Probe) bool {
						return p.To == at.to && p.Protocol == lab.Protocol(port.Protocol) && p.Service == svc.Name && p.Namespace == svc.Namespace
					}) {
						t.Errorf("seed %d: %s %v is not observed", seed, at.what, at.to)
					}
				}
			}
		}
		for _, p := range probes {
			if p.To.Port() == 0 || !p.To.IsValid() {
				t.Errorf("seed %d: %v", seed, p)
			}
		}
	}
}

// TestAffinityIsNotDisturbed checks that vantages with a single address observe only one place
// of a Service port with session affinity.
func TestAffinityIsNotDisturbed(t *testing.T) {
	looked := 0
	for seed := range uint64(20) {
		c := RandomCluster(seed)
		type key struct {
			service, from, port string
			family              int
		}
		seen := map[key]int{}
		for _, p := range Plan(c) {
			svc := c.Named(p.Namespace, p.Service)
			if svc == nil || svc.Spec.SessionAffinity != corev1.ServiceAffinityClientIP || p.Kind != Stick {
				continue
			}
			if p.From == PodEndpoint || p.From == OnNode {
				port := p.What[slices.Index([]byte(p.What), ':'):]
				seen[key{p.Namespace + p.Service, p.From, port, familyOf(p.To.Addr())}]++
				looked++
			}
		}
		for k, n := range seen {
			if n > 1 {
				t.Errorf("seed %d: %+v is looked at %d times", seed, k, n)
			}
		}
	}
	if looked == 0 {
		t.Error("nothing to look at")
	}
}
