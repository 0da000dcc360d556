// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// policy says what becomes of tests that were skipped on every kernel.
type policy struct {
	strict    bool           // they failed
	allowSkip *regexp.Regexp // except these; nil for none
}

// verdict on a test over all kernels.
type verdict int

// Verdicts.
const (
	verdictPassed  verdict = iota // on one kernel at least, and failed on none
	verdictFailed                 // on one kernel at least
	verdictNotRun                 // on no kernel
	verdictAllowed                // on no kernel, and that is all right
)

// mergedTest is one test over all kernels.
type mergedTest struct {
	pkg, name string
	verdict   verdict
	details   []detail // by kernel: where it failed, or else where it was skipped
}

// detail is the output of a failed test, or the reason of a skipped one.
type detail struct{ kernel, text string }

// packageRow is one package over all kernels.
type packageRow struct {
	pkg   string
	tests int
	cells map[string]cell // by kernel; none where the package was not run
}

// cell counts the outcomes of a package on a kernel.
type cell struct{ passed, failed, skipped int }

// result is what the whole run comes to.
type result struct {
	rows                    []packageRow
	tests                   []mergedTest
	passed, failed, skipped int
}

// ok reports whether the run is a success. A run that passed nothing is none.
func (r result) ok() bool { return r.failed == 0 && r.passed > 0 }

// outsideTests stands for the test's name where something failed outside of all tests.
const outsideTests = "(package)"

// merge counts each test once, whatever the number of kernels it ran on. What is counted
// are the tests without subtests and the subtests without subtests of their own; a test
// with subtests counts only if it failed, or was skipped, by itself.
func merge(runs []packageRun, rules policy) result {
	var out result
	byPackage := map[string][]packageRun{}
	var order []string
	for _, r := range runs {
		if byPackage[r.pkg] == nil {
			order = append(order, r.pkg)
		}
		byPackage[r.pkg] = append(byPackage[r.pkg], r)
	}
	slices.Sort(order)
	for _, pkg := range order {
		row := packageRow{pkg: pkg, cells: map[string]cell{}}
		for _, r := range byPackage[pkg] {
			row.cells[r.kernel] = cell{}
		}
		for _, t := range mergePackage(byPackage[pkg]) {
			if t.verdict == verdictNotRun && rules.allows(t) {
				t.verdict = verdictAllowed
			}
			out.count(t.verdict, rules.strict)
			out.tests = append(out.tests, t.mergedTest)
			row.tests++
			for kernel, o := range t.on {
				c := row.cells[kernel]
				c.count(o)
				row.cells[kernel] = c
			}
		}
		out.rows = append(out.rows, row)
	}
	return out
}

func (r *result) count(v verdict, strict bool) {
	switch {
	case v == verdictPassed:
		r.passed++
	case v == verdictFailed, v == verdictNotRun && strict:
		r.failed++
	default:
		r.skipped++
	}
}

func (c *cell) count(o outcome) {
	switch o {
	case passed:
		c.passed++
	case failed:
		c.failed++
	case skipped:
		c.skipped++
	}
}

// allows reports whether a test that ran nowhere is one of those that need not: all of
// its reasons must be allowed.
func (p policy) allows(t placedTest) bool {
	if p.allowSkip == nil {
		return false
	}
	for _, d := range t.details {
		if !p.allowSkip.MatchString(t.pkg + " " + t.name + ": " + d.text) {
			return false
		}
	}
	return true
}

// placedTest is a merged test with its outcomes by kernel.
type placedTest struct {
	mergedTest
	on map[string]outcome
}

// mergePackage merges the runs of one package, one run for each kernel.
func mergePackage(runs []packageRun) []placedTest {
	names := map[string]bool{}
	for _, r := range runs {
		for name := range r.tests {
			names[name] = true
		}
	}
	sorted := slices.Sorted(maps.Keys(names))
	parents := parentsOf(sorted)

	var out []placedTest
	for _, name := range sorted {
		t := mergeTest(name, runs, !parents[name])
		if t != nil {
			out = append(out, *t)
		}
	}
	for _, r := range runs {
		if r.failure != "" {
			out = append(out, placedTest{
				mergedTest: mergedTest{pkg: r.pkg, name: outsideTests, verdict: verdictFailed, details: []detail{{r.kernel, r.failure}}},
				on:         map[string]outcome{r.kernel: failed},
			})
		}
	}
	return out
}

// parentsOf returns the tests that have subtests, on whatever kernel.
func parentsOf(names []string) map[string]bool {
	parents := map[string]bool{}
	for _, name := range names {
		for i, c := range name {
			if c == '/' {
				parents[name[:i]] = true
			}
		}
	}
	return parents
}

// mergeTest merges one test, or returns nil if its subtests say all there is to say.
func mergeTest(name string, runs []packageRun, leaf bool) *placedTest {
	t := placedTest{mergedTest: mergedTest{pkg: runs[0].pkg, name: name}, on: map[string]outcome{}}
	var failures, skips []detail
	ran := false
	for _, r := range runs {
		run := r.tests[name]
		if run == nil {
			// A subtest that is not there on this kernel, perhaps for its parent was skipped.
			if reason, ok := skippedAbove(name, r); ok {
				t.on[r.kernel] = skipped
				skips = append(skips, detail{r.kernel, reason})
			}
			continue
		}
		switch run.outcome {
		case passed:
			ran = true
			t.on[r.kernel] = passed
		case skipped:
			t.on[r.kernel] = skipped
			skips = append(skips, detail{r.kernel, run.reason})
		default:
			ran = true
			if leaf || !failedBelow(name, r) {
				t.on[r.kernel] = failed
				failures = append(failures, detail{r.kernel, strings.Join(run.output, "")})
			}
		}
	}
	switch {
	case len(failures) > 0:
		t.verdict, t.details = verdictFailed, failures
	case ran && leaf:
		t.verdict, t.details = verdictPassed, skips
	case ran:
		return nil
	default:
		t.verdict, t.details = verdictNotRun, skips
	}
	return &t
}

// skippedAbove returns why the nearest test above that did run was skipped, if it was.
func skippedAbove(name string, r packageRun) (reason string, ok bool) {
	for {
		i := strings.LastIndexByte(name, '/')
		if i < 0 {
			return "", false
		}
		name = name[:i]
		if run := r.tests[name]; run != nil {
			return run.reason, run.outcome == skipped
		}
	}
}

// failedBelow reports whether a subtest of a test failed.
func failedBelow(name string, r packageRun) bool {
	for other, run := range r.tests {
		if run.outcome == failed && strings.HasPrefix(other, name+"/") {
			return true
		}
	}
	return false
}
