// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"flag"
	"fmt"
	"slices"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/cluster/oracle/upstream"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

var (
	firstSeed = flag.Uint64("seed", 1, "the first cluster's seed; the next ones follow")
	clusters  = flag.Int("clusters", 12, "how many clusters to compare, in all modes together")
	modes     = flag.String("mode", "all", "nftables, iptables-legacy or iptables-nft (variants of the iptables commands) or ipvs, several of them, comma-separated, or all (but ipvs)")
	against   = flag.String("against", "slipstream", "what to compare kube-proxy with: slipstream or kube-proxy")
)

// TestOracle compares the two proxies on random clusters.
func TestOracle(t *testing.T) {
	control := controlPlane(t)
	oracle := kubeProxy{upstream.Current, control, t.TempDir(), t.Logf}
	subjects := [2]subject{oracle, slipstream{}}
	switch *against {
	case "slipstream":
	case "kube-proxy":
		subjects[1] = oracle
	default:
		t.Fatalf("-against: no such proxy: %q", *against)
	}
	selected, err := selectModes(*modes)
	if err != nil {
		t.Fatal(err)
	}
	next := *firstSeed
	for i, n := range share(*clusters, selected) {
		m, first := selected[i], next
		next += uint64(n)
		t.Run(m.name, func(t *testing.T) {
			kerneltest.Require(t, m.needs...)
			for seed := first; seed < next; seed++ {
				t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
					c := write(t, control, seed, m)
					if found := compare(t, c, performBoth(t, subjects, c)); len(found) > 0 {
						report(t, c, found)
					}
				})
			}
		})
	}
}

// TestReleases compares kube-proxy with the one of the previous release on a random cluster
// in each mode, so that a change of behavior is seen. A new one is a new section of
// docs/services.md, and is left out here.
func TestReleases(t *testing.T) {
	control := controlPlane(t)
	var subjects [2]subject
	for i, r := range []upstream.Release{upstream.Previous, upstream.Current} {
		subjects[i] = kubeProxy{r, control, t.TempDir(), t.Logf}
	}
	selected, err := selectModes(*modes)
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range selected {
		t.Run(m.name, func(t *testing.T) {
			kerneltest.Require(t, m.needs...)
			c := write(t, control, *firstSeed+uint64(i), m)
			if slices.Contains(c.Settings.NodePortAddresses, "primary") {
				c.Settings.NodePortAddresses = []string{"primary"} // combinations are new
			}
			if found := compare(t, c, performBoth(t, subjects, c)); len(found) > 0 {
				report(t, c, found)
			}
		})
	}
}

// controlPlane starts etcd and kube-apiserver for the time of the test.
func controlPlane(t *testing.T) *upstream.ControlPlane {
	kerneltest.Require(t, kerneltest.Root, kerneltest.NFTables)
	control, err := upstream.StartControlPlane(t.Context(), upstream.ControlPlaneOptions{
		Dir: t.TempDir(), ServiceCIDRs: ServiceCIDRs[:], Log: t.Logf,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := control.Close(); err != nil {
			t.Errorf("control plane: %v", err)
		}
	})
	return control
}

// write makes up a cluster, has the API server store it, and returns it as stored.
func write(t *testing.T, control *upstream.ControlPlane, seed uint64, m mode) *Cluster {
	t.Helper()
	c := m.cluster(seed)
	if err := c.Write(t.Context(), control.Client); err != nil {
		t.Fatal(err)
	}
	stored, err := ReadCluster(t.Context(), control.Client)
	if err != nil {
		t.Fatal(err)
	}
	stored.Seed, stored.Settings = c.Seed, c.Settings
	return stored
}
