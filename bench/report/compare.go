// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math"
	"strings"

	"github.com/slipstream-proxy/slipstream/bench/bench"
)

// cell is a value on the page, with its range below it.
type cell struct {
	Text  string
	Range string // "lowest to highest of n", if there are several values
	// Missing says why there is no value.
	Missing string
}

// outcome is what a step has measured of a series for a subject.
func (r *result) outcome(series, subject string) (s *bench.Series, o *bench.Outcome, missing string) {
	switch {
	case r == nil:
		return nil, nil, notMeasured
	case r.Result == nil:
		return nil, nil, "not measured: " + firstLine(r.Failed)
	}
	s = r.Result.Find(series)
	for i, one := range r.Result.Subjects {
		switch {
		case one.Name != subject:
		case s != nil && len(s.Outcomes[i].Values) > 0:
			return s, &s.Outcomes[i], ""
		case one.Failed != "":
			return nil, nil, "given up: " + firstLine(one.Failed)
		}
	}
	return nil, nil, notMeasured
}

// notMeasured is why there is no value if nothing better is known.
const notMeasured = "not measured in this run"

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// cell has the median, or a percentile if that is not 0.
func (r *result) cell(series, subject string, percentile float64) cell {
	s, o, missing := r.outcome(series, subject)
	if missing != "" {
		return cell{Missing: missing}
	}
	if percentile > 0 {
		return cell{Text: s.Unit.Format(bench.Percentile(o.Values, percentile)), Range: fmt.Sprintf("n = %d", len(o.Values))}
	}
	c := cell{Text: s.Unit.Format(o.Median)}
	if len(o.Values) > 1 {
		c.Range = fmt.Sprintf("%s to %s, n = %s", s.Unit.Format(o.Lowest), s.Unit.Format(o.Highest), bench.Thousands(len(o.Values)))
	}
	return c
}

// compare says in text how the values of a series of ours compare with those of theirs: by how much if the
// Mann-Whitney test shows a difference, else that none was seen, or that there are too few values
// to say. gain is how many times ours is better, or empty without a difference.
func (r *result) compare(from, theirs, series, ours string) (text, gain string) {
	_, t, _ := r.outcome(from, theirs)
	s, o, _ := r.outcome(series, ours)
	if t == nil || o == nil {
		return "nothing to compare", ""
	}
	ratio := 0.0
	switch base := bench.Median(t.Values); {
	case s.Unit == bench.Percent && from == series:
	case s.Paired && from == series && theirs == r.Result.Subjects[0].Name:
		ratio = o.Ratio // the median of those within each round
	case base > 0:
		ratio = bench.Median(o.Values) / base
	}
	text, shown := comparison(t.Values, o.Values, ratio)
	switch {
	case !shown || ratio <= 0:
	case s.Better == bench.More:
		gain = digits(ratio) + "x"
	default:
		gain = digits(1/ratio) + "x"
	}
	return text, gain
}

// comparison is the text of [result.compare], and whether a difference is shown. A ratio that is not above 0 is left
// out, as that of shares.
func comparison(theirs, ours []float64, ratio float64) (compared string, shown bool) {
	p, err := bench.MannWhitney(ours, theirs)
	if err != nil {
		p = 1
	}
	text := "different"
	if ratio > 0 {
		text = times(ratio)
	}
	switch few := leastP(len(theirs), len(ours)) >= bench.Significant; {
	case few && ratio > 0:
		return text + "; too few values to test", false
	case few:
		return "too few values to test", false
	case p >= bench.Significant:
		return fmt.Sprintf("%s (p = %s)", noDifference, digits(p)), false
	}
	return fmt.Sprintf("%s (p = %s)", text, digits(p)), true
}

const noDifference = "no difference seen"

// leastP is the smallest p-value that the two-sided Mann-Whitney test can have with m and n values:
// two of all the orders there are.
func leastP(m, n int) float64 {
	orders := 1.0
	for i := 1; i <= m; i++ {
		orders *= float64(n+i) / float64(i)
	}
	return 2 / orders
}

// times says how a ratio of ours to theirs is read.
func times(ratio float64) string {
	switch {
	case math.Abs(ratio-1) < 0.005:
		return "1.00 times"
	case ratio < 0.5:
		return "1/" + digits(1/ratio) + " of it"
	case ratio < 10:
		return fmt.Sprintf("%.2f times", ratio)
	}
	return digits(ratio) + " times"
}

// digits writes two digits, and all digits before the point.
func digits(x float64) string {
	switch {
	case x >= 10:
		return bench.Digits(x)
	case x >= 0.001:
		return fmt.Sprintf("%.2g", x)
	}
	return fmt.Sprintf("%.0e", x)
}
