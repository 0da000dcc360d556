// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/bench/figure"
)

// part is a chapter of the page, and what is measured for it.
type part struct {
	name  string
	title string
	about string // a paragraph
	steps func(fast bool) []step
	// fill adds tables and charts. Results are of any run, or missing.
	fill func(s *section, r *record) error
	// limits says what cannot be reproduced, and why.
	limits []string
}

var parts = []*part{scalePart, rulesPart, fastpathPart, balancingPart, latencyPart, restorePart}

// section is a part on the page.
type section struct {
	Name, Title, About string
	Tables             []*table
	Charts             []chart
	Limits             []string
	Steps              []*result
}

// table compares kube-proxy and Slipstream.
type table struct {
	Title        string
	Theirs, Ours string // heads of these columns
	Rows         []row
}

type row struct {
	What     string
	As       published
	Theirs   cell
	Ours     cell
	Compared string
	headline string // the text of the row in the page's first table, if it is there
}

// published is a figure by others.
type published struct {
	Text, Source string // text and address; neither if nobody has published one
}

type chart struct {
	Title, Text string
	SVG         string
}

// add appends a row of a series for two subjects.
func (t *table) add(what string, as published, r *result, series, theirs, ours string) *row {
	t.Rows = append(t.Rows, row{
		What: what, As: as, Theirs: r.cell(series, theirs), Ours: r.cell(series, ours), Compared: r.compare(series, theirs, ours),
	})
	return &t.Rows[len(t.Rows)-1]
}

// lines adds a chart of a series over steps that were measured with different numbers of Services.
func (s *section) lines(title, axis string, results map[int]*result, series string, subjects ...string) error {
	all := &bench.Result{}
	for _, name := range subjects {
		all.Subjects = append(all.Subjects, bench.Subject{Name: name})
	}
	for at, r := range results {
		one := &bench.Series{At: at}
		for _, name := range subjects {
			o := bench.Outcome{}
			if series, found, _ := r.outcome(series, name); found != nil {
				one.Unit, o = series.Unit, *found
			}
			one.Outcomes = append(one.Outcomes, o)
		}
		if slices.ContainsFunc(one.Outcomes, func(o bench.Outcome) bool { return len(o.Values) > 0 }) {
			all.Series = append(all.Series, one)
		}
	}
	slices.SortFunc(all.Series, func(a, b *bench.Series) int { return a.At - b.At })
	if len(all.Series) < 2 {
		return nil // there is no line of one point
	}
	f, err := figure.Lines(all, all.Series, "Services", axis)
	if err != nil {
		return err
	}
	return s.draw(title, "Medians, with bars from the lowest to the highest value. Both axes are logarithmic.", f)
}

func (s *section) draw(title, text string, f *figure.Figure) error {
	svg, err := f.SVG()
	s.Charts = append(s.Charts, chart{title, text, svg})
	return err
}

// inUML is the command that runs another one on the User Mode Linux kernel.
func inUML(args ...string) []string {
	return append([]string{"bin/kernel-run", "-memory", "8G", "-timeout", "1h"}, args...)
}

// inQEMU is the command that runs another one on Debian's kernel in QEMU.
func inQEMU(args ...string) []string {
	return append([]string{"test/kernel/qemu.sh", "-kernel", "6.12", "-timeout", "1h"}, args...)
}

// withServices names a step by a number of Services.
func withServices(n int) string { return fmt.Sprintf("services-%d", n) }

// scale

const (
	slipNFT  = "slipstream"
	slipIPT  = "slipstream-iptables"
	slipIPVS = "slipstream-ipvs"
	kubeNFT  = "kube-proxy-nftables"
	kubeIPT  = "kube-proxy-iptables"
	kubeIPVS = "kube-proxy-ipvs"
)

var scaleSizes = []int{1_000, 10_000, 27_000, 100_000}

