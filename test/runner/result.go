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

// Outcomes. The zero value is that of a test that has not ended.
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
	failure     string   // what went wrong outside of the tests, or empty
	elapsed     time.Duration
}

// add records one event.
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
	// With -count a test has several outcomes: a failure stays, and a pass replaces a skip.
	switch e.Action {
	case "output":
		t.output = append(t.output, e.Output)
	case "pass":
		if t.outcome != failed {
			t.outcome, t.output = passed, nil // only failures show their output
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

// finish completes the run with the error that the test binary ended with.
func (r *packageRun) finish(err error) {
	for _, t := range r.tests {
		if t.outcome == unfinished {
			t.outcome = failed
			t.output = append(t.output, "(the test did not end)\n")
		}
	}
	// Exit status 1 is the consequence of a failed test.
	if err != nil && !(r.failed() && strings.HasSuffix(err.Error(), "exit status 1")) {
		r.failure = fmt.Sprintf("the test binary: %v\n%s", err, strings.Join(r.output, ""))
	}
}

// failed reports whether anything went wrong.
func (r *packageRun) failed() bool {
	for _, t := range r.tests {
		if t.outcome == failed {
			return true
		}
	}
	return r.failure != ""
}

// location is what testing puts before a message.
var location = regexp.MustCompile(`^[^\s:]+\.go:\d+: `)

// skipReason returns the last message in the output of a skipped test.
func skipReason(output []string) string {
	for i := len(output) - 1; i >= 0; i-- {
		line := strings.TrimSpace(output[i])
		if line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			return location.ReplaceAllString(line, "")
		}
	}
	return "no reason given"
}
