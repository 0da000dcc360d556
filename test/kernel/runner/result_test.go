// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"strings"
	"testing"
)

func TestSkipReason(t *testing.T) {
	tests := []struct {
		name   string
		output []string
		want   string
	}{
		{"place is cut off", []string{"=== RUN   TestA\n", "    a_test.go:12: no SCTP sockets: socket: no\n", "--- SKIP: TestA (0.00s)\n"}, "no SCTP sockets: socket: no"},
		{"the last message counts", []string{"    a_test.go:1: hello\n", "    a_test.go:2: because\n"}, "because"},
		{"colons in the message", []string{"    a_test.go:2: x.go:3: y\n"}, "x.go:3: y"},
		{"none", []string{"=== RUN   TestA\n", "--- SKIP: TestA (0.00s)\n"}, "no reason given"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := skipReason(test.output); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestOutcomes(t *testing.T) {
	tests := []struct {
		name, actions string // of test A
		end           error  // of the test binary
		want          outcome
		failure       string // part of the package's own failure
	}{
		{"passed", "run pass", nil, passed, ""},
		{"skipped", "run skip", nil, skipped, ""},
		{"failed", "run fail", errors.New("exit status 1"), failed, ""},
		{"passed twice", "run pass run pass", nil, passed, ""},
		{"passed, then failed", "run pass run fail", errors.New("exit status 1"), failed, ""},
		{"failed, then passed", "run fail run pass", errors.New("exit status 1"), failed, ""},
		{"failed, then skipped", "run fail run skip", errors.New("exit status 1"), failed, ""},
		{"skipped, then passed", "run skip run pass", nil, passed, ""},
		{"passed, then skipped", "run pass run skip", nil, passed, ""},
		{"never ended", "run", nil, failed, ""},
		{"panicked", "run", errors.New("exit status 2"), failed, "exit status 2"},
		{"killed", "run", errors.New("killed: no end after 1m0s"), failed, "killed"},
		{"passed, but the binary failed", "run pass", errors.New("exit status 1"), passed, "exit status 1"},
		{"the machine died", "run pass", errors.New("uml: the machine stopped"), passed, "the machine stopped"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := packageRun{tests: map[string]*testRun{}}
			for _, action := range strings.Fields(test.actions) {
				r.add(event{Action: action, Test: "A"})
			}
			r.add(event{Action: "output", Output: "last words\n"})
			r.finish(test.end)
			if got := r.tests["A"].outcome; got != test.want {
				t.Errorf("outcome %v, want %v", got, test.want)
			}
			if (r.failure != "") != (test.failure != "") || !strings.Contains(r.failure, test.failure) {
				t.Errorf("failure %q, want %q in it", r.failure, test.failure)
			}
			if r.failure != "" && !strings.Contains(r.failure, "last words") {
				t.Errorf("failure %q lacks the output", r.failure)
			}
			if want := test.want == failed || test.failure != ""; r.failed() != want {
				t.Errorf("failed: %v, want %v", r.failed(), want)
			}
		})
	}
}