var scalePart = &part{
	name:  "scale",
	title: "Programming at scale",
	about: `A real kube-apiserver with etcd is filled with Services. Each proxy runs on a node of its own (a network
namespace), with the configuration that kubeadm writes, in turns. All is measured from outside: objects are written to the
API, and connections are made to Services. "Start" is from the start of the process until a sample of all Services answers,
"an endpoint replaced" from the API server's reply until a new connection reaches the new endpoint, "behind after a burst"
from the last reply until the last change has its effect. Processor time includes nft and iptables-restore.`,
	steps: func(fast bool) (all []step) {
		add := func(services int, estimate time.Duration, flags string) {
			all = append(all, step{
				name: withServices(services), estimate: estimate,
				args: strings.Fields(fmt.Sprintf("bin/bench scale --services %d %s --save SAVE", services, flags)),
			})
		}
		if fast {
			add(1_000, 90*time.Second, "--changes 4 --budget 5s --bursts 1 --burst 300 --quiet 5s")
			add(10_000, 150*time.Second, "--changes 4 --budget 5s --bursts 1 --quiet 15s --timeout 2m")
			return all
		}
		add(1_000, 6*time.Minute, "--runs 4 --changes 4 --budget 6s --bursts 1 --quiet 10s")
		add(10_000, 9*time.Minute, "--runs 4 --changes 6 --budget 9s --bursts 1 --quiet 20s")
		add(27_000, 5*time.Minute, "--endpoints 4 --changes 8 --budget 20s --bursts 2 --timeout 5m")
		add(100_000, 6*time.Minute, "--subjects slipstream,slipstream-iptables,kube-proxy-iptables --changes 6 --budget 20s --bursts 1 --timeout 3m")
		return all
	},
	fill: func(s *section, r *record) error {
		bySize := map[int]*result{}
		for _, n := range scaleSizes {
			step := r.find(withServices(n))
			if step == nil {
				continue
			}
			bySize[n] = step
			for mode, subjects := range map[string][2]string{"nftables": {kubeNFT, slipNFT}, "iptables": {kubeIPT, slipIPT}} {
				t := &table{Title: fmt.Sprintf("%s Services, %s mode", bench.Thousands(n), mode), Theirs: "kube-proxy here", Ours: "Slipstream here"}
				for _, line := range []struct{ what, series, headline string }{
					{"start until Services answer", "start", "start until Services answer"},
					{"processor time of the start", "start_cpu", ""},
					{"an endpoint replaced", "change", "an endpoint replaced, until connections reach it"},
					{"processor time of a change", "change_cpu", ""},
					{"behind after a burst of changes", "burst", "behind after a burst of changes"},
					{"peak memory (RSS)", "peak_rss", "peak memory (RSS)"},
					{"connections that failed while endpoints changed", "failed_share", ""},
				} {
					row := t.add(line.what, published{}, step, line.series, subjects[0], subjects[1])
					if n == 10_000 && line.headline != "" {
						row.headline = fmt.Sprintf("%s, 10,000 Services, %s mode", line.headline, mode)
					}
					if row.Theirs.Missing == notMeasured {
						row.Theirs.Missing = "not started, see above"
						if line.series == "start" {
							row.Theirs.Missing = tooLong(bySize, n, subjects[0])
						}
					}
				}
				s.Tables = append(s.Tables, t)
			}
		}
		slices.SortStableFunc(s.Tables, func(a, b *table) int { return strings.Compare(mode(a), mode(b)) * -1 })
		all := []string{slipNFT, kubeNFT, slipIPT, kubeIPT}
		for _, c := range []struct{ title, series string }{
			{"Start until Services answer", "start"},
			{"Until connections reach a replaced endpoint", "change"},
			{"Peak memory (RSS)", "peak_rss"},
		} {
			if err := s.lines(c.title, c.title, bySize, c.series, all...); err != nil {
				return err
			}
		}
		return nil
	},
	limits: []string{
		"kube-proxy's nftables mode is not started with 100,000 Services: its start grows with the square of their number (compare 10,000 and 27,000). The table has the time to expect.",
		"With 27,000 Services and more the connections and changes of one run are compared, not several starts, so that there is no test of their difference.",
		"Nobody has published these figures for kube-proxy v1.37.",
		"The kernels of User Mode Linux, the only ones here with IPVS, are too slow for an API server of this size; docs/performance.md has IPVS mode with 2,000 Services.",
	},
}

// tooLong says why a proxy was not started with n Services: its start grows with the square of their
// number, which gives the time of this start from that of the largest one that was measured.
func tooLong(bySize map[int]*result, n int, subject string) string {
	for _, less := range slices.Backward(scaleSizes) {
		if _, start, _ := bySize[less].outcome("start", subject); start != nil && less < n {
			scale := float64(n) / float64(less)
			return fmt.Sprintf("not started: %s Services took %s, and the time grows with the square of their number, here to about %s minutes",
				bench.Thousands(less), bench.Nanoseconds.Format(start.Median), digits(start.Median*scale*scale/float64(time.Minute)))
		}
	}
	return notMeasured
}

