// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"slices"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/cluster/oracle/upstream"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// spoiledSeed is of a cluster in which everything can be spoiled that spoils wants to.
const spoiledSeed = 3

// spoils are mistakes that a proxy could make, as changes of the cluster that it is
// given. Each returns how often it found something to change, and says by what kind of
// probe it is to be seen, and in which modes. What goes wrong before a backend hears of
// it is not looked for in all of them.
var spoils = []struct {
	name  string
	in    modeSet
	kind  Kind
	spoil func(*Cluster) int
}{
	{"a backend is missing", inNFTables | inIPVS, Reach, func(c *Cluster) (n int) {
		for _, s := range c.Slices {
			if len(s.Endpoints) > 1 {
				s.Endpoints = s.Endpoints[:len(s.Endpoints)-1]
				n++
			}
		}
		return n
	}},
	{"endpoints that are not ready are used", inNFTables, Reach, eachEndpoint(func(e *discoveryv1.Endpoint) bool {
		ready := e.Conditions.Ready == nil || *e.Conditions.Ready
		e.Conditions = discoveryv1.EndpointConditions{}
		return !ready
	})},
	{"topology hints are ignored", inNFTables, Reach, eachEndpoint(func(e *discoveryv1.Endpoint) bool {
		had := e.Hints != nil
		e.Hints = nil
		return had
	})},
	{"everything is masqueraded", inNFTables | inLegacy | inIPVS, Reach, func(c *Cluster) int {
		c.Settings.MasqueradeAll = !c.Settings.MasqueradeAll
		return 1
	}},
	{"NodePorts are on the wrong addresses", inNFTables | inNFT, Reach, func(c *Cluster) int {
		c.Settings.NodePortAddresses = []string{"127.0.0.0/8", "::1/128"}
		return 1
	}},
	{"external traffic policy is ignored", inNFTables | inLegacy | inIPVS, Reach, eachService(func(svc *corev1.Service) bool {
		had := svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
		if had {
			svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
		}
		return had
	})},
	{"internal traffic policy is ignored", inNFTables, Reach, eachService(func(svc *corev1.Service) bool {
		had := svc.Spec.InternalTrafficPolicy != nil && *svc.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
		svc.Spec.InternalTrafficPolicy = nil
		return had
	})},
	{"source ranges are ignored", inNFTables | inNFT | inIPVS, Reach, eachService(func(svc *corev1.Service) bool {
		had := len(svc.Spec.LoadBalancerSourceRanges) > 0
		svc.Spec.LoadBalancerSourceRanges = nil
		return had
	})},
	{"session affinity is ignored", inNFTables | inLegacy, Stick, eachService(func(svc *corev1.Service) bool {
		had := svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP
		svc.Spec.SessionAffinity, svc.Spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
		return had
	})},
	{"a Service is missing", inNFTables | inNFT | inIPVS, Reach, func(c *Cluster) int {
		c.Services = c.Services[1:]
		return 1
	}},
	{"ranges of ClusterIPs are ignored", inNFTables, Reach, func(c *Cluster) int {
		n := len(c.ServiceCIDRs)
		c.ServiceCIDRs = nil
		return n
	}},
	{"health checks are on another port", inNFTables, Health, eachService(func(svc *corev1.Service) bool {
		had := svc.Spec.HealthCheckNodePort != 0
		if had {
			svc.Spec.HealthCheckNodePort ^= 1
		}
		return had
	})},
	{"NodePorts do not answer on loopback addresses", inLegacy | inNFT, Reach, func(c *Cluster) int {
		had := c.Settings.LocalhostNodePorts
		c.Settings.LocalhostNodePorts = false
		if had {
			return 1
		}
		return 0
	}},
}

// modeSet is a set of modes.
type modeSet int

const (
	inNFTables modeSet = 1 << iota
	inLegacy
	inNFT
	inIPVS
)

// has says whether a mode is in the set.
func (k modeSet) has(m mode) bool {
	return k&map[string]modeSet{"nftables": inNFTables, "iptables-legacy": inLegacy, "iptables-nft": inNFT, "ipvs": inIPVS}[m.name] != 0
}

func eachService(spoil func(*corev1.Service) bool) func(*Cluster) int {
	return func(c *Cluster) (n int) {
		for _, svc := range c.Services {
			if spoil(svc) {
				n++
			}
		}
		return n
	}
}

func eachEndpoint(spoil func(*discoveryv1.Endpoint) bool) func(*Cluster) int {
	return func(c *Cluster) (n int) {
		for _, s := range c.Slices {
			for i := range s.Endpoints {
				if spoil(&s.Endpoints[i]) {
					n++
				}
			}
		}
		return n
	}
}

// TestSpoiledIsSeen gives Slipstream other objects than kube-proxy, and checks that the
// comparison fails.
func TestSpoiledIsSeen(t *testing.T) {
	control := controlPlane(t)
	selected, err := selectModes(*modes)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range selected {
		t.Run(m.name, func(t *testing.T) {
			kerneltest.Require(t, m.needs...)
			c := write(t, control, spoiledSeed, m)
			c.Settings.Firewall = false // it would hide some of it
			oracle, err := perform(t, kubeProxy{upstream.Current, control, t.TempDir(), t.Logf}, c)
			if err != nil {
				t.Fatal(err)
			}
			probes := Plan(c)
			outcomes := oracle.observer.Look(t.Context(), probes, Fast) // once for all
			for _, s := range spoils {
				if s.in.has(m) {
					t.Run(s.name, func(t *testing.T) { wantSeen(t, c, oracle, probes, outcomes, s.kind, s.spoil) })
				}
			}
		})
	}
}

// wantSeen checks that a kind of probes finds a mistake. The outcomes are the oracle's.
func wantSeen(t *testing.T, c *Cluster, oracle *performance, probes []Probe, outcomes []Outcome, kind Kind, spoil func(*Cluster) int) {
	changed := 0
	spoiled, err := perform(t, slipstream{func(c *Cluster) { changed = spoil(c) }}, c)
	if err != nil {
		t.Fatal(err)
	}
	if changed == 0 {
		t.Fatalf("the cluster of seed %d has nothing of the kind; take another", c.Seed)
	}
	var looked []Probe
	var first [2][]Outcome
	for i, p := range probes {
		if p.Kind == kind {
			looked, first[0] = append(looked, p), append(first[0], outcomes[i])
		}
	}
	first[1] = spoiled.observer.Look(t.Context(), looked, Fast)
	differ, of := differing(looked, first)
	var some []Probe
	for i, p := range differ {
		d := difference{probe: p, outcomes: [2]Outcome{of[0][i], of[1][i]}}
		if knownDifference(c, d) == "" {
			some = append(some, p)
		}
	}
	// With so many clients at once, iptables forgets some of kube-proxy's, too, so that few
	// probes differ, or none, and those by chance. One Service after the other, they do.
	if kind == Stick {
		some = append(some, looked[:min(len(looked), 8)]...)
	}
	// A few of them at a time will do to see that it was not by chance.
	const few, most = 20, 100
	var found []difference
	for part := range slices.Chunk(some[:min(len(some), most)], few) {
		if found = compareProbes(t, c, [2]*performance{oracle, spoiled}, part, 2, Careful); len(found) > 0 {
			break
		}
	}
	if len(found) == 0 {
		t.Fatalf("is not noticed (%d probes differed at first)", len(differ))
	}
	t.Logf("seen: %v", found[0])
}
