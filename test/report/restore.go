// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
)

const kep3453 = "https://github.com/kubernetes/enhancements/tree/master/keps/sig-network/3453-minimize-iptables-restore"

var restorePart = &part{
	name:  "restore",
	title: "Partial restores, and latency under churn (KEP-3453)",
	about: `On a node of a large cluster, endpoints change all the time. Here they are replaced at a constant rate while
single changes are measured from the trigger time in the EndpointSlice's annotation until a connection reaches the new endpoint.
Proxies have the configuration that kubeadm writes, with at least one second between two syncs; Slipstream's nftables mode
waits only when changes follow each other. Means of syncs, and sizes of iptables' restores, are the proxies' own metrics.`,
	steps: func(fast bool) []step {
		services, flags, estimate := 5_000, "-runs 4 -changes 3 -budget 4s -bursts 1 -burst 100 -churn 25 -churn-time 12s", 10*time.Minute
		if fast {
			services, flags, estimate = 1_000, "-changes 3 -budget 4s -bursts 1 -burst 100 -churn 25 -churn-time 8s -quiet 5s", 110*time.Second
		}
		return []step{{
			name: "churn", dir: "test/cluster", estimate: estimate,
			args: strings.Fields(fmt.Sprintf("../../bin/scale -slipstream ../../bin/slipstream -services %d -informers=false %s -save SAVE", services, flags)),
		}}
	},
	fill: func(s *section, r *record) error {
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
			}
			s.Tables = append(s.Tables, t)
		}
		return nil
	},
	limits: []string{
		"The published latencies are of all nodes of a cluster with 5,000 nodes, whose other parts take their share. Here one node is measured, with the API server on the same machine. IPVS mode is not measured here (see docs/performance.md).",
		"Failures of a restore are not provoked in this run. The tests of internal/dataplane/iptables do that and check that the next sync heals them.",
		"A fleet of 100 proxies on one API server is not measured: this report has no such part yet.",
	},
}

// percentile is the cell of a percentile of all values.
func (r *result) percentile(series, subject string, p float64) cell {
	s, o, missing := r.outcome(series, subject)
	if missing != "" {
		return cell{Missing: missing}
	}
	return cell{Text: s.Unit.Format(bench.Percentile(o.Values, p)), Range: fmt.Sprintf("n = %d", len(o.Values))}
}
