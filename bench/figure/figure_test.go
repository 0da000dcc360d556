// SPDX-License-Identifier: Apache-2.0

package figure

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/bench/bench"
)

func TestBars(t *testing.T) {
	r := &bench.Result{Subjects: []bench.Subject{{Name: "off"}, {Name: "no threshold"}}}
	err := r.Fill([]bench.Series{
		{Name: "crr_mean", Text: "latency, mean", Unit: bench.Nanoseconds, Better: bench.Less, Paired: true},
		{Name: "crr_rate", Text: "connections a second", Unit: bench.PerSecond, Better: bench.More, Paired: true},
	}, []bench.Samples{
		{"crr_mean": {100, 110, 110, 120}, "crr_rate": {10, 11, 12, 13}},
		{"crr_mean": {130, 143, 143, 156}, "crr_rate": {9, 12, 13, 11}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Bars(r); err == nil {
		t.Error("no error for different directions in one chart")
	}
	r.Series[1].Better = bench.Less
	svg, err := Bars(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<svg", ">latency, mean<", ">110 ns<", ">1.30x, 143 ns<", ">no difference shown, 11.5 /s<", ">no threshold<", "(less is better)"} {
		if !strings.Contains(svg, want) {
			t.Errorf("no %q in the chart", want)
		}
	}
}

func TestLines(t *testing.T) {
	r := &bench.Result{Subjects: []bench.Subject{{Name: "ours"}, {Name: "theirs"}}}
	var series []bench.Series
	samples := []bench.Samples{{}, {}}
	for services := 10; services <= 1000; services *= 10 {
		name := fmt.Sprintf("rules_%d", services)
		series = append(series, bench.Series{Name: name, Unit: bench.Count, At: services})
		for i, s := range samples {
			s.Add(name, 20, float64(20+i*services), float64(22+i*services))
		}
	}
	if err := r.Fill(series, samples); err != nil {
		t.Fatal(err)
	}
	svg, err := Lines(r, "Services", "rules executed", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<svg", ">rules executed<", ">ours<", ">theirs<", ">20<", ">1,020<", ">1,000<"} {
		if !strings.Contains(svg, want) {
			t.Errorf("no %q in the chart", want)
		}
	}
}

// TestCounts has bars as long as the counts, also where there is one for one subject alone.
func TestCounts(t *testing.T) {
	r := &bench.Result{Title: "calls", Subjects: []bench.Subject{{Name: "nftables"}, {Name: "IPVS"}}}
	err := r.Fill([]bench.Series{{Name: "start", Text: "start"}, {Name: "upgrade", Text: "upgrade"}}, []bench.Samples{
		{"start": {100}, "upgrade": {50}}, {"start": {25}},
	})
	if err != nil {
		t.Fatal(err)
	}
	svg, err := Bars(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{">calls<", ">start<", ">upgrade<", ">100<", ">25<", ">50<", ">IPVS<"} {
		if !strings.Contains(svg, want) {
			t.Errorf("no %q in the chart", want)
		}
	}
	var widths []float64
	for _, m := range regexp.MustCompile(`d="M([\d.]+),[\d.]+L([\d.]+),[^"]*Z" style="fill:#(0072B2|CC79A7)`).FindAllStringSubmatch(svg, -1) {
		from, _ := strconv.ParseFloat(m[1], 64)
		to, _ := strconv.ParseFloat(m[2], 64)
		widths = append(widths, to-from)
	}
	// The first two are the legend's.
	if len(widths) != 5 || math.Abs(widths[2]/widths[3]-4) > 0.01 || math.Abs(widths[2]/widths[4]-2) > 0.01 {
		t.Errorf("bars of %v points, want the first four times the second, and twice the third", widths)
	}
}

// TestRanks has a line for each subject through all values, the highest first, and axes that end at the data.
func TestRanks(t *testing.T) {
	r := &bench.Result{Subjects: []bench.Subject{{Name: "before"}, {Name: "unseen"}, {Name: "during the attack"}}}
	err := r.Fill([]bench.Series{{Name: "a"}, {Name: "b"}, {Name: "c"}}, []bench.Samples{
		{"a": {10}, "b": {30}, "c": {20}}, {"a": {30}, "b": {20}, "c": {10}}, {"a": {20}, "b": {10}, "c": {30}},
	})
	if err != nil {
		t.Fatal(err)
	}
	svg, err := Lines(r, "attacks", "ms", 0)
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`d="(M[^"]*)" style="fill:none;stroke:#(999999|CC79A7|0072B2);stroke-width:1.5`).FindAllStringSubmatch(svg, -1)
	lines = slices.DeleteFunc(lines, func(m []string) bool { return strings.Count(m[1], "L") < 2 })
	if len(lines) != 3 || lines[0][1] != lines[1][1] || lines[0][1] != lines[2][1] {
		t.Errorf("lines %q, want three that are the same", lines)
	}
	if !strings.Contains(svg, ">1<") || !strings.Contains(svg, ">3<") { // on a longer axis, 3 has no number
		t.Error("the axis does not go from the first attack to the last")
	}
}

func TestNothing(t *testing.T) {
	r := &bench.Result{Series: []*bench.Series{{Outcomes: []bench.Outcome{{}}}}, Subjects: []bench.Subject{{Name: "ours"}}}
	if _, err := Lines(r, "Services", "rules", 0); err == nil {
		t.Error("a chart of no numbers")
	}
}
