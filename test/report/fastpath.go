// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/chart/figure"
)

const kep4963 = "https://github.com/kubernetes/enhancements/tree/master/keps/sig-network/4963-kube-proxy-services-acceleration"

var fastpathPart = &part{
	name:  "fastpath",
	title: "The fast path",
	about: `A client's pod connects to a ClusterIP with one backend, over one node that forwards: a long TCP stream, small UDP
datagrams, and short connections (connect, request, response). Each round has a turn without the fast path, and one for each
threshold, the number of packets after which a connection is offloaded. User Mode Linux has flowtables, but system calls
and copies take several times as long there as on a real kernel, so that the same saving shows less.`,
	steps: func(fast bool) []step {
		rounds, estimate := 8, 2*time.Minute
		if fast {
			rounds, estimate = 4, 50*time.Second
		}
		bench := func(rounds int, rest string) []string {
			return strings.Fields(fmt.Sprintf("bin/slipstream-bench %s --rounds %d --save SAVE", rest, rounds))
		}
		const sweep = "--thresholds 1,5,20,100,300,1000"
		all := []step{
			{name: "stream-host", args: bench(rounds, "throughput"), estimate: estimate},
			{name: "crr-host", args: bench(rounds, "crr --connections 1000"), estimate: estimate / 4},
			{name: "stream-uml", args: inUML(bench(rounds, "throughput")...), estimate: estimate},
			{name: "crr-uml", args: inUML(bench(rounds, "crr --connections 500")...), estimate: estimate / 2},
		}
		if fast {
			return all
		}
		return append(all,
			step{name: "sweep-stream-uml", args: inUML(bench(6, "throughput --measure packets "+sweep)...), estimate: estimate},
			step{name: "sweep-crr-uml", args: inUML(bench(6, "crr --connections 500 "+sweep)...), estimate: estimate})
	},
	fill: func(s *section, r *record) error {
		kep := func(text string) published { return published{text, kep4963} }
		for _, where := range []string{"host", "uml"} {
			stream, crr := r.find("stream-"+where), r.find("crr-"+where)
			if stream == nil || crr == nil {
				continue
			}
			t := &table{Title: "The default threshold, 20 packets: " + engine(stream), Theirs: "without the fast path", Ours: "Slipstream with it"}
			lines := []struct {
				what, series string
				from         *result
				as           published
			}{
				{"TCP stream, packets aggregated", "stream_aggregated", stream, kep("1.25x; 1.27x without a threshold; 1.16x and 1.19x by its pull request and kindnet")},
				{"TCP stream, single packets", "stream_packets", stream, published{}},
				{"UDP packets a second", "udp_packets", stream, published{}},
				{"forwarding one packet", "packet_cost", stream, published{}},
				{"short connections a second", "crr_rate", crr, kep("0.98x without a threshold")},
				{"their latency, 99th percentile", "crr_p99", crr, published{}},
			}
			for _, l := range lines {
				row := t.add(l.what, l.as, l.from, l.series, "off", "threshold 20")
				if l.series == "packet_cost" {
					row.headline = "forwarding one packet, without and with the fast path, " + engine(stream)
				}
			}
			t.add("short connections a second, no threshold", kep("0.98x"), crr, "crr_rate", "off", "no threshold")
			s.Tables = append(s.Tables, t)
			if stream.Result == nil || stream.Result.Find("stream_packets") == nil {
				continue
			}
			drawn := *stream.Result
			drawn.Title = ""
			var series []*bench.Series
			for _, name := range []string{"stream_aggregated", "stream_packets", "udp_packets"} {
				if found := drawn.Find(name); found != nil {
					series = append(series, found)
				}
			}
			f, err := figure.Bars(&drawn, series)
			if err != nil {
				return err
			}
			if err := s.draw("Gain of long connections: "+engine(stream), "Ratios to off in the same round.", f); err != nil {
				return err
			}
		}
		if stream, crr := r.find("sweep-stream-uml"), r.find("sweep-crr-uml"); stream != nil && crr != nil {
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
