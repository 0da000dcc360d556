// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/bench"
)

var latencySizes = []int{1, 10, 100, 1_000, 10_000}

// latencyStyles are the names of the series by what a connection carries.
var latencyStyles = []struct{ name, text string }{{"close", "a connection for each request"}, {"keepalive", "100 requests a connection"}}

var latencyPart = &part{
	name:  "latency",
	title: "iptables or IPVS: response times and processor time",
	about: `fortio makes 1,000 requests a second, over 10 connections, from a pod to one Service of 10 nginx processes, each in a
network namespace, with more and more other Services of 10 endpoints in the cluster. All proxies run at once, each on a node of
its own, and have their turns one after the other. Processor time is that of the processes of client, servers and proxy, in
percent of one processor; these do the kernel's work for the packets, too. The relay is what serves NodePorts on
loopback addresses in nftables mode, a process that copies between two connections, as kube-proxy's userspace mode did.`,
	steps: func(fast bool) []step {
		services, rounds, seconds, estimate := "1,10,100,1000,10000", 4, 2, 9*time.Minute
		if fast {
			services, rounds, seconds, estimate = "1,1000", 4, 1, 2*time.Minute
		}
		all := []step{{
			name: "host", estimate: estimate,
			args: strings.Fields(fmt.Sprintf("bin/bench latency --nginx bin/nginx --services %s --rounds %d --seconds %d --save SAVE", services, rounds, seconds)),
		}}
		if !fast {
			all = append(all, step{
				name: "ipvs", estimate: 4 * time.Minute,
				args: inUML(strings.Fields("bin/bench latency --nginx bin/nginx --subjects slipstream-ipvs,kube-proxy-ipvs --services 1,100 --rounds 4 --seconds 3 --rate 100 --calm 30s --save SAVE")...),
			})
		}
		return all
	},
	fill: func(s *section, r *record) error {
		for _, m := range []struct{ step, name, theirs, ours string }{
			{"host", "nftables", kubeNFT, slipNFT}, {"host", "iptables", kubeIPT, slipIPT}, {"ipvs", "IPVS", kubeIPVS, slipIPVS},
			{"host", "a relay in user space", kubeNFT + "-loopback", slipNFT + "-loopback"},
		} {
			step := r.find(m.step)
			if step == nil {
				continue
			}
			title := m.name
			if !strings.Contains(title, " ") {
				title += " mode"
			}
			for _, style := range latencyStyles {
				t := &table{Title: title + ", " + style.text, Theirs: "kube-proxy here", Ours: "Slipstream here"}
				for _, n := range latencySizes {
					if step.Result != nil && step.Result.Find(latencyName(style.name, "p50", n)) == nil {
						continue
					}
					for _, l := range []struct{ what, series string }{{"mean", "mean"}, {"median", "p50"}, {"99th percentile", "p99"}, {"99.9th percentile", "p999"}, {"processor time", "cpu"}, {"requests that failed", "errors"}} {
						as := published{}
						switch {
						case l.series != "cpu" || n != 10_000 || style.name != "close":
						case m.name == "iptables":
							as = published{"35 % of a processor", article}
						case m.name == "IPVS":
							as = published{"8 % of a processor", article}
						}
						row := t.add(fmt.Sprintf("%s Services: %s", bench.Thousands(n), l.what), as, step, latencyName(style.name, l.series, n), m.theirs, m.ours)
						if style.name == "close" && l.series == "cpu" && n == 10_000 {
							row.headline = "processor time of 1,000 requests a second, 10,000 Services, " + title
						}
					}
				}
				s.Tables = append(s.Tables, t)
			}
		}
		step := r.find("host")
		if step == nil || step.Result == nil {
			return nil
		}
		s.Tables = append(s.Tables, growth(step))
		all := []string{slipNFT, kubeNFT, slipIPT, kubeIPT, slipNFT + "-loopback", kubeNFT + "-loopback"}
		for _, l := range []struct{ title, axis, series string }{
			{"Processor time, a connection for each request", "percent of a processor", "cpu"},
			{"Median response time, a connection for each request", "median", "p50"},
			{"99th percentile of response times, a connection for each request", "99th percentile", "p99"},
		} {
			bySize := map[int]*result{}
			for _, n := range latencySizes {
				bySize[n] = renamed(step, latencyName("close", l.series, n), l.series)
			}
			if err := s.lines(l.title, l.axis, bySize, l.series, all...); err != nil {
				return err
			}
		}
		return nil
	},
	limits: []string{
		"IPVS mode is measured on the User Mode Linux kernel, with 100 requests a second: it has one processor, for the API server, the client and the servers, and system calls cost several times as much. Its numbers compare with each other, not with those of the other modes.",
		"The article measured three machines with a network between them. Here client, node and servers are network namespaces of one machine, so that absolute times are shorter.",
		"kube-proxy's userspace mode was removed in Kubernetes 1.26. The relay is the closest thing to it that is left.",
	},
}

func latencyName(style, what string, services int) string {
	return fmt.Sprintf("%s_%s_%d", style, what, services)
}

// renamed is a result with one series under another name.
func renamed(r *result, from, to string) *result {
	found := r.Result.Find(from)
	if found == nil {
		return nil
	}
	series := *found
	series.Name = to
	return &result{Result: &bench.Result{Subjects: r.Result.Subjects, Series: []*bench.Series{&series}}}
}

// growth compares the largest cluster with the smallest one, for each subject.
func growth(r *result) *table {
	few, many := 0, 0
	for _, n := range latencySizes {
		if r.Result.Find(latencyName("close", "cpu", n)) != nil {
			if few == 0 {
				few = n
			}
			many = n
		}
	}
	t := &table{
		Title:  fmt.Sprintf("From %s to %s Services, a connection for each request", bench.Thousands(few), bench.Thousands(many)),
		Theirs: bench.Thousands(few) + " Services", Ours: bench.Thousands(many) + " Services",
	}
	for _, l := range []struct{ what, series string }{{"processor time", "cpu"}, {"median", "p50"}} {
		for _, subject := range r.Result.Subjects {
			from, to := latencyName("close", l.series, few), latencyName("close", l.series, many)
			_, a, _ := r.outcome(from, subject.Name)
			_, b, _ := r.outcome(to, subject.Name)
			row := row{What: subject.Name + ": " + l.what, Theirs: r.cell(from, subject.Name), Ours: r.cell(to, subject.Name)}
			if a != nil && b != nil && a.Median > 0 {
				row.Compared = comparison(a.Values, b.Values, b.Median/a.Median)
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}
