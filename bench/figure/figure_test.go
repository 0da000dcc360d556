// SPDX-License-Identifier: Apache-2.0

package figure

import (
	"fmt"
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

func TestNothing(t *testing.T) {
	r := &bench.Result{Series: []*bench.Series{{Outcomes: []bench.Outcome{{}}}}, Subjects: []bench.Subject{{Name: "ours"}}}
	if _, err := Lines(r, "Services", "rules", 0); err == nil {
		t.Error("a chart of no numbers")
	}
}
