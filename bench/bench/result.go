// SPDX-License-Identifier: Apache-2.0

// Package bench is shared by all benchmarks: taking samples in turns, the
// statistics, the result with its JSON and its table, and the machine.
package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// Result has the results of a benchmark: some series, each for some subjects.
type Result struct {
	Benchmark string    `json:"benchmark"` // the command
	Title     string    `json:"title"`     // in one line
	Options   any       `json:"options"`
	Machine   Machine   `json:"machine"`
	LoadAfter string    `json:"load_average_after"`
	Subjects  []Subject `json:"subjects"` // the first one is what others are compared with
	Series    []*Series `json:"series"`
	Notes     []string  `json:"notes,omitempty"`
}

// Subject is one of the things that are compared: a proxy, or a setting.
type Subject struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	// Failed says why not everything was measured.
	Failed string `json:"failed,omitempty"`
}

// Better says which values of a series are better.
type Better string

const (
	More Better = "more"
	Less Better = "less"
)

// Series is one quantity, measured for all subjects.
type Series struct {
	Name   string      `json:"name"`
	Text   string      `json:"text"` // the name for readers
	Unit   Unit        `json:"unit"`
	Better Better      `json:"better,omitempty"`
	Show   []Statistic `json:"show"` // the rows of the table; none is the median alone
	// At is what the series were measured at, where there are several of one kind: the
	// number of Services.
	At int `json:"at,omitempty"`
	// Paired says that values with the same index were measured in the same round. Only
	// then is there a test of significance.
	Paired   bool      `json:"paired,omitempty"`
	Outcomes []Outcome `json:"outcomes"` // by subject
}

// Quantity is a series that has a value in each turn.
func Quantity(name, text string, unit Unit, better Better) Series {
	return Series{
		Name: name, Text: text, Unit: unit, Better: better, Paired: true,
		Show: []Statistic{P50, Lowest, Highest},
	}
}

// Outcome is the result of a series for one subject.
type Outcome struct {
	Values  []float64 `json:"values"` // in the order of measuring; none was measured if empty
	Median  float64   `json:"median"`
	Lowest  float64   `json:"lowest"`
	Highest float64   `json:"highest"`

	// Ratio compares with the first subject. It is the median of the ratios within each
	// round if the series is paired, and the ratio of the medians otherwise. Rounds in
	// which the first subject's value is not above 0 have no ratio; a difference of two
	// measurements may be such a value. 0 stands for none.
	Ratio float64 `json:"ratio,omitempty"`
	// P is the p-value of the two-sided Mann-Whitney test against the first subject.
	P float64 `json:"p,omitempty"`
}

// Samples are measured values by the name of their series.
type Samples map[string][]float64

// NewSamples are those of n subjects.
func NewSamples(n int) []Samples {
	all := make([]Samples, n)
	for i := range all {
		all[i] = Samples{}
	}
	return all
}

// Add adds values to a series.
func (s Samples) Add(name string, values ...float64) { s[name] = append(s[name], values...) }

// Fill adds the series with the samples of each subject. Series without any values are left
// out.
func (r *Result) Fill(series []Series, bySubject []Samples) error {
	for _, s := range series {
		s.Outcomes = nil
		measured := false
		for i, samples := range bySubject {
			o := Outcome{Values: samples[s.Name], Median: Median(samples[s.Name])}
			if len(o.Values) > 0 {
				measured, o.Lowest, o.Highest = true, slices.Min(o.Values), slices.Max(o.Values)
			}
			if first := bySubject[0][s.Name]; i > 0 && len(o.Values) > 0 && len(first) > 0 {
				if err := s.compare(&o, first); err != nil {
					return err
				}
			}
			s.Outcomes = append(s.Outcomes, o)
		}
		if measured {
			r.Series = append(r.Series, &s)
		}
	}
	return nil
}

// compare sets an outcome's ratio, and its p-value if the series is paired.
func (s *Series) compare(o *Outcome, first []float64) (err error) {
	o.Ratio = ratio(Median(first), o.Median)
	if !s.Paired {
		return nil
	}
	if len(first) != len(o.Values) {
		return fmt.Errorf("%s: %d and %d values are not pairs", s.Name, len(first), len(o.Values))
	}
	var ratios []float64
	for i, v := range o.Values {
		if first[i] > 0 {
			ratios = append(ratios, v/first[i])
		}
	}
	o.Ratio = Median(ratios)
	o.P, err = MannWhitney(o.Values, first)
	return err
}

func ratio(base, value float64) float64 {
	if base <= 0 {
		return 0
	}
	return value / base
}

// Find is the series of a name; nil if there is none.
func (r *Result) Find(name string) *Series {
	if i := slices.IndexFunc(r.Series, func(s *Series) bool { return s.Name == name }); i >= 0 {
		return r.Series[i]
	}
	return nil
}

// Failures is an error with every subject that failed.
func (r *Result) Failures() (err error) {
	for _, s := range r.Subjects {
		if s.Failed != "" {
			err = errors.Join(err, fmt.Errorf("%s: %s", s.Name, s.Failed))
		}
	}
	return err
}

// Write writes the result as a table to out and, if save is not empty, as JSON to a file of that name.
func (r *Result) Write(out io.Writer, save string) error {
	err := r.WriteTable(out)
	if save == "" {
		return err
	}
	b, failed := json.MarshalIndent(r, "", "  ")
	if failed == nil {
		failed = os.WriteFile(save, append(b, '\n'), 0o644)
	}
	return errors.Join(err, failed)
}

