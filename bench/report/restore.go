// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/bench"
)

const kep3453 = "https://github.com/kubernetes/enhancements/tree/master/keps/sig-network/3453-minimize-iptables-restore"

var restorePart = &part{
	name:  "restore",
	title: "Partial restores, latency under churn, and a fleet (KEP-3453)",
	about: `On a node of a large cluster, endpoints change all the time. Here they are replaced at a constant rate while
single changes are measured from the trigger time in the EndpointSlice's annotation until a connection reaches the new endpoint.
Proxies have the configuration that kubeadm writes, with at least one second between two syncs; Slipstream's nftables mode
waits only when changes follow each other. Means of syncs, and sizes of iptables' restores, are the proxies' own metrics.
Then a failure is provoked. A partial restore of kube-proxy has the rules of all frontends, so that it fails while one of them
leads to a chain that is gone; the full restore follows after syncPeriod, 30 s. One of Slipstream has only the chains that
change, and none fails: its look for changes by others, every half second, finds the damage.
In a fleet, many proxies of one kind run at once, each on a node of its own, with one API server. The time is from the trigger
time until the kernel of each node reports the transaction. All of them and the API server share the processors of this machine,
so that a fleet's latency is mostly the processor time of all its proxies together.`,
	steps: func(fast bool) []step {
		services, flags, estimate := 5_000, "--runs 4 --changes 3 --budget 4s --bursts 1 --burst 100 --churn 25 --churn-time 12s --failures 1", 750*time.Second
		if fast {
			services, flags, estimate = 1_000, "--changes 3 --budget 4s --bursts 1 --burst 100 --churn 25 --churn-time 5s --quiet 3s --failures 1", 120*time.Second
		}
		proxies, of, fleetFlags, fleetEstimate := 100, 1_000, "--changes 12 --budget 40s --churn-time 10s --timeout 3m --quiet 20s", 3*time.Minute
		if fast {
			proxies, of, fleetFlags, fleetEstimate = 20, 200, "--changes 5 --budget 10s --churn-time 4s --timeout 1m --quiet 5s", time.Minute
		}
		return []step{{
			name: "churn", estimate: estimate,
			args: strings.Fields(fmt.Sprintf("bin/bench scale --services %d %s --save SAVE", services, flags)),
		}, {
			name: "fleet", estimate: fleetEstimate,
			args: strings.Fields(fmt.Sprintf("bin/bench fleet --proxies %d --services %d %s --save SAVE", proxies, of, fleetFlags)),
		}}
	},
	fill: func(s *section, r *record) error {
		defer s.fleet(r.find("fleet"))
		step := r.find("churn")
		if step == nil {
			return nil
		}
		for _, m := range []struct{ name, theirs, ours string }{{"nftables", kubeNFT, slipNFT}, {"iptables", kubeIPT, slipIPT}} {
			t := &table{Title: m.name + " mode", Theirs: "kube-proxy here", Ours: "Slipstream here"}
			as := published{"99th percentile of 5,000 nodes: 27 s, 13 s and 5 s, before, with and after partial restores", kep3453}
			if m.name == "nftables" {
				as = published{}
			}
			t.add("an endpoint replaced under churn, median", as, step, "churn", m.theirs, m.ours).headline = "an endpoint replaced under churn, " + m.name + " mode"
			t.Rows = append(t.Rows, row{
				What: "the same, 99th percentile", As: as,
				Theirs: step.percentile("churn", m.theirs, 99), Ours: step.percentile("churn", m.ours, 99),
				Compared: "tested by all values, above",
			})
			t.add("a full sync, mean", published{}, step, "sync_full", m.theirs, m.ours)
			t.add("a partial sync, mean", published{}, step, "sync_partial", m.theirs, m.ours)
			if m.name == "iptables" {
				t.add("rules in the table nat", published{}, step, "restore_rules", m.theirs, m.ours)
				t.add("of them in the last, partial, restore", published{}, step, "restore_last", m.theirs, m.ours)
				s.healed(step, m.theirs, m.ours)
			}
			s.Tables = append(s.Tables, t)
		}
		return nil
	},
	limits: []string{
		"Failures are not provoked in nftables mode: neither proxy's partial transactions there refer to the rules of Services that have not changed, so that removing those makes none fail.",
		"The published latencies are of all nodes of a cluster with 5,000 nodes, whose other parts take their share. Here one node is measured, with the API server on the same machine. IPVS mode is not measured here (see docs/performance.md).",
		"The fleets run one after the other, Slipstream's first, once each, so that the values of a fleet are those of one run, and the API server's memory includes what the first fleet has left. Times of a fleet are taken by a program that shares the processors with it. At rest, Slipstream looks twice a second whether another program has changed its rules. Fleets in iptables mode are not measured: the kernel does not tell when such rules change.",
	},
}

