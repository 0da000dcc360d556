// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func sequence(from, n int) (all []float64) {
	for i := range n {
		all = append(all, float64(from+i))
	}
	return all
}

func TestMannWhitney(t *testing.T) {
	tests := []struct {
		name          string
		first, second []float64
		want          float64
	}{
		// Exact: of the C(10, 5) = 252 ways to rank, one has all of the first on top, and
		// one all at the bottom.
		{"all greater", sequence(6, 5), sequence(1, 5), 2. / 252},
		{"all less", sequence(1, 5), sequence(6, 5), 2. / 252},
		{"one each", sequence(2, 1), sequence(1, 1), 1},
		// U is 21 of 25; of the 252 ways, 1+1+2+3+5 have 21 or more.
		{"mixed", []float64{3, 6, 8, 9, 10}, []float64{1, 2, 4, 5, 7}, 2 * 12. / 252},
		// The example of wilcox.test in R, from Hollander and Wolfe (1973), page 69:
		// permeability constants of the human chorioamnion. One-sided it is 0.1272.
		{
			"Hollander and Wolfe",
			[]float64{0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46},
			[]float64{1.15, 0.88, 0.90, 0.74, 1.21}, 0.2544,
		},
		{"all equal", []float64{1, 1, 1}, []float64{1, 1, 1}, 1},
	}
	for _, test := range tests {
		got, err := MannWhitney(test.first, test.second)
		if err != nil || math.Abs(got-test.want) > 1e-4 {
			t.Errorf("%s: p = %.5f, %v; want %.5f", test.name, got, err, test.want)
		}
	}
	if _, err := MannWhitney(nil, sequence(1, 3)); err == nil {
		t.Error("no error without values")
	}
}

func TestMedianAndPercentile(t *testing.T) {
	hundred := sequence(1, 100)
	slices.Reverse(hundred)
	tests := []struct {
		name             string
		values           []float64
		median, p99, p50 float64
	}{
		{"none", nil, 0, 0, 0},
		{"one", []float64{7}, 7, 7, 7},
		{"two", []float64{8, 4}, 6, 8, 4},
		{"odd, out of order", []float64{9, 1, 5}, 5, 9, 5},
		{"even", []float64{40, 10, 20, 30}, 25, 40, 20},
		{"an outlier", []float64{1, 1, 1, 1000}, 1, 1000, 1},
		{"hundred", hundred, 50.5, 99, 50},
	}
	for _, test := range tests {
		before := slices.Clone(test.values)
		if got := Median(test.values); got != test.median {
			t.Errorf("%s: median %v, want %v", test.name, got, test.median)
		}
		if got := Percentile(test.values, 99); got != test.p99 {
			t.Errorf("%s: 99th percentile %v, want %v", test.name, got, test.p99)
		}
		if got := Percentile(test.values, 50); got != test.p50 {
			t.Errorf("%s: 50th percentile %v, want %v", test.name, got, test.p50)
		}
		if !slices.Equal(before, test.values) {
			t.Errorf("%s: the values were changed", test.name)
		}
	}
}

// Each subject has each place in the order equally often, and follows each other one
// equally often in a round.
func TestOrderIsBalanced(t *testing.T) {
	for n := 1; n <= 4; n++ {
		places, follows := map[[2]int]int{}, map[[2]int]int{}
		for round := range 2 * n {
			turns := Order(n, round)
			if sorted := slices.Sorted(slices.Values(turns)); !slices.Equal(sorted, []int{0, 1, 2, 3}[:n]) {
				t.Fatalf("%d subjects, round %d: %v", n, round, turns)
			}
			for place, subject := range turns {
				places[[2]int{place, subject}]++
				if place > 0 {
					follows[[2]int{turns[place-1], subject}]++
				}
			}
		}
		for what, count := range places {
			if count != 2 {
				t.Errorf("%d subjects: %d times in place %d is %d, want 2", n, count, what[0], what[1])
			}
		}
		for a := range n {
			for b := range n {
				ab, ba := follows[[2]int{a, b}], follows[[2]int{b, a}]
				if ab != ba {
					t.Errorf("%d subjects: %d follows %d %d times, but %d follows %d %d times", n, b, a, ab, a, b, ba)
				}
			}
		}
	}
}

func TestTurns(t *testing.T) {
	var all [][2]int
	samples := NewSamples(3)
	err := Turns(t.Context(), 2, 3, func(round, subject int) error {
		all = append(all, [2]int{round, subject})
		samples[subject].Add("round", float64(round))
		return nil
	})
	if want := [][2]int{{0, 0}, {0, 1}, {0, 2}, {1, 1}, {1, 2}, {1, 0}}; err != nil || !slices.Equal(all, want) {
		t.Errorf("%v, %v; want %v", all, err, want)
	}
	for i, s := range samples {
		if !slices.Equal(s["round"], []float64{0, 1}) {
			t.Errorf("subject %d: %v", i, s)
		}
	}
	broken := errors.New("broken")
	if err := Turns(t.Context(), 2, 3, func(_, _ int) error { return broken }); err != broken {
		t.Errorf("error %v", err)
	}
}

