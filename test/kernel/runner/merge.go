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

// mergedTest is one test over all kernels. It failed if it failed on any kernel, passed if
// it passed on at least one, and was skipped if it was skipped on all.
type mergedTest struct {
	pkg, name string
	outcome   outcome
	details   []detail // failures, or else skips
}

// detail is the output of a failed test, or the reason of a skipped one.
type detail struct{ kernel, text string }

// result of all tests.
type result struct {
	tests                   []mergedTest
	passed, failed, skipped int

	flaky []mergedTest // with the failures, though they count as passed
}

// ok reports whether the run is a success, which takes at least one test that passed.
func (r result) ok() bool { return r.failed == 0 && r.passed > 0 }

// notHereMark begins the reason of a skipped test that a checkout or machine need not be able to run.
const notHereMark = "NOT HERE: "

// outsideTests stands for the test's name of a failure outside of all tests.
const outsideTests = "(package)"

// merge counts each test once, on however many kernels it ran. It counts tests and
// subtests that have no subtests; one with subtests counts only if it failed, or was
// skipped, by itself. With strict, skipped tests count as failed, except those marked notHere.
func merge(runs []packageRun, strict bool) result {
	packages := map[string][]packageRun{}
	for _, r := range runs {
		packages[r.pkg] = append(packages[r.pkg], r)
	}
	var out result
	for _, pkg := range slices.Sorted(maps.Keys(packages)) {
		out.tests = append(out.tests, mergePackage(packages[pkg])...)
	}
	for _, t := range out.tests {
		switch {
		case t.outcome == passed:
			out.passed++
		case t.outcome == failed || t.outcome == skipped && strict:
			out.failed++
		default:
			out.skipped++
		}
	}
	return out
}

// mergePackage merges the runs of one package, one for each kernel.
func mergePackage(runs []packageRun) []mergedTest {
	names := map[string]bool{}
	for _, r := range runs {
		for name := range r.tests {
			names[name] = true
		}
	}
	var out []mergedTest
	for _, name := range slices.Sorted(maps.Keys(names)) {
		t := mergeTest(name, runs)
		hasSubtests := slices.ContainsFunc(runs, func(r packageRun) bool { return len(r.subtests(name)) > 0 })
		if t.outcome != passed || !hasSubtests {
			out = append(out, t)
		}
	}
	for _, r := range runs {
		if r.failure != "" {
			out = append(out, mergedTest{r.pkg, outsideTests, failed, []detail{{r.kernel, r.failure}}})
		}
	}
	return out
}

// mergeTest merges one test.
func mergeTest(name string, runs []packageRun) mergedTest {
	t := mergedTest{pkg: runs[0].pkg, name: name, outcome: skipped}
	var failures, skips []detail
	for _, r := range runs {
		run := r.tests[name]
		if run == nil {
			// A subtest does not exist on kernels where a test above it was skipped.
			if run = r.above(name); run == nil || run.outcome != skipped {
				continue
			}
		}
		subtestFailed := slices.ContainsFunc(r.subtests(name), func(s *testRun) bool { return s.outcome == failed })
		switch {
		case run.outcome == skipped:
			skips = append(skips, detail{r.kernel, run.reason})
		case run.outcome == failed && !subtestFailed:
			failures = append(failures, detail{r.kernel, strings.Join(run.output, "")})
		default:
			t.outcome = passed
		}
	}
	t.details = skips
	if t.outcome == skipped && slices.ContainsFunc(skips, func(d detail) bool { return strings.HasPrefix(d.text, notHereMark) }) {
		t.outcome = notHere
	}
	if len(failures) > 0 {
		t.outcome, t.details = failed, failures
	}
	return t
}

// subtests returns the tests below a test.
func (r packageRun) subtests(name string) []*testRun {
	var out []*testRun
	for other, run := range r.tests {
		if strings.HasPrefix(other, name+"/") {
			out = append(out, run)
		}
	}
	return out
}

// above returns the nearest test above a subtest, or nil. A subtest's own name may
// contain slashes.
func (r packageRun) above(name string) *testRun {
	for i := strings.LastIndexByte(name, '/'); i >= 0; i = strings.LastIndexByte(name[:i], '/') {
		if run := r.tests[name[:i]]; run != nil {
			return run
		}
	}
	return nil
}

// linesAtOnce is how many lines of a failed test are shown as soon as its package ends.
const linesAtOnce = 12

// summary returns a line for a package that ended on a kernel, and its failures.
func (r packageRun) summary() string {
	total := merge([]packageRun{r}, false)
	status := map[bool]string{true: "FAIL", false: "ok  "}[total.failed > 0]
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
	if len(r.flaky) > 0 {
		text := ""
		for _, t := range r.flaky {
			text += fmt.Sprintf("%s %s on %s\n%s\n", t.pkg, t.name, t.details[0].kernel, indent(t.details[0].text))
			names += fmt.Sprintf("flaky: %s %s\n", t.pkg, t.name)
		}
		fmt.Fprintln(w)
		banner(w, "FLAKY: "+tests(len(r.flaky))+", failed once and passed alone. Mend the cause.", text)
	}
	for _, t := range r.with(failed) {
		for _, d := range t.details {
			fmt.Fprintf(w, "\nFAILED on %s: %s %s\n%s\n", d.kernel, t.pkg, t.name, indent(d.text))
		}
		names += fmt.Sprintf("failed: %s %s\n", t.pkg, t.name)
	}

	for _, t := range r.with(notHere) {
		i := slices.IndexFunc(t.details, func(d detail) bool { return strings.HasPrefix(d.text, notHereMark) })
		fmt.Fprintf(w, "\nSkipped: %s %s: %s\n", t.pkg, t.name, t.details[i].text)
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
