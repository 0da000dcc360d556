// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/bench/figure"
)

const kep4963 = "https://github.com/kubernetes/enhancements/tree/master/keps/sig-network/4963-kube-proxy-services-acceleration"

var fastpathPart = &part{
	name:  "fastpath",
	title: "The fast path",
	about: `A client's pod connects to a ClusterIP with one backend, over one node that forwards: a long TCP stream, small UDP
datagrams, requests on one connection, and short connections (connect, request, response). The node has three rules of a
firewall. Each round has a turn without the fast path, one with each engine that the kernel has, one of connections to the pod
without a Service, and one over a link that joins the two pods, which is the limit. The sweep has a turn for each threshold, the
number of packets after which a connection is offloaded. Debian's kernel runs in a virtual machine of QEMU without KVM, which
translates the instructions of kernel and programs alike: everything is slower there, and ratios are those of instructions.
It has all engines. Sockets choose the endpoint at connect(), so that no packet is translated.`,
	steps: func(fast bool) []step {
		rounds, estimate := 6, 220*time.Second
		if fast {
			rounds, estimate = 2, 70*time.Second
		}
		socketRounds, socketEstimate := 20, 90*time.Second
		if fast {
			socketRounds, socketEstimate = 4, 25*time.Second
		}
		bench := func(rounds int, rest string) []string {
			return strings.Fields(fmt.Sprintf("bin/bench forward %s --rounds %d --save SAVE", rest, rounds))
		}
		const (
			thresholds = "--firewall=false --paths off,1,20 --measure "
			sweep      = "--firewall=false --paths off,1,5,20,100,300,1000 --measure "
		)
		all := []step{
			{name: "compare-host", args: bench(rounds, "--streams 4"), estimate: estimate},
			{name: "crr-host", args: bench(rounds, thresholds+"crr"), estimate: 8 * time.Second},
			{name: "sockets-host", args: bench(socketRounds, "--firewall=false --paths direct,sockets,nftables,rule --measure crr --connections 2000 --services 10000"), estimate: socketEstimate},
			{name: "compare-qemu", args: inQEMU(bench(rounds, "--streams 4 --connections 500")...), estimate: 3 * estimate / 2},
		}
		if fast {
			return all
		}
		return append(all,
			step{name: "aggregated-qemu", args: inQEMU(bench(16, thresholds+"aggregated")...), estimate: 150 * time.Second},
			step{name: "sweep-stream-qemu", args: inQEMU(bench(5, sweep+"packets")...), estimate: 2 * time.Minute},
			step{name: "sweep-crr-qemu", args: inQEMU(bench(5, sweep+"crr --connections 500")...), estimate: 2 * time.Minute})
	},
	fill: func(s *section, r *record) error {
		for _, where := range []string{"host", "qemu"} {
			if err := fillCompared(s, r.find("compare-"+where)); err != nil {
				return err
			}
		}
		if crr := r.find("crr-host"); crr != nil {
			t := &table{Title: "No threshold: " + engine(crr), Theirs: "without the fast path", Ours: "Slipstream, no threshold"}
			t.add("short connections a second", published{"0.98x", kep4963}, crr, "crr_rate", "off", "no threshold")
			t.add("their latency, 99th percentile", published{}, crr, "crr_p99", "off", "no threshold")
			s.Tables = append(s.Tables, t)
		}
		if a := r.find("aggregated-qemu"); a != nil {
			t := &table{Title: "Packets aggregated, one stream, more rounds: " + engine(a), Theirs: "without the fast path", Ours: "Slipstream with it"}
			t.add("TCP stream, packets aggregated, threshold 20", published{"1.25x", kep4963}, a, "stream_aggregated", "off", "threshold 20")
			t.add("TCP stream, packets aggregated, no threshold", published{"1.27x; 1.16x and 1.19x by its pull request and kindnet", kep4963}, a, "stream_aggregated", "off", "no threshold")
			s.Tables = append(s.Tables, t)
		}
		if k := r.find("sockets-host"); k != nil {
			for _, ours := range []string{"sockets", "nftables"} {
				t := &table{Title: "Connect, request, response, 10,000 Services: " + ours + " beside no Service", Theirs: "pod to pod without a Service", Ours: "Slipstream, " + ours}
				t.add("connections a second", published{}, k, "crr_rate", "no Service", ours)
				t.add("their latency, median", published{}, k, "crr_median", "no Service", ours)
				t.add("their latency, 99th percentile", published{}, k, "crr_p99", "no Service", ours)
				s.Tables = append(s.Tables, t)
			}
		}
		if stream, crr := r.find("sweep-stream-qemu"), r.find("sweep-crr-qemu"); stream != nil && crr != nil {
			t := &table{Title: "Thresholds: " + engine(stream), Theirs: "without the fast path", Ours: "Slipstream with it"}
			for _, name := range []string{"no threshold", "threshold 5", "threshold 20", "threshold 100", "threshold 300", "threshold 1000"} {
				t.add("TCP stream, single packets, "+name, published{}, stream, "stream_packets", "off", name)
			}
			for _, name := range []string{"no threshold", "threshold 5", "threshold 20", "threshold 100", "threshold 300", "threshold 1000"} {
				t.add("short connections a second, "+name, published{}, crr, "crr_rate", "off", name)
			}
			s.Tables = append(s.Tables, t)
		}
		return nil
	},
	limits: []string{
		"The machine's own kernel shows only the engines that it has: many have no flowtables.",
		"kube-proxy v1.37 has no fast path, so the comparison is with the same node without it.",
		"Absolute throughputs of others are not comparable with those of this machine; ratios are.",
	},
}

