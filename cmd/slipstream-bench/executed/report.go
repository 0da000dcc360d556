// SPDX-License-Identifier: Apache-2.0

package executed

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/table"
)

// WriteTable writes the result for reading: a row for each number of Services, columns
// for each subject, and how many times as many rules as the first one's each other one
// has.
func (r *Result) WriteTable(w io.Writer) error {
	m := r.Machine
	_, err := fmt.Fprintf(w, `rules executed for the first packet of a new connection; Services of %s endpoints, at most %d of them drawn with seed %d
%s, load average %s before, %s after
`, table.Thousands(r.Endpoints), r.Sample, r.Seed, m, m.Load, r.LoadAfter)
	if err != nil {
		return err
	}
	for _, s := range r.Subjects {
		line := s.Name + ": " + s.Version
		if s.Failed != "" {
			cause, _, _ := strings.Cut(s.Failed, "\n")
			line += "; not all counted: " + cause
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	t := &table.Table{}
	t.Row()
	r.rows(t)
	return t.Write(w)
}

func (r *Result) rows(t *table.Table) {
	names, head := []string{""}, []string{"Services"}
	for i, s := range r.Subjects {
		names = append(names, s.Name, "", "")
		head = append(head, "median", "least", "most")
		if s.hasList() {
			names = append(names, "", "")
			head = append(head, "first", "last of list")
		}
		if i > 0 {
			names = append(names, "")
			head = append(head, "times")
		}
	}
	t.Row(names...)
	t.Row(head...)
	for _, n := range r.sizes() {
		cells := []string{table.Thousands(n)}
		for i, s := range r.Subjects {
			c, _ := s.With(n)
			cells = append(cells, number(c.Median), number(float64(c.Least)), number(float64(c.Most)))
			if s.hasList() {
				cells = append(cells, number(float64(c.First)), number(float64(c.Last)))
			}
			if i > 0 {
				first, _ := r.Subjects[0].With(n)
				cells = append(cells, table.Ratio(first.Median, c.Median))
			}
		}
		t.Row(cells...)
	}
}

// sizes are the numbers of Services.
func (r *Result) sizes() (all []int) {
	for _, s := range r.Subjects {
		for _, c := range s.Counts {
			if !slices.Contains(all, c.Services) {
				all = append(all, c.Services)
			}
		}
	}
	slices.Sort(all)
	return all
}

func (s *Subject) hasList() bool {
	return slices.ContainsFunc(s.Counts, func(c Count) bool { return c.Last > 0 })
}

// number writes a number of rules; a median may lie between two.
func number(n float64) string {
	switch {
	case n == 0:
		return "-"
	case n == float64(int(n)):
		return table.Thousands(int(n))
	}
	return table.Thousands(int(n)) + ".5"
}
