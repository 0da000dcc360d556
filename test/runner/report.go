// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// report is the end of the output.
type report struct {
	result
	module  string // import path that package paths are shortened by
	kernels kernels
	strict  bool
}

// String returns the counts, such as "3 passed, 1 skipped".
func (c cell) String() string {
	var parts []string
	add := func(n int, what string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, what))
		}
	}
	add(c.passed, "passed")
	add(c.failed, "FAILED")
	add(c.skipped, "skipped")
	if parts == nil {
		return "no tests"
	}
	return strings.Join(parts, ", ")
}

func (r report) write(w io.Writer) {
	r.writeTable(w)
	r.writeSkips(w, verdictPassed, "Skipped on some kernel, passed on another:")
	r.writeSkips(w, verdictAllowed, "Skipped on every kernel, which is allowed:")
	r.writeFailures(w)
	r.writeNotRun(w)
	if r.passed+r.failed == 0 {
		fmt.Fprintln(w, "\nNO TESTS WERE RUN, which is a failure.")
	}
	fmt.Fprintln(w)
	r.writeFailedNames(w)
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
}

func (r report) writeTable(w io.Writer) {
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "package\ttests")
	for _, k := range r.kernels {
		fmt.Fprintf(table, "\t%s", k)
	}
	fmt.Fprintln(table)
	for _, row := range r.rows {
		fmt.Fprintf(table, "%s\t%d", shorten(row.pkg, r.module), row.tests)
		for _, k := range r.kernels {
			if c, ok := row.cells[k.String()]; ok {
				fmt.Fprintf(table, "\t%s", c)
			} else {
				fmt.Fprint(table, "\t-")
			}
		}
		fmt.Fprintln(table)
	}
	_ = table.Flush()
}

// writeSkips lists why tests of a verdict were skipped, and how many for each reason.
func (r report) writeSkips(w io.Writer, v verdict, title string) {
	counts := map[detail]int{}
	var order []detail
	for _, t := range r.tests {
		if t.verdict != v {
			continue
		}
		for _, d := range t.details {
			if counts[d] == 0 {
				order = append(order, d)
			}
			counts[d]++
		}
	}
	if len(order) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s\n", title)
	slices.SortStableFunc(order, func(a, b detail) int { return strings.Compare(a.kernel, b.kernel) })
	for _, d := range order {
		fmt.Fprintf(w, "  %s: %s: %s\n", d.kernel, tests(counts[d]), d.text)
	}
}

func tests(n int) string {
	if n == 1 {
		return "1 test"
	}
	return fmt.Sprintf("%d tests", n)
}

func (r report) writeFailures(w io.Writer) {
	for _, t := range r.tests {
		if t.verdict != verdictFailed {
			continue
		}
		for _, d := range t.details {
			fmt.Fprintf(w, "\nFAILED on %s: %s %s\n%s\n", d.kernel, shorten(t.pkg, r.module), t.name, indent(d.text))
		}
	}
}

// writeFailedNames says once more what failed, a line each: the end of an output is
// what people see of it.
func (r report) writeFailedNames(w io.Writer) {
	for _, t := range r.tests {
		switch {
		case t.verdict == verdictFailed:
			fmt.Fprintf(w, "failed: %s %s\n", shorten(t.pkg, r.module), t.name)
		case t.verdict == verdictNotRun && r.strict:
			fmt.Fprintf(w, "not run: %s %s\n", shorten(t.pkg, r.module), t.name)
		}
	}
}

func (r report) writeNotRun(w io.Writer) {
	var b strings.Builder
	n := 0
	for _, t := range r.tests {
		if t.verdict != verdictNotRun {
			continue
		}
		n++
		fmt.Fprintf(&b, "\n%s %s", shorten(t.pkg, r.module), t.name)
		for _, d := range t.details {
			fmt.Fprintf(&b, "\n    %s: %s", d.kernel, d.text)
		}
	}
	if n == 0 {
		return
	}
	consequence := "They count as failed."
	if !r.strict {
		consequence = "They would count as failed, were it not for -strict=false."
	}
	fmt.Fprintln(w)
	banner(w, fmt.Sprintf("NOT RUN ON ANY KERNEL: %s. %s", tests(n), consequence), strings.TrimPrefix(b.String(), "\n"))
}

func indent(text string) string {
	text = strings.TrimRight(text, "\n")
	return "    " + strings.ReplaceAll(text, "\n", "\n    ")
}
