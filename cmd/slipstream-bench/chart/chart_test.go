// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/executed"
	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/forward"
	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/machine"
)

func result(t *testing.T, r *forward.Result) string {
	t.Helper()
	var b bytes.Buffer
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "result.json")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestChart(t *testing.T) {
	r := &forward.Result{
		Benchmark: "crr",
		Machine:   machine.Machine{Kernel: "6.12.1", CPU: "Some CPU", CPUs: 2},
		CRR:       &forward.CRROptions{Options: forward.Options{Rounds: 3, Nodes: 2, Family: forward.FamilyIPv6}, Connections: 100},
		Series: []*forward.Series{{Text: "latency, mean", Unit: forward.Nanoseconds, Better: forward.Less, Outcomes: []forward.Outcome{
			{Setting: forward.Settings[0], Values: []float64{100, 110, 120}, Median: 110},
			{Setting: forward.Settings[1], Values: []float64{120, 130, 150}, Median: 130},
		}}},
	}
	output := filepath.Join(t.TempDir(), "chart.svg")
	if err := run(result(t, r), output); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(output)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<svg", "crr over two nodes, ipv6: Linux 6.12.1, 2 x Some CPU, 3 rounds", ">latency<", ">mean<", "off: 110 ns", "no threshold: 130 ns", "(less is better)"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %q in the chart", want)
		}
	}
}

func TestChartOfNothing(t *testing.T) {
	if err := run(result(t, &forward.Result{}), filepath.Join(t.TempDir(), "chart.svg")); err == nil {
		t.Error("a chart of no series")
	}
	if err := run(filepath.Join(t.TempDir(), "none.json"), "chart.svg"); err == nil {
		t.Error("a chart of no file")
	}
}

func TestRules(t *testing.T) {
	r := &executed.Result{Benchmark: executed.Benchmark, Endpoints: 10}
	for i, name := range []string{"ours", "theirs"} {
		s := &executed.Subject{Name: name}
		for services := 10; services <= 1000; services *= 10 {
			c := executed.Count{Services: services, Rules: []int{20, 20 + i*services, 22 + i*services}}
			c.SumUp()
			s.Counts = append(s.Counts, c)
		}
		r.Subjects = append(r.Subjects, s)
	}
	input, output := filepath.Join(t.TempDir(), "rules.json"), filepath.Join(t.TempDir(), "rules.svg")
	save := func() {
		var b bytes.Buffer
		if err := r.WriteJSON(&b); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(input, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	save()
	if err := run(input, output); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(output)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<svg", "Services of 10 endpoints", ">ours<", ">theirs<", ">20<", ">1,020<", ">1,000<"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %q in the chart", want)
		}
	}
	r.Subjects = nil
	save()
	if err := run(input, output); err == nil {
		t.Error("a chart of no numbers")
	}
}