func TestFormat(t *testing.T) {
	tests := []struct{ got, want string }{
		{Nanoseconds.Format(500), "500 ns"},
		{Nanoseconds.Format(999.4), "999 ns"},
		{Nanoseconds.Format(12_340), "12.3 µs"},
		{Nanoseconds.Format(999_600), "1.00 ms"},
		{Nanoseconds.Format(99_960_000), "100 ms"},
		{Nanoseconds.Format(2_500_000_000), "2.50 s"},
		{Nanoseconds.Format(1_234e9), "1,234 s"},
		{Nanoseconds.Format(-40), "-40.0 ns"},
		{Bytes.Format(999), "999 B"},
		{Bytes.Format(1_500), "1.50 kB"},
		{Bytes.Format(80_000_000), "80.0 MB"},
		{Bytes.Format(1_220_000_000), "1.22 GB"},
		{BitsPerSecond.Format(4.78e9), "4.78 Gbit/s"},
		{PerSecond.Format(74_800.4), "74,800 /s"},
		{Percent.Format(0.21), "0.2 %"},
		{Count.Format(130_031), "130,031"},
		{Count.Format(5_283.5), "5,283.5"},
		{Digits(1.5), "1.5"},
		{Digits(1.96), "2.0"},
		{Digits(0.0123), "0.012"},
		{Digits(9.96), "10"},
		{Digits(99.4), "99"},
		{Digits(996), "1,000"},
		{Digits(41_000.5), "41,000"},
		{Digits(0), ""},
		{Thousands(0), "0"},
		{Thousands(999), "999"},
		{Thousands(1000), "1,000"},
		{Thousands(1234567), "1,234,567"},
	}
	for _, test := range tests {
		if test.got != test.want {
			t.Errorf("%q, want %q", test.got, test.want)
		}
	}
}

