// SPDX-License-Identifier: Apache-2.0

// Command runner runs the project's tests, those that need a kernel on every kernel
// that there is, and says what ran where.
//
//	go run ./test/runner [flags] [packages]
//
// Packages default to ./... Each package's test binary is built once. It runs on the
// host; if its tests import test/kerneltest it runs on the User Mode Linux kernels as
// well. A test passes if it passed on one kernel at least and failed on none. A test
// that was skipped everywhere has not been run at all: that is a failure unless -strict
// is off. See test/README.md.
//
// The last line of the output is of the form "N passed, N failed, N skipped", and the
// exit code 0 only if nothing failed and something passed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/uml"
)

// Exit codes.
const (
	exitPassed = 0
	exitFailed = 1
	exitUsage  = 2 // the runner itself could not work
)

// options are what the command line says.
type options struct {
	dir       string // where go commands run; empty for the working directory
	patterns  []string
	run       string
	verbose   bool
	kernel    string // one of kernelNames
	timeout   time.Duration
	count     int
	short     bool
	strict    bool
	ci        bool
	serial    bool
	script    string
	allowSkip *regexp.Regexp // nil allows none
}

func main() {
	uml.Init() // the runner is process 1 of the machines that it boots

	opts, err := parseFlags(os.Args[1:], os.Getenv("CI") == "true", os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(exitPassed)
	}
	if err != nil {
		os.Exit(exitUsage) // the flag package has said why
	}
	// On a signal everything that was started is killed, and reported as failed.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	code, err := run(ctx, opts, os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "runner:", err)
	}
	os.Exit(code)
}

// parseFlags reads the command line. ci says that nothing may be forgiven.
func parseFlags(args []string, ci bool, stderr io.Writer) (options, error) {
	var opts options
	var allow string
	flags := flag.NewFlagSet("runner", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: go run ./test/runner [flags] [packages]")
		flags.PrintDefaults()
	}
	flags.StringVar(&opts.run, "run", "", "run only tests that match this `regexp`, as in go test")
	flags.BoolVar(&opts.verbose, "v", false, "show all output of the tests as it comes")
	flags.StringVar(&opts.kernel, "kernel", "all", "kernels to run on: "+strings.Join(kernelNames(), ", "))
	flags.DurationVar(&opts.timeout, "timeout", 10*time.Minute, "fail a package on a kernel after this time")
	flags.IntVar(&opts.count, "count", 1, "run each test this many times")
	flags.BoolVar(&opts.short, "short", false, "tell tests to be short; what they skip for that is allowed")
	flags.BoolVar(&opts.strict, "strict", true, "a test that ran on no kernel has failed (always so with CI=true)")
	flags.BoolVar(&opts.serial, "serial", false, "use one kernel at a time, not all side by side")
	flags.StringVar(&allow, "allow-skip", "", "tests may be skipped everywhere if \"package test: reason\" matches this `regexp`")
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	complain := func(format string, args ...any) (options, error) {
		err := fmt.Errorf(format, args...)
		fmt.Fprintln(stderr, "runner:", err)
		return options{}, err
	}
	if !slices.Contains(kernelNames(), opts.kernel) {
		return complain("-kernel %q: must be one of %s", opts.kernel, strings.Join(kernelNames(), ", "))
	}
	if opts.timeout <= 0 {
		return complain("-timeout %v: must be more than 0", opts.timeout)
	}
	if opts.count < 1 {
		return complain("-count %d: must be 1 or more", opts.count)
	}
	if opts.short {
		if allow != "" {
			allow = "(?:" + allow + ")|"
		}
		allow += `(?i:: .*\bshort\b)`
	}
	if allow != "" {
		var err error
		if opts.allowSkip, err = regexp.Compile(allow); err != nil {
			return complain("-allow-skip: %w", err)
		}
	}
	opts.strict, opts.ci = opts.strict || ci, ci
	opts.patterns = flags.Args()
	if len(opts.patterns) == 0 {
		opts.patterns = []string{"./..."}
	}
	return opts, nil
}