// WriteTable writes the result for reading: a column for each subject, and beside each
// but the first one the comparison with the first.
func (r *Result) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s, load average %s before, %s after\n", r.Title, r.Machine, r.Machine.Load, r.LoadAfter)
	head := []string{""}
	for i, s := range r.Subjects {
		cause, _, _ := strings.Cut(s.Failed, "\n")
		if cause != "" {
			cause = "not all measured: " + cause
		}
		if about := strings.Trim(s.Version+"; "+cause, "; "); about != "" {
			fmt.Fprintf(&b, "%s: %s\n", s.Name, about)
		}
		head = append(head, s.Name)
		if i > 0 {
			head = append(head, "ratio")
		}
	}
	for _, n := range r.Notes {
		fmt.Fprintln(&b, n)
	}
	fmt.Fprintln(&b)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(head, "\t"))
	for _, s := range r.Series {
		for _, row := range s.rows() {
			fmt.Fprintln(t, strings.TrimRight(strings.Join(row, "\t"), "\t"))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (s *Series) rows() (all [][]string) {
	var counts []string
	repeated := false
	for _, o := range s.Outcomes {
		repeated = repeated || len(o.Values) > 1
		if len(o.Values) > 0 {
			counts = append(counts, Thousands(len(o.Values)))
		}
	}
	counts = slices.Compact(counts)
	show := s.Show
	if len(show) == 0 {
		show = []Statistic{P50}
	}
	for i, statistic := range show {
		text := "  " + string(statistic)
		switch {
		case i > 0 && !repeated:
			continue // of one value they are all the same
		case i == 0 && repeated && !strings.HasPrefix(s.Text, " "): // parts have the count of the whole
			text = fmt.Sprintf("%s, %s of %s", s.Text, statistic, strings.Join(counts, ", "))
		case i == 0:
			text = s.Text
		}
		row := []string{text}
		for k, o := range s.Outcomes {
			cell := "-"
			if len(o.Values) > 0 {
				cell = s.Unit.Format(statistic.of(o.Values))
			}
			row = append(row, cell)
			if k > 0 {
				row = append(row, s.compared(i, statistic, o))
			}
		}
		all = append(all, row)
	}
	return all
}

// compared is the cell beside a value in row i. Extremes are not compared, nor are shares.
func (s *Series) compared(i int, statistic Statistic, o Outcome) string {
	first := s.Outcomes[0].Values
	switch {
	case len(first) == 0 || len(o.Values) == 0 || s.Unit == Percent || statistic == Lowest || statistic == Highest:
		return ""
	case !s.Paired:
		return Digits(ratio(statistic.of(first), statistic.of(o.Values)))
	case i == 0 && o.Ratio != 0:
		return fmt.Sprintf("%.3f (p = %.2g)", o.Ratio, o.P)
	}
	return ""
}

// Digits writes a ratio to two digits, and all digits before the point; nothing for 0.
func Digits(r float64) string {
	switch {
	case r <= 0:
		return ""
	case r < 0.95:
		return fmt.Sprintf("%.2g", r)
	case r < 9.95:
		return fmt.Sprintf("%.1f", r)
	}
	unit := math.Pow(10, math.Floor(math.Log10(r))-1)
	return Thousands(int(math.Round(r/unit) * unit))
}

// Unit is the unit of a series' values.
type Unit string

const (
	BitsPerSecond Unit = "bit/s"
	PerSecond     Unit = "1/s"
	Nanoseconds   Unit = "ns"
	Bytes         Unit = "B"
	Percent       Unit = "%"
	Count         Unit = ""
)

type scale struct {
	factor float64
	suffix string
}

var scales = map[Unit][]scale{
	BitsPerSecond: {{1e9, " Gbit/s"}},
	PerSecond:     {{1, " /s"}},
	Nanoseconds:   {{1, " ns"}, {1e3, " µs"}, {1e6, " ms"}, {1e9, " s"}},
	Bytes:         {{1, " B"}, {1e3, " kB"}, {1e6, " MB"}, {1e9, " GB"}},
	Percent:       {{1, " %"}},
	Count:         {{1, ""}},
}

// Format writes a value with its unit, to three digits, or to the whole number where
// that has more.
func (u Unit) Format(x float64) string {
	if x < 0 { // a difference of two measurements can be
		return "-" + u.Format(-x)
	}
	s := scales[u][0]
	for _, larger := range scales[u][1:] {
		if x >= 0.9995*larger.factor {
			s = larger
		}
	}
	x /= s.factor
	switch {
	case u == Percent:
		return fmt.Sprintf("%.1f%s", x, s.suffix)
	case x == math.Trunc(x) && (u == Count || u == PerSecond || s.suffix == " B"), x >= 99.95 && u != Count:
		return Thousands(int(math.Round(x))) + s.suffix
	case u == Count: // a median between two
		return Thousands(int(x)) + fmt.Sprintf("%.1f", x-math.Trunc(x))[1:]
	case x < 9.995:
		return fmt.Sprintf("%.2f%s", x, s.suffix)
	}
	return fmt.Sprintf("%.1f%s", x, s.suffix)
}

// Thousands writes a whole number with commas.
func Thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