// someResult has a paired series in which the second setting is twice as fast while the
// machine becomes faster, and one that is not paired and was not measured for all subjects.
func someResult(t *testing.T) *Result {
	t.Helper()
	r := &Result{
		Benchmark: "throughput", Title: "throughput: 5 rounds", Options: map[string]any{"rounds": 5.0},
		Machine:   Machine{Kernel: "6.12.1", CPU: "Some CPU", CPUs: 2, Go: "go1.26", Load: "0.10"},
		LoadAfter: "1.20",
		Subjects:  []Subject{{Name: "off"}, {Name: "on", Version: "v1"}, {Name: "none", Failed: "it ended\nwith a log"}},
		Notes:     []string{"a note"},
	}
	err := r.Fill([]Series{
		{Name: "stream", Text: "stream", Unit: BitsPerSecond, Better: More, Paired: true, Show: []Statistic{P50, Lowest, Highest}},
		{Name: "start", Text: "start", Unit: Nanoseconds, Better: Less},
		{Name: "change", Text: "change", Unit: Nanoseconds, Better: Less, Show: []Statistic{P50, P99, Highest}},
		{Name: "part", Text: "  part", Unit: Nanoseconds, Better: Less},
		{Name: "slow", Text: "slow path", Unit: Percent, Better: Less},
		{Name: "nothing", Text: "nothing", Unit: Count},
	}, []Samples{
		{"stream": {10e9, 11e9, 12e9, 13e9, 14e9}, "start": {2e9}, "change": sequence(1, 1000), "part": {1, 2, 3}, "slow": {100}},
		{"stream": {20e9, 22e9, 24e9, 26e9, 28e9}, "start": {300e9}, "change": {1e6, 2e6, 6e6}, "slow": {0.21}},
		{},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestFill(t *testing.T) {
	r := someResult(t)
	if len(r.Series) != 5 {
		t.Fatalf("%d series, want the 5 that were measured", len(r.Series))
	}
	s := r.Find("stream")
	off, on, none := s.Outcomes[0], s.Outcomes[1], s.Outcomes[2]
	if off.Median != 12e9 || off.Ratio != 0 || off.P != 0 {
		t.Errorf("off: %+v", off)
	}
	// Of the C(10, 5) = 252 ways to rank, two are as extreme.
	if on.Median != 24e9 || on.Lowest != 20e9 || on.Highest != 28e9 || on.Ratio != 2 || math.Abs(on.P-2./252) > 1e-9 {
		t.Errorf("on: %+v", on)
	}
	if !reflect.DeepEqual(none, Outcome{}) {
		t.Errorf("not measured: %+v", none)
	}
	if got := r.Find("start").Outcomes[1]; got.Ratio != 150 || got.P != 0 {
		t.Errorf("%+v", got)
	}
	if r.Find("nothing") != nil {
		t.Error("a series of nothing")
	}
	if err := r.Fill([]Series{{Name: "a", Paired: true}}, []Samples{{"a": {1, 2}}, {"a": {1}}}); err == nil {
		t.Error("no error for values that are not pairs")
	}
}

// Differences can be 0 and less; nothing is a multiple of those.
func TestRatiosOfDifferences(t *testing.T) {
	r := &Result{}
	err := r.Fill([]Series{{Name: "cost", Paired: true}}, []Samples{{"cost": {0, -1, 10, 20, 40}}, {"cost": {20, 22, 24, 26, 28}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Series[0].Outcomes[1].Ratio; got != 1.3 { // of 2.4, 1.3 and 0.7
		t.Errorf("ratio %v, want 1.3", got)
	}
}

func TestWriteTable(t *testing.T) {
	var got strings.Builder
	if err := someResult(t).Write(&got, ""); err != nil {
		t.Fatal(err)
	}
	want := `throughput: 5 rounds
Linux 6.12.1, 2 x Some CPU, go1.26, load average 0.10 before, 1.20 after
on: v1
none: not all measured: it ended
a note

                            off          on           ratio              none  ratio
stream, median of 5         12.0 Gbit/s  24.0 Gbit/s  2.000 (p = 0.0079)  -
  lowest                    10.0 Gbit/s  20.0 Gbit/s                     -
  highest                   14.0 Gbit/s  28.0 Gbit/s                     -
start                       2.00 s       300 s        150                -
change, median of 1,000, 3  501 ns       2.00 ms      4,000              -
  99th percentile           990 ns       6.00 ms      6,100              -
  highest                   1.00 µs      6.00 ms                         -
  part                      2.00 ns      -                               -
slow path                   100.0 %      0.2 %                           -
`
	normal := func(s string) (lines []string) { // without the alignment, which is tabwriter's
		for line := range strings.Lines(s) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		return lines
	}
	if !slices.Equal(normal(got.String()), normal(want)) {
		t.Errorf("got\n%swant\n%s", &got, want)
	}
}

// The result is saved beside the printed table, and can be decoded.
func TestJSON(t *testing.T) {
	r := someResult(t)
	save := filepath.Join(t.TempDir(), "result.json")
	var printed strings.Builder
	if err := r.Write(&printed, save); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(save)
	if err != nil || !strings.HasPrefix(printed.String(), r.Title) {
		t.Errorf("%v; printed:\n%s", err, &printed)
	}
	var back Result
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(&back, r) {
		t.Errorf("read back %+v, want %+v", &back, r)
	}
	if err := r.Write(&printed, filepath.Join(save, "x")); err == nil {
		t.Error("no error for a file that cannot be written")
	}
}

func TestFailures(t *testing.T) {
	if err := someResult(t).Failures(); err == nil || !strings.HasPrefix(err.Error(), "none: it ended") {
		t.Errorf("error %v", err)
	}
	if err := (&Result{Subjects: []Subject{{Name: "a"}}}).Failures(); err != nil {
		t.Error(err)
	}
}

func TestMachine(t *testing.T) {
	tests := []struct{ cpuinfo, want string }{
		{"processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: Other\n", "Some CPU @ 2 GHz"},
		{"processor\t: 0\n\nModel\t\t: Raspberry Pi 4\n", "Raspberry Pi 4"},
		{"", "unknown"},
	}
	for _, test := range tests {
		if got := cpuModel(test.cpuinfo); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
	m := ThisMachine()
	if m.Kernel == "" || m.CPUs < 1 || m.Load == "" || !strings.HasPrefix(m.String(), "Linux "+m.Kernel) {
		t.Errorf("%+v", m)
	}
	if s, err := ProcessorSeconds(); err != nil || s.Busy <= 0 || s.Idle < 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

// The processor time is that of this process and of the commands that it has run.
func TestUsed(t *testing.T) {
	before, err := Used(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const half = 300 * time.Millisecond
	for now := before; now-before < half; {
		if now, err = Used(os.Getpid()); err != nil {
			t.Fatal(err)
		}
	}
	// A command that works until it has used that much.
	script := `while read -r _ _ _ _ _ _ _ _ _ _ _ _ _ u s _ < /proc/$$/stat; [ $((u + s)) -lt 30 ]; do :; done`
	if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	after, err := Used(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if got := after - before; got < 2*half || got > 60*half {
		t.Errorf("used %v, want %v and a little", got, 2*half)
	}
	if m, err := Memory(os.Getpid()); err != nil || m.VmHWM < 1<<20 || m.VmRSS > m.VmHWM {
		t.Errorf("memory: %+v, %v", m, err)
	}
}