func mode(t *table) string { return t.Title[strings.LastIndex(t.Title, ",")+1:] }

// rules

const article = "https://www.tigera.io/blog/comparing-kube-proxy-modes-iptables-or-ipvs/"

var ruleSizes = []int{10, calicos, 100, 1_000, 10_000}

var rulesPart = &part{
	name:  "rules",
	title: "Rules for a new connection",
	about: `How many rules the kernel executes for the first packet of a connection from a pod to a Service with 10 endpoints. In
iptables mode, the rules' own counters tell. In nftables and IPVS mode, the kernel traces the packet, and the rules of each
chain on its way are counted up to the one by which it left the chain. Connections go to random Services of the same API
server.`,
	steps: func(fast bool) (all []step) {
		services, sample, estimate := "10,20,100,1000,10000", 20, 4*time.Minute
		if fast {
			services, sample, estimate = "10,20,1000", 10, time.Minute
		}
		for _, mode := range []string{"iptables", "nftables"} {
			ours := slipIPT
			if mode == "nftables" {
				ours = slipNFT
			}
			all = append(all, step{
				name: mode, estimate: estimate / 2,
				args: strings.Fields(fmt.Sprintf("bin/bench rules --subjects %s,kube-proxy-%s --services %s --sample %d --save SAVE", ours, mode, services, sample)),
			})
		}
		if !fast {
			all = append(all, step{
				name: "ipvs", estimate: 5 * time.Minute,
				args: inUML(strings.Fields("bin/bench rules --subjects slipstream-ipvs,kube-proxy-ipvs --services 10,100 --sample 10 --calm 30s --save SAVE")...),
			})
		}
		return all
	},
	fill: func(s *section, r *record) error {
		for _, m := range []struct{ step, theirs, ours string }{{"iptables", kubeIPT, slipIPT}, {"nftables", kubeNFT, slipNFT}, {"ipvs", kubeIPVS, slipIPVS}} {
			step := r.find(m.step)
			if step == nil {
				continue
			}
			t := &table{Title: m.step + " mode, rules for the first packet", Theirs: "kube-proxy here", Ours: "Slipstream here"}
			for _, n := range ruleSizes {
				name := fmt.Sprintf("rules_%d", n)
				if step.Result != nil && step.Result.Find(name) == nil {
					continue
				}
				as := published{}
				if m.step == "iptables" && n == 10_000 {
					as = published{"about 20,000 in the worst case", article}
				}
				if m.step == "iptables" && n == calicos {
					as = published{"Calico's line, for any number of Services", article}
				}
				row := t.add(bench.Thousands(n)+" Services", as, step, name, m.theirs, m.ours)
				if n == 10_000 && m.step != "ipvs" {
					row.headline = fmt.Sprintf("rules for a new connection, 10,000 Services, %s mode", m.step)
				}
			}
			s.Tables = append(s.Tables, t)
		}
		bySize := map[int]*result{}
		for _, n := range ruleSizes {
			bySize[n] = ruleStep(r, n)
		}
		return s.lines("Rules for a new connection", "rules", bySize, "rules", slipIPT, kubeIPT, slipNFT, kubeNFT)
	},
	limits: []string{
		"Calico itself is not run, as it would replace the network of these nodes, and its rules depend on their policies. The article says that a connection meets as many of its rules as of kube-proxy's with 20 Services in iptables mode, so that row stands for it. A policy engine's rules are the same beside either proxy.",
		"IPVS mode is counted with 10 and 100 Services, on the User Mode Linux kernel. Every connection meets the same rules there, as both proxies look Services up in hash tables.",
	},
}

// calicos is the number of Services whose rules, in iptables mode, are as many as Calico's however many
// Services there are, as the article says.
const calicos = 20

// ruleStep joins what the steps have counted with n Services into one result.
func ruleStep(r *record, n int) *result {
	joined := &bench.Result{}
	series := &bench.Series{Name: "rules", Unit: bench.Count}
	for _, name := range []string{"iptables", "nftables"} {
		step := r.find(name)
		if step == nil || step.Result == nil {
			continue
		}
		if found := step.Result.Find(fmt.Sprintf("rules_%d", n)); found != nil {
			joined.Subjects = append(joined.Subjects, step.Result.Subjects...)
			series.Outcomes = append(series.Outcomes, found.Outcomes...)
		}
	}
	joined.Series = append(joined.Series, series)
	return &result{Result: joined}
}
