// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// linesAtOnce is how many lines of a failed test are shown as soon as its package ends.
// The report at the end has all of them.
const linesAtOnce = 12

// summary returns a line for a package that ended on a kernel, and its failures, which
// are then in the output even if it breaks off before the report.
func (r packageRun) summary() string {
	total := merge([]packageRun{r}, false)
	status := "ok  "
	if total.failed > 0 {
		status = "FAIL"
	}
	s := fmt.Sprintf("%s  %-24s %-28s %s (%v)\n", status, r.kernel, r.pkg, total, r.elapsed.Round(10*time.Millisecond))
	for _, t := range total.with(failed) {
		lines := strings.Split(strings.TrimSpace(t.details[0].text), "\n")
		if len(lines) > linesAtOnce {
			lines = append(lines[:linesAtOnce], "(more at the end)")
		}
		s += fmt.Sprintf("      %s\n%s\n", t.name, indent(indent(strings.Join(lines, "\n"))))
	}
	return s
}

// String returns the counts.
func (r result) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", r.passed, r.failed, r.skipped)
}

// with returns the tests of an outcome.
func (r result) with(o outcome) []mergedTest {
	return slices.DeleteFunc(slices.Clone(r.tests), func(t mergedTest) bool { return t.outcome != o })
}

// write prints the report, the most important parts last.
func (r result) write(w io.Writer, strict bool) {
	skips := map[string]int{} // number of tests by kernel and reason
	for _, t := range r.with(passed) {
		for _, d := range t.details {
			skips[d.kernel+": "+d.text]++
		}
	}
	if len(skips) > 0 {
		fmt.Fprintln(w, "\nSkipped on some kernel, passed on another:")
	}
	for _, reason := range slices.Sorted(maps.Keys(skips)) {
		fmt.Fprintf(w, "  %s (%s)\n", reason, tests(skips[reason]))
	}

	names := ""
	for _, t := range r.with(failed) {
		for _, d := range t.details {
			fmt.Fprintf(w, "\nFAILED on %s: %s %s\n%s\n", d.kernel, t.pkg, t.name, indent(d.text))
		}
		names += fmt.Sprintf("failed: %s %s\n", t.pkg, t.name)
	}

	if notRun := r.with(skipped); len(notRun) > 0 {
		text, consequence := "", "With -strict they would count as failed."
		if strict {
			consequence = "They count as failed."
		}
		for _, t := range notRun {
			text += t.pkg + " " + t.name + "\n"
			for _, d := range t.details {
				text += indent(d.kernel+": "+d.text) + "\n"
			}
			if strict {
				names += fmt.Sprintf("not run: %s %s\n", t.pkg, t.name)
			}
		}
		fmt.Fprintln(w)
		banner(w, "NOT RUN ON ANY KERNEL: "+tests(len(notRun))+". "+consequence, text)
	}
	if r.passed+r.failed == 0 {
		fmt.Fprintln(w, "\nNO TESTS WERE RUN, which is a failure.")
	}
	fmt.Fprintf(w, "\n%s%s\n", names, r)
}

func tests(n int) string {
	if n == 1 {
		return "1 test"
	}
	return fmt.Sprintf("%d tests", n)
}

func indent(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n    ")
}

// banner prints a message that must not be overlooked.
func banner(w io.Writer, title, text string) {
	line := strings.Repeat("=", 78)
	fmt.Fprintf(w, "%s\n%s\n%s\n%s\n", line, title, strings.TrimSpace(text), line)
}