// healed adds the table of failures that were provoked.
func (s *section) healed(step *result, theirs, ours string) {
	t := &table{Title: "Another program removes the chain of one Service, then another Service changes; iptables mode", Theirs: "kube-proxy here", Ours: "Slipstream here"}
	t.add("partial restores that failed", published{"a full restore follows a partial one that failed", kep3453}, step, "restore_failures", theirs, ours)
	t.add("until the damaged Service answers again", published{}, step, "healed", theirs, ours).headline = "a Service without its chain, until it answers again, iptables mode"
	t.add("until connections reach the new endpoint of the Service that changed", published{}, step, "healed_change", theirs, ours)
	t.add("connections to other Services that failed meanwhile", published{}, step, "healed_others", theirs, ours)
	s.Tables = append(s.Tables, t)
}

const oneRun = "of one run, not tested"

// fleet adds the table of fleets.
func (s *section) fleet(step *result) {
	if step == nil {
		return
	}
	t := &table{Title: "Fleets on one API server, nftables mode", Theirs: "kube-proxy here", Ours: "Slipstream here"}
	if step.Result != nil {
		t.Title = step.Result.Title + ", nftables mode"
	}
	for _, l := range []struct{ what, series, high string }{
		{"all are started and have programmed their nodes after", "fleet_start", ""},
		{"an endpoint replaced, median of all nodes", "fleet_change", "an endpoint replaced, 99th percentile of all nodes"},
		{"an endpoint replaced, the last node", "fleet_last", ""},
		{"2 endpoints replaced a second, median of all nodes", "fleet_churn", "2 endpoints replaced a second, 99th percentile"},
		{"processor time of a change, each proxy", "fleet_cpu", ""},
		{"processor time at rest in a second, each proxy", "fleet_rest", ""},
		{"memory (RSS), each proxy", "fleet_memory", ""},
		{"processor time of a change, API server", "server_cpu", ""},
		{"memory (RSS), API server", "server_memory", ""},
		{"sent by the API server for a change", "server_sent", ""},
	} {
		r := t.add(l.what, published{}, step, l.series, kubeNFT, slipNFT)
		// Nodes of one change, and proxies of one fleet, are not independent. Changes are.
		if l.series != "fleet_last" {
			r.Compared = oneRun
		} else {
			r.headline = "an endpoint replaced, until the last node of a fleet has it"
		}
		if l.high != "" {
			t.Rows = append(t.Rows, row{
				What: l.high, Theirs: step.percentile(l.series, kubeNFT, 99), Ours: step.percentile(l.series, slipNFT, 99), Compared: oneRun,
			})
		}
	}
	s.Tables = append(s.Tables, t)
}

// percentile is the cell of a percentile of all values.
func (r *result) percentile(series, subject string, p float64) cell {
	s, o, missing := r.outcome(series, subject)
	if missing != "" {
		return cell{Missing: missing}
	}
	return cell{Text: s.Unit.Format(bench.Percentile(o.Values, p)), Range: fmt.Sprintf("n = %d", len(o.Values))}
}
