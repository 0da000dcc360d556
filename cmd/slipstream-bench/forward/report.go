// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"fmt"
	"io"
	"slices"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/table"
)

// WriteTable writes the result for reading.
func (r *Result) WriteTable(w io.Writer) error {
	if err := r.writeHeader(w); err != nil {
		return err
	}
	t := &table.Table{}
	head := []string{""}
	for _, s := range r.settings() {
		head = append(head, s.Name)
	}
	t.Row(head...)
	for i, s := range r.Series {
		s.rows(t, i == 0 || !sameTurns(r.Series[i-1], s))
	}
	return t.Write(w)
}

func (r *Result) writeHeader(w io.Writer) error {
	o := r.Options()
	var turn string
	if r.CRR != nil {
		turn = table.Thousands(r.CRR.Connections) + " connections"
	} else {
		turn = fmt.Sprintf("%d s", r.Throughput.Seconds)
	}
	nodes := "one node"
	if o.Nodes > 1 {
		nodes = "two nodes"
	}
	m := r.Machine
	_, err := fmt.Fprintf(w, `%s: pod to pod by a ClusterIP over %s, %s; %d rounds of turns of %s
%s, load average %s before, %s after
`, r.Benchmark, nodes, o.Family, o.Rounds, turn, m, m.Load, r.LoadAfter)
	if err == nil && r.NoFastPath != "" {
		_, err = fmt.Fprintf(w, "only \"off\" is measured: %s\n", r.NoFastPath)
	}
	if err == nil {
		_, err = fmt.Fprintln(w)
	}
	return err
}

// rows writes a series: medians, how far values are apart, and the comparison.
func (s *Series) rows(t *table.Table, slowPath bool) {
	row := func(name string, cell func(Outcome) string) {
		cells := []string{name}
		for _, o := range s.Outcomes {
			cells = append(cells, cell(o))
		}
		t.Row(cells...)
	}
	// The first setting is what the others are compared with.
	compared := func(cell func(Outcome) string) func(Outcome) string {
		return func(o Outcome) string {
			if o.Setting == s.Outcomes[0].Setting {
				return ""
			}
			return cell(o)
		}
	}
	row(s.Text+", median", func(o Outcome) string { return s.Unit.Format(o.Median) })
	row("  lowest", func(o Outcome) string { return s.Unit.Format(slices.Min(o.Values)) })
	row("  highest", func(o Outcome) string { return s.Unit.Format(slices.Max(o.Values)) })
	if len(s.Outcomes) > 1 {
		row("  of off", compared(func(o Outcome) string { return fmt.Sprintf("%.3f", o.Ratio) }))
		row("  p, Mann-Whitney", compared(func(o Outcome) string { return fmt.Sprintf("%.2g", o.P) }))
	}
	if slowPath {
		row("  packets on the slow path", func(o Outcome) string { return fmt.Sprintf("%.1f %%", 100*o.SlowPath) })
	}
}

// sameTurns says whether two series were measured in the same turns.
func sameTurns(a, b *Series) bool {
	return slices.EqualFunc(a.Outcomes, b.Outcomes, func(x, y Outcome) bool { return x.SlowPath == y.SlowPath })
}

// Format writes a value with its unit.
func (u Unit) Format(x float64) string {
	if x < 0 { // a difference of two measurements can be
		return "-" + u.Format(-x)
	}
	switch u {
	case BitsPerSecond:
		return table.Digits(x/1e9) + " Gbit/s"
	case Nanoseconds:
		if x < 999.5 {
			return table.Digits(x) + " ns"
		}
		return table.Duration(x / 1e3)
	}
	return table.Thousands(int(x+0.5)) + " /s"
}
