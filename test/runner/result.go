// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// outcome of a test on one kernel.
type outcome int

// Outcomes. The zero value is that of a test that began and never ended.
const (
	unfinished outcome = iota
	passed
	failed
	skipped
)

// testRun is one test or subtest on one kernel.
type testRun struct {
	outcome outcome
	output  []string // lines
	reason  string   // why it was skipped
}

// packageRun is the tests of one package on one kernel.
type packageRun struct {
	pkg, kernel string
	tests       map[string]*testRun
	output      []string // lines that belong to no test
	failure     string   // what went wrong other than in a test, or empty
	elapsed     time.Duration
}

// add takes one event.
func (r *packageRun) add(e event) {
	if e.Test == "" {
		if e.Action == "output" {
			r.output = append(r.output, e.Output)
		}
		return
	}
	t := r.tests[e.Test]
	if t == nil {
		t = &testRun{}
		r.tests[e.Test] = t
	}
	switch e.Action {
	case "output":
		t.output = append(t.output, e.Output)
	case "pass":
		// With -count a test has several outcomes: a failure stays, and a skip gives
		// way to a pass.
		if t.outcome != failed {
			t.outcome = passed
		}
	case "skip":
		if t.outcome == unfinished {
			t.outcome = skipped
		}
		t.reason = skipReason(t.output)
	case "fail":
		t.outcome = failed
	}
}

// finish settles what the end of the test binary means. err is how it ended.
func (r *packageRun) finish(err error) {
	failures := 0
	for _, t := range r.tests {
		if t.outcome == unfinished {
			t.outcome = failed
			t.output = append(t.output, "(the test did not end)\n")
		}
		if t.outcome == failed {
			failures++
		}
	}
	switch {
	case err == nil:
	case failures > 0 && strings.HasSuffix(err.Error(), "exit status 1"):
		// A test that fails makes the binary fail: nothing to add.
	default:
		r.failure = fmt.Sprintf("the test binary: %v\n%s", err, strings.Join(r.output, ""))
	}
}

// failed reports whether anything went wrong.
func (r *packageRun) failed() bool {
	if r.failure != "" {
		return true
	}
	for _, t := range r.tests {
		if t.outcome == failed {
			return true
		}
	}
	return false
}

// skipPrefix is the place of the call that testing puts before a message.
var skipPrefix = regexp.MustCompile(`^[^\s:]+\.go:\d+: `)

// skipReason finds the message of a skip in the output of a test: what came last.
func skipReason(output []string) string {
	for i := len(output) - 1; i >= 0; i-- {
		line := strings.TrimSpace(output[i])
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		return skipPrefix.ReplaceAllString(line, "")
	}
	return "no reason given"
}
