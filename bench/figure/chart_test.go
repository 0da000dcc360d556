// SPDX-License-Identifier: Apache-2.0

package figure

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/bench/bench"
)

// chart draws a result, and returns the picture's text.
func chart(t *testing.T, r *bench.Result, title, series string) (string, error) {
	t.Helper()
	input, output := filepath.Join(t.TempDir(), "result.json"), filepath.Join(t.TempDir(), "chart.svg")
	var printed strings.Builder
	if err := r.Write(&printed, "json", input); err != nil {
		t.Fatal(err)
	}
	o := Options{Output: output, Title: title}
	if series != "" {
		o.Series = strings.Split(series, ",")
	}
	if err := Draw(input, o); err != nil {
		return "", err
	}
	b, err := os.ReadFile(output)
	return string(b), err
}

func TestBars(t *testing.T) {
	r := &bench.Result{Benchmark: "crr", Title: "crr over two nodes", Subjects: []bench.Subject{{Name: "off"}, {Name: "no threshold"}}}
	err := r.Fill([]bench.Series{
		{Name: "crr_mean", Text: "latency, mean", Unit: bench.Nanoseconds, Better: bench.Less, Paired: true},
		{Name: "crr_rate", Text: "connections a second", Unit: bench.PerSecond, Better: bench.More, Paired: true},
	}, []bench.Samples{
		{"crr_mean": {100, 110, 120}, "crr_rate": {10, 11, 12}},
		{"crr_mean": {130, 143, 156}, "crr_rate": {20, 22, 24}},
	})
	if err != nil {
		t.Fatal(err)
	}
	svg, err := chart(t, r, "", "crr_mean")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<svg", ">crr over two nodes<", ">   latency, mean<", ">110 ns<", ">1.30x, 143 ns<", ">no threshold<", "(less is better)"} {
		if !strings.Contains(svg, want) {
			t.Errorf("no %q in the chart", want)
		}
	}
	if strings.Contains(svg, "connections a second") {
		t.Error("a series that was not asked for is in the chart")
	}
	if svg, err = chart(t, r, "Another title", "crr_rate"); err != nil || !strings.Contains(svg, ">Another title<") {
		t.Errorf("the title is not in the chart: %v", err)
	}
	for _, series := range []string{"", "nothing"} { // different directions in one chart; no such series
		if _, err := chart(t, r, "", series); err == nil {
			t.Errorf("-series %q: no error", series)
		}
	}
}

func TestLines(t *testing.T) {
	r := &bench.Result{Benchmark: "rules", Title: "Rules", Subjects: []bench.Subject{{Name: "ours"}, {Name: "theirs"}}}
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
	svg, err := chart(t, r, "", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<svg", ">Rules<", ">ours<", ">theirs<", ">20<", ">1,020<", ">1,000<"} {
		if !strings.Contains(svg, want) {
			t.Errorf("no %q in the chart", want)
		}
	}
}

func TestNothing(t *testing.T) {
	for _, benchmark := range []string{"crr", "rules"} {
		if _, err := chart(t, &bench.Result{Benchmark: benchmark}, "", ""); err == nil {
			t.Errorf("%s: a chart of no numbers", benchmark)
		}
	}
	if err := Draw(filepath.Join(t.TempDir(), "none.json"), Options{Output: "chart.svg"}); err == nil {
		t.Error("a chart of no file")
	}
}
