// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// tests of a kernel in the tables below: "A" passed, "-A:why" was skipped, "!A" failed.
type on []string

func (o on) run(kernel, failure string) packageRun {
	r := packageRun{pkg: "p", kernel: kernel, failure: failure, tests: map[string]*testRun{}}
	for _, s := range o {
		switch s[0] {
		case '-':
			name, reason, _ := strings.Cut(s[1:], ":")
			r.tests[name] = &testRun{outcome: skipped, reason: reason}
		case '!':
			r.tests[s[1:]] = &testRun{outcome: failed, output: []string{"output on " + kernel + "\n"}}
		default:
			r.tests[s] = &testRun{outcome: passed}
		}
	}
	return r
}

func TestMerge(t *testing.T) {
	const lenient, strict = false, true
	tests := []struct {
		name      string
		host, uml on
		strict    bool
		counts    [3]int // passed, failed, skipped
		failed    string // tests that failed, and where
		notRun    string // tests that ran nowhere, and why
	}{
		{"passed on both", on{"A"}, on{"A"}, strict, [3]int{1, 0, 0}, "", ""},
		{"passed on the only kernel", on{"A", "B"}, nil, strict, [3]int{2, 0, 0}, "", ""},
		{"skipped on one", on{"-A:x"}, on{"A"}, strict, [3]int{1, 0, 0}, "", ""},
		{"skipped on the other", on{"A"}, on{"-A:x"}, strict, [3]int{1, 0, 0}, "", ""},
		{"failed on one", on{"A"}, on{"!A"}, strict, [3]int{0, 1, 0}, "A@uml", ""},
		{"failed on both", on{"!A"}, on{"!A"}, strict, [3]int{0, 1, 0}, "A@host,uml", ""},
		{"failed on one, skipped on the other", on{"-A:x"}, on{"!A"}, strict, [3]int{0, 1, 0}, "A@uml", ""},
		{"skipped everywhere fails", on{"-A:x"}, on{"-A:y"}, strict, [3]int{0, 1, 0}, "", "A@host:x,uml:y"},
		{"skipped on the only kernel fails", on{"-A:x", "B"}, nil, strict, [3]int{1, 1, 0}, "", "A@host:x"},
		{"skipped everywhere, lenient", on{"-A:x"}, on{"-A:y"}, lenient, [3]int{0, 0, 1}, "", "A@host:x,uml:y"},

		{"parents do not count", on{"A", "A/a", "A/b"}, on{"A", "A/a", "A/b"}, strict, [3]int{2, 0, 0}, "", ""},
		{"nested parents do not count", on{"A", "A/a", "A/a/x", "A/a/y"}, nil, strict, [3]int{2, 0, 0}, "", ""},
		{"slash in a subtest's name", on{"A", "A/10.0.0.0/8"}, nil, strict, [3]int{1, 0, 0}, "", ""},
		{"a name that begins alike is no subtest", on{"A", "AB/c", "AB"}, nil, strict, [3]int{2, 0, 0}, "", ""},
		{"a failed subtest counts once", on{"!A", "!A/a", "A/b"}, nil, strict, [3]int{1, 1, 0}, "A/a@host", ""},
		{"a parent that failed by itself counts", on{"!A", "A/a"}, nil, strict, [3]int{1, 1, 0}, "A@host", ""},
		{"a parent that failed by itself on one kernel", on{"!A", "!A/a"}, on{"!A", "A/a"}, strict, [3]int{0, 2, 0}, "A@uml A/a@host", ""},
		{"some subtests skipped here, others there", on{"A", "A/a", "-A/b:x"}, on{"A", "-A/a:y", "A/b"}, strict, [3]int{2, 0, 0}, "", ""},
		{"one subtest skipped everywhere", on{"A", "A/a", "-A/b:x"}, on{"A", "A/a", "-A/b:y"}, strict, [3]int{1, 1, 0}, "", "A/b@host:x,uml:y"},
		{"parent skipped here, subtests ran there", on{"-A:x"}, on{"A", "A/a", "A/b"}, strict, [3]int{2, 0, 0}, "", ""},
		{"parent skipped here, subtest failed there", on{"-A:x"}, on{"!A", "!A/a", "A/b"}, strict, [3]int{1, 1, 0}, "A/a@uml", ""},
		{"parent skipped here, subtest skipped there", on{"-A:x"}, on{"A", "A/a", "-A/b:y"}, strict, [3]int{1, 1, 0}, "", "A/b@host:x,uml:y"},
		{"parent skipped after its subtests", on{"-A:x", "A/a"}, nil, strict, [3]int{1, 1, 0}, "", "A@host:x"},
		{"a test that is there on one kernel only", on{"A"}, on{"B"}, strict, [3]int{2, 0, 0}, "", ""},
		{"one that need not run is no failure", on{"-A:NOT HERE: x"}, on{"-A:NOT HERE: x", "B"}, strict, [3]int{1, 0, 1}, "", ""},
		{"one that need not run on one kernel", on{"-A:no x"}, on{"-A:NOT HERE: x", "B"}, strict, [3]int{1, 0, 1}, "", ""},
		{"one that need not run, and failed elsewhere", on{"-A:NOT HERE: x"}, on{"!A"}, strict, [3]int{0, 1, 0}, "A@uml", ""},
		{"nothing", on{}, on{}, strict, [3]int{0, 0, 0}, "", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var runs []packageRun
			if test.host != nil {
				runs = append(runs, test.host.run("host", ""))
			}
			if test.uml != nil {
				runs = append(runs, test.uml.run("uml", ""))
			}
			got := merge(runs, test.strict)
			if counts := [3]int{got.passed, got.failed, got.skipped}; counts != test.counts {
				t.Errorf("passed, failed, skipped: %v, want %v", counts, test.counts)
			}
			if want := test.counts[0] > 0 && test.counts[1] == 0; got.ok() != want {
				t.Errorf("ok: %v, want %v", got.ok(), want)
			}
			if text := describe(got, failed); text != test.failed {
				t.Errorf("failed: %q, want %q", text, test.failed)
			}
			if text := describe(got, skipped); text != test.notRun {
				t.Errorf("not run: %q, want %q", text, test.notRun)
			}
			if len(got.tests) != test.counts[0]+test.counts[1]+test.counts[2] {
				t.Errorf("tests: %+v", got.tests)
			}
		})
	}
}

