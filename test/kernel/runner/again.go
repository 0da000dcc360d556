// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"regexp"
	"slices"
	"strings"
)

// again runs failed tests once more, each alone, after all others. It marks those that pass now as passed,
// and returns them with their first failures, one for each kernel. Nothing runs again if there are
// more than maxFlaky failures, or with -count, or if a failure is certain: a data race, or one
// outside of the tests, such as a panic.
func (x executor) again(ctx context.Context, total result, runs []packageRun, kernels []kernel, packages []testPackage) (flaky []mergedTest) {
	var failures []mergedTest
	for _, t := range total.with(failed) {
		for _, d := range t.details {
			if t.name == outsideTests || strings.Contains(d.text, "WARNING: DATA RACE") || strings.Contains(d.text, "race detected during execution of test") {
				return nil
			}
			failures = append(failures, mergedTest{t.pkg, t.name, failed, []detail{d}})
		}
	}
	const maxFlaky = 3 // failed tests that run again; more failures have a common cause
	if len(failures) == 0 || len(failures) > maxFlaky || x.opts.count > 1 || ctx.Err() != nil {
		return nil
	}
	x.out.Printf("Running %s again, alone", tests(len(failures)))
	for _, t := range failures {
		p := packages[slices.IndexFunc(packages, func(p testPackage) bool { return p.name == t.pkg })]
		k := kernels[slices.IndexFunc(kernels, func(k kernel) bool { return k.label == t.details[0].kernel })]
		x.opts.run = "^" + strings.ReplaceAll(regexp.QuoteMeta(t.name), "/", "$/^") + "$"
		p.on(k).runs.Add(1)
		if second := x.run(ctx, k, p); second.failed() || second.tests[t.name] == nil || second.tests[t.name].outcome != passed {
			continue
		}
		first := slices.IndexFunc(runs, func(r packageRun) bool { return r.pkg == t.pkg && r.kernel == k.label })
		runs[first].forgive(t.name)
		flaky = append(flaky, t)
	}
	return flaky
}

// forgive marks a failed test as passed, and those above it that failed only because of it.
func (r packageRun) forgive(name string) {
	for ; name != ""; name = name[:max(0, strings.LastIndexByte(name, '/'))] {
		failedBelow := slices.ContainsFunc(r.subtests(name), func(s *testRun) bool { return s.outcome == failed })
		if t := r.tests[name]; t != nil && !failedBelow {
			t.outcome, t.output = passed, nil
		}
	}
}