// engine says what offloaded the connections of a result, and on which kernel.
func engine(r *result) string {
	if r.Result == nil {
		return r.Name
	}
	name := "flowtable"
	for _, n := range r.Result.Notes {
		if strings.Contains(n, "ebpf") {
			name = "eBPF"
		}
	}
	return name + ", " + strings.TrimPrefix(strings.TrimPrefix(r.Where(), "in "), "on ")
}

// fillCompared adds a table for each engine that the step's kernel has, one of the limits, and a chart.
func fillCompared(s *section, step *result) error {
	if step == nil {
		return nil
	}
	lines := []struct {
		what, series string
		as           published
	}{
		{"TCP stream, packets aggregated", "stream_aggregated", published{"1.25x; 1.27x without a threshold; 1.16x and 1.19x by its pull request and kindnet", kep4963}},
		{"TCP stream, single packets", "stream_packets", published{}},
		{"UDP packets a second", "udp_packets", published{}},
		{"forwarding one packet", "packet_cost", published{}},
		{"requests a second on one connection", "rr_rate", published{}},
		{"short connections a second", "crr_rate", published{"0.98x without a threshold", kep4963}},
		{"their latency, 99th percentile", "crr_p99", published{}},
	}
	where := cmp.Or(strings.TrimPrefix(strings.TrimPrefix(step.Where(), "in "), "on "), step.Name)
	for _, subject := range []string{"flowtable", "eBPF", "sockets", "no Service", "one link"} {
		if !step.has(subject) {
			continue
		}
		limit := subject == "no Service" || subject == "one link"
		t := &table{Title: subject + ", threshold of 20 packets, " + where, Theirs: "without the fast path", Ours: "Slipstream, " + subject}
		if limit {
			t.Title, t.Ours = "The limit: "+subject+", "+where, subject
		}
		for _, l := range lines {
			if limit {
				l.as = published{}
			}
			if _, _, missing := step.outcome(l.series, subject); missing != "" && step.Result != nil && step.Failed == "" {
				continue // as the cost of a packet on a link without a node
			}
			row := t.add(l.what, l.as, step, l.series, "off", subject)
			if l.series == "packet_cost" && !limit {
				row.headline = "forwarding one packet, without and with the fast path, " + subject + ", " + where
			}
		}
		s.Tables = append(s.Tables, t)
	}
	if step.Result == nil {
		return nil
	}
	drawn := *step.Result
	drawn.Title = ""
	var series []*bench.Series
	for _, name := range []string{"stream_aggregated", "stream_packets", "udp_packets", "rr_rate", "crr_rate"} {
		if found := drawn.Find(name); found != nil && len(found.Outcomes[0].Values) > 0 {
			series = append(series, found)
		}
	}
	if len(series) == 0 {
		return nil
	}
	f, err := figure.Bars(&drawn, series)
	if err != nil {
		return err
	}
	return s.draw("Gain of the fast path, "+where, "Ratios to off in the same round.", f)
}

// has says whether a subject was measured. One that the kernel does not have is not in the result;
// of a step without a result, the page says once that it was not measured.
func (r *result) has(subject string) bool {
	return r.Result == nil && subject == "flowtable" || r.Result != nil && slices.ContainsFunc(r.Result.Subjects, func(s bench.Subject) bool { return s.Name == subject })
}
