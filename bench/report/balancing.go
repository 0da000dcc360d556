// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/bench/figure"
)

var balancingPart = &part{
	name:  "balancing",
	title: "Balancing with a slow endpoint",
	about: `Three nodes, eight endpoints that handle one request at a time in 10 ms, one of them in 100 ms, and 72 connections a
second at random times. Slipstream's algorithms are compared with the kernel's own least-connection scheduler, which is what
kube-proxy uses in its IPVS mode with "scheduler: lc".`,
	steps: func(fast bool) []step {
		rounds, seconds, estimate := 4, 12, 5*time.Minute
		if fast {
			rounds, seconds, estimate = 2, 5, 90*time.Second
		}
		return []step{{
			name: "slow-endpoint", estimate: estimate,
			args: inUML(strings.Fields(fmt.Sprintf("bin/bench balance --rounds %d --seconds %d --save SAVE", rounds, seconds))...),
		}}
	},
	fill: func(s *section, r *record) error {
		step := r.find("slow-endpoint")
		if step == nil {
			return nil
		}
		for _, scheduler := range []string{"random", "rr", "lc"} {
			t := &table{Title: "scheduler " + scheduler, Theirs: "IPVS lc (the kernel's scheduler)", Ours: "Slipstream, " + scheduler}
			for _, line := range []struct{ what, series string }{
				{"99th percentile of latency", "latency_p99"},
				{"median latency", "latency_p50"},
				{"requests to the slow endpoint, 1 of 8", "slow_share"},
				{"processor time of a proxy", "proxy_cpu"},
			} {
				row := t.add(line.what, published{}, step, line.series, "ipvs-lc", scheduler)
				if scheduler == "lc" && line.series == "latency_p99" {
					row.headline = "99th percentile of latency with a slow endpoint, lc beside IPVS lc"
				}
			}
			s.Tables = append(s.Tables, t)
		}
		if step.Result == nil || step.Result.Find("latency_p99") == nil {
			return nil
		}
		drawn := *step.Result
		drawn.Title = ""
		f, err := figure.Bars(&drawn, []*bench.Series{drawn.Find("latency_p99"), drawn.Find("slow_share")})
		if err != nil {
			return err
		}
		return s.draw("Latency and load of the slow endpoint", "Ratios to random in the same round.", f)
	},
	limits: []string{
		"The IPVS column is Slipstream's IPVS mode. kube-proxy programs the same virtual servers and the same kernel scheduler, but needs an API server, which is too slow beside this load on a User Mode Linux kernel with one processor.",
		"Nobody has published such a comparison for kube-proxy.",
	},
}