// describe lists the tests of one outcome with the kernels, and the reasons of skips.
func describe(r result, o outcome) string {
	var out []string
	for _, t := range r.tests {
		if t.outcome != o {
			continue
		}
		var kernels []string
		for _, d := range t.details {
			if o == skipped {
				kernels = append(kernels, d.kernel+":"+d.text)
			} else {
				kernels = append(kernels, d.kernel)
			}
		}
		out = append(out, t.name+"@"+strings.Join(kernels, ","))
	}
	return strings.Join(out, " ")
}

func TestMergeFailureOutsideOfTests(t *testing.T) {
	got := merge([]packageRun{on{"A"}.run("host", ""), on{"A"}.run("uml", "it burned")}, false)
	if got.passed != 1 || got.failed != 1 || got.ok() {
		t.Errorf("passed %d, failed %d, ok %v", got.passed, got.failed, got.ok())
	}
	if text := describe(got, failed); text != "(package)@uml" {
		t.Errorf("failed: %q", text)
	}
}

// Tests of the same name in two packages are two tests, listed by package.
func TestMergePackages(t *testing.T) {
	other := on{"B", "!C"}.run("host", "")
	other.pkg = "a"
	got := merge([]packageRun{on{"A", "-B:x", "!C"}.run("host", ""), on{"A", "B", "C"}.run("uml", ""), other}, true)
	var tests []string
	for _, t := range got.tests {
		tests = append(tests, fmt.Sprint(t.pkg, " ", t.name, " ", t.outcome == passed))
	}
	want := []string{"a B true", "a C false", "p A true", "p B true", "p C false"}
	if !slices.Equal(tests, want) || got.String() != "3 passed, 2 failed, 0 skipped" {
		t.Errorf("tests %q, want %q; %v", tests, want, got)
	}
}

// The summary counts the tests of one kernel and shows what failed.
func TestSummary(t *testing.T) {
	for kernel, want := range map[string]string{"host": "FAIL  host p 1 passed, 1 failed, 1 skipped (0s) C output on host", "uml": "ok uml p 3 passed, 0 failed, 0 skipped (0s)"} {
		run := map[string]on{"host": {"A", "-B:x", "!C"}, "uml": {"A", "B", "C"}}[kernel].run(kernel, "")
		if got := strings.Join(strings.Fields(run.summary()), " "); got != strings.Join(strings.Fields(want), " ") {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
