// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"slices"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

// TestFleet measures small fleets and checks that all numbers exist, of each node and change.
func TestFleet(t *testing.T) {
	kerneltest.Require(t, kerneltest.Root, kerneltest.NFTables, kerneltest.NFTBinary)
	tidy(t)
	const proxies, changes, churn = 3, 4, 6
	r, err := run(t, Fleet, "--proxies", "3", "--services", "40", "--endpoints", "3", "--changes", "4", "--churn", "3", "--churn-time", "2s", "--quiet", "0s")
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Subjects) != 2 || r.LoadAfter == "" {
		t.Fatalf("%d subjects, load after %q", len(r.Subjects), r.LoadAfter)
	}
	for name, want := range map[string]int{
		fleetStart.Name: 1, fleetChange.Name: proxies * changes, fleetLast.Name: changes, fleetChurn.Name: proxies * churn, fleetCPU.Name: 1, fleetRest.Name: 1,
		churnLast.Name: churn, churnCPU.Name: 1, churnSent.Name: 1, churnShare.Name: 1, churnRate.Name: 1, serverChurn.Name: 1, fleetMemory.Name: proxies, serverCPU.Name: 1, serverRest.Name: 1, serverMemory.Name: 1, serverSent.Name: 1,
	} {
		s := r.Find(name)
		if s == nil {
			t.Errorf("no %s", name)
			continue
		}
		for i, o := range s.Outcomes {
			// Processor times are the difference to those at rest, of few changes, and can be 0.
			rested := slices.Contains([]string{fleetCPU.Name, serverCPU.Name, serverChurn.Name}, name)
			if len(o.Values) != want || o.Highest < 0 || o.Highest == 0 && !rested {
				t.Errorf("%s of %s: %v, want %d", name, r.Subjects[i].Name, o.Values, want)
			}
		}
	}
	if changes, last := r.Find(fleetChange.Name), r.Find(fleetLast.Name); changes != nil && last != nil && changes.Outcomes[0].Highest != last.Outcomes[0].Highest {
		t.Errorf("the last node took %v, the longest time is %v", last.Outcomes[0].Highest, changes.Outcomes[0].Highest)
	}
}

// TestFleetRollout rolls a Service of two slices, which are much larger than those of other Services.
func TestFleetRollout(t *testing.T) {
	kerneltest.Require(t, kerneltest.Root, kerneltest.NFTables, kerneltest.NFTBinary)
	tidy(t)
	r, err := run(t, Fleet, "--proxies", "2", "--services", "40", "--endpoints", "3", "--changes", "0", "--rollout", "200", "--rate", "20", "--churn", "5", "--churn-time", "2s", "--quiet", "0s")
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range r.Subjects {
		if n := len(r.Find(fleetChurn.Name).Outcomes[i].Values); s.Failed != "" || n != 2*50 {
			t.Errorf("%s: %d latencies, failed %q", s.Name, n, s.Failed)
		}
		// 40 of 50 changes are of slices of 100 endpoints, which are compressed for kube-proxy.
		if got := r.Find(churnSent.Name).Outcomes[i].Median; got < 2500 || s.Name == "slipstream" && got < 7500 {
			t.Errorf("%s: %v bytes for a change", s.Name, got)
		}
	}
	if _, err := parse(Fleet, "--rollout", "200"); err == nil || !strings.Contains(err.Error(), "--rollout 200 --rate 0") {
		t.Errorf("without a rate: %v", err)
	}
}

// TestHasSynced reads the metrics of both proxies, the second of which distinguishes families.
func TestHasSynced(t *testing.T) {
	const name = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"
	for text, want := range map[string]bool{
		"":                                  false,
		name + "{ip_family=\"IPv4\"} 1.7e9": true,
		name + "{ip_family=\"IPv4\"} 1.7e9\n" + name + "{ip_family=\"IPv6\"} 0":     false,
		name + "{ip_family=\"IPv4\"} 1.7e9\n" + name + "{ip_family=\"IPv6\"} 1.7e9": true,
	} {
		if got := hasSynced(text + "\n"); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
}
