// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"slices"
	"strings"
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
}

// ok reports whether the run is a success, which takes at least one test that passed.
func (r result) ok() bool { return r.failed == 0 && r.passed > 0 }

// outsideTests stands for the test's name of a failure outside of all tests.
const outsideTests = "(package)"

// merge counts each test once, on however many kernels it ran. It counts tests and
// subtests that have no subtests; one with subtests counts only if it failed, or was
// skipped, by itself. With strict, skipped tests count as failed.
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
		case t.outcome == failed || strict:
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
