// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/machine"
)

func someResult() *Result {
	return &Result{
		Benchmark:  "throughput",
		Machine:    machine.Machine{Kernel: "6.12.1", CPU: "Some CPU", CPUs: 2, Go: "go1.26", Load: "0.10"},
		LoadAfter:  "1.20",
		Throughput: &ThroughputOptions{Options: Options{Rounds: 3, Nodes: 2, Family: FamilyIPv4}, Seconds: 1, Measures: Measures},
		Series: []*Series{
			{Name: "a", Text: "stream", Unit: BitsPerSecond, Better: More, Outcomes: []Outcome{
				{Setting: Settings[0], Values: []float64{4e9, 5e9, 6e9}, Median: 5e9, Ratio: 1, P: 1, SlowPath: 1},
				{Setting: Settings[1], Values: []float64{9e9, 10e9, 11e9}, Median: 10e9, Ratio: 2.04, P: 0.1},
				{Setting: Settings[2], Values: []float64{8e9, 10e9, 11e9}, Median: 10e9, Ratio: 2, P: 0.1, SlowPath: 0.0021},
			}},
			{Name: "b", Text: "cost", Unit: Nanoseconds, Better: Less, Outcomes: []Outcome{
				{Setting: Settings[0], Values: []float64{400, 1500}, Median: 400, Ratio: 1, P: 1, SlowPath: 1},
				{Setting: Settings[1], Values: []float64{-40, 100}, Median: 100, Ratio: 0.25, P: 0.00123},
				{Setting: Settings[2], Values: []float64{100, 100}, Median: 100, Ratio: 0.25, P: 0.02, SlowPath: 0.0021},
			}},
		},
	}
}

func TestWriteTable(t *testing.T) {
	var got strings.Builder
	if err := someResult().WriteTable(&got); err != nil {
		t.Fatal(err)
	}
	want := "" +
		"throughput: pod to pod by a ClusterIP over two nodes, ipv4; 3 rounds of turns of 1 s\n" +
		"Linux 6.12.1, 2 x Some CPU, go1.26, load average 0.10 before, 1.20 after\n" +
		"\n" +
		"                                  off  no threshold  threshold 20\n" +
		"stream, median            5.00 Gbit/s   10.0 Gbit/s   10.0 Gbit/s\n" +
		"  lowest                  4.00 Gbit/s   9.00 Gbit/s   8.00 Gbit/s\n" +
		"  highest                 6.00 Gbit/s   11.0 Gbit/s   11.0 Gbit/s\n" +
		"  of off                                      2.040         2.000\n" +
		"  p, Mann-Whitney                               0.1           0.1\n" +
		"  packets on the slow path    100.0 %         0.0 %         0.2 %\n" +
		"cost, median                   400 ns        100 ns        100 ns\n" +
		"  lowest                       400 ns     -40.0 ns        100 ns\n" +
		"  highest                     1.50 µs        100 ns        100 ns\n" +
		"  of off                                      0.250         0.250\n" +
		"  p, Mann-Whitney                            0.0012          0.02\n"
	if normal(got.String()) != normal(want) {
		t.Errorf("got\n%swant\n%s", &got, want)
	}
}

// normal is text with single spaces: how columns are aligned is package table's.
func normal(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = strings.Join(strings.Fields(l), " ")
	}
	return strings.Join(lines, "\n")
}

func TestWriteTableWithoutFastPath(t *testing.T) {
	r := someResult()
	r.NoFastPath = "the kernel has no flowtables"
	for _, s := range r.Series {
		s.Outcomes = s.Outcomes[:1]
	}
	var got strings.Builder
	if err := r.WriteTable(&got); err != nil {
		t.Fatal(err)
	}
	if want := "only \"off\" is measured: the kernel has no flowtables\n"; !strings.Contains(got.String(), want) {
		t.Errorf("got\n%swant %q in it", &got, want)
	}
	for _, not := range []string{"threshold", "of off", "Mann-Whitney"} {
		if strings.Contains(got.String(), not) {
			t.Errorf("got\n%swant no %q in it", &got, not)
		}
	}
}

func TestWriteJSON(t *testing.T) {
	r := someResult()
	var b bytes.Buffer
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"rounds": 3`, `"seconds_per_turn": 1`, `"threshold": 20`, `"slow_path": 0.0021`, `"kernel": "6.12.1"`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %s in\n%s", want, &b)
		}
	}
	var back Result
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(&back, r) {
		t.Errorf("read back %+v, want %+v", &back, r)
	}
}
