// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/test/kernel/process"
	"github.com/slipstream-proxy/slipstream/test/kernel/uml"
)

// grace is the time that a test binary has, after its timeout, to report the hanging test.
const grace = 30 * time.Second

// executor runs test binaries.
type executor struct {
	opts      options
	test2json string // path of the program
	out       *log.Logger
}

// run runs the tests of one package on one kernel and prints how they ended.
func (x executor) run(ctx context.Context, k kernel, p testPackage) packageRun {
	r := packageRun{pkg: p.name, kernel: k.label, tests: map[string]*testRun{}}
	b := p.on(k)
	if err := b.build(); err != nil {
		r.failure = err.Error()
	} else {
		begin := time.Now()
		r.finish(x.convert(func(output io.Writer) error {
			return x.execute(ctx, k, p, output)
		}, func(e event) {
			r.add(e)
			if x.opts.verbose && e.Action == "output" {
				x.out.Printf("[%s] %s", k.name, e.Output)
			}
		}))
		r.elapsed = time.Since(begin)
	}
	if !r.failed() && b.runs.Add(-1) == 0 { // a failed test may run again
		_ = os.Remove(b.path)
	}
	x.out.Print(r.summary())
	return r
}

// event is one line of go tool test2json.
type event struct {
	Action string
	Test   string // empty for events of the package
	Output string
}

// convert calls execute with a writer that leads through test2json, and deliver with each
// event. It returns when all events are delivered, with execute's error.
func (x executor) convert(execute func(output io.Writer) error, deliver func(event)) error {
	cmd := exec.Command(x.test2json)
	cmd.Stderr = os.Stderr
	input, inputErr := cmd.StdinPipe()
	lines, linesErr := cmd.StdoutPipe()
	if err := errors.Join(inputErr, linesErr, cmd.Start()); err != nil {
		return fmt.Errorf("test2json: %w", err)
	}
	converted := make(chan error)
	go func() {
		for decoder := json.NewDecoder(lines); ; {
			var e event
			if err := decoder.Decode(&e); err != nil {
				_, _ = io.Copy(io.Discard, lines)
				converted <- err
				return
			}
			deliver(e)
		}
	}()
	err := execute(input)
	input.Close()
	if convertErr := <-converted; convertErr != io.EOF {
		err = errors.Join(err, fmt.Errorf("test2json: %w", convertErr))
	}
	return errors.Join(err, cmd.Wait())
}

// execute runs a package's test binary on a kernel.
func (x executor) execute(ctx context.Context, k kernel, p testPackage, output io.Writer) error {
	limit := x.opts.timeout + grace
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no end after %v", limit))
	defer cancel()
	args := []string{
		"-test.v=test2json",
		"-test.paniconexit0", // as in go test: exiting early with status 0 is a failure
		"-test.timeout=" + x.opts.timeout.String(),
		"-test.count=" + strconv.Itoa(x.opts.count),
		"-test.run=" + x.opts.run,
	}
	if len(p.skip) > 0 {
		args = append(args, "-test.skip=^("+strings.Join(p.skip, "|")+")$")
	}
	args = append(args, x.opts.args...)
	if k.path != "" {
		code, err := uml.Machine{Kernel: k.path}.Run(ctx, uml.Command{Path: p.plain.path, Args: args, Dir: p.dir, Env: os.Environ()}, output)
		if err == nil && code != 0 {
			err = fmt.Errorf("exit status %d", code)
		}
		return err
	}
	cmd := exec.Command(p.onHost.path, args...)
	cmd.Dir = p.dir
	cmd.Stdout, cmd.Stderr = output, output
	// Processes that left the process group may hold the output open.
	cmd.WaitDelay = grace
	err := process.Run(ctx, cmd)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("killed: %w", context.Cause(ctx))
	}
	return err
}

// outcome of a test on one kernel.
type outcome int

// Outcomes. The zero value is that of a test that has not ended.
const (
	unfinished outcome = iota
	passed
	failed
	skipped
	notHere // skipped on every kernel, on one at least with notHereMark; of merged tests only
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
	t := collect.Entry(r.tests, e.Test)
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

// passed returns the tests that passed with all of their subtests, none of which was skipped.
func (r *packageRun) passed() []string {
	var names []string
	for name, t := range r.tests {
		notPassed := func(s *testRun) bool { return s.outcome != passed }
		if t.outcome == passed && !strings.Contains(name, "/") && !slices.ContainsFunc(r.subtests(name), notPassed) {
			names = append(names, name)
		}
	}
	return names
}

// failed reports whether a test, or the run itself, failed.
func (r *packageRun) failed() bool {
	for _, t := range r.tests {
		if t.outcome == failed {
			return true
		}
	}
	return r.failure != ""
}

// location is the prefix of package testing before a message.
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
