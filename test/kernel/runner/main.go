// SPDX-License-Identifier: Apache-2.0

// Command runner runs the project's tests, kernel tests on several kernels, and merges
// the results.
//
//	go run ./test/kernel/runner [flags] [packages] [-- flags of the tests]
//
// Packages default to ./... Each package's test binary is built once, or twice with -race, and runs on the
// host. If its tests import test/kernel/kerneltest it also runs on the User Mode Linux (UML)
// kernels; with all of them, those between the oldest and the host's skip what passed on the host. A test
// passes if it passed on at least one kernel and failed on none. A test
// that was skipped on every kernel counts as failed, unless -strict is off. See
// test/README.md. Arguments after "--" go to the test binaries.
//
// The last line of the output has the form "N passed, N failed, N skipped". The exit
// code is 0 only if nothing failed and something passed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
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

// options are the command line's.
type options struct {
	patterns []string
	run      string
	verbose  bool
	kernel   string // one of kernelNames
	timeout  time.Duration
	count    int
	race     []string // packages whose tests have the race detector on the host
	strict   bool
	ci       bool     // a missing kernel is an error
	args     []string // of the test binaries

	dir    string // where go commands run; empty for the working directory
	script string // test/kernel/build.sh
}

func main() {
	uml.Init() // the runner is process 1 of the machines that it boots

	opts, err := parseFlags(os.Args[1:], os.Getenv("CI") == "true", os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(exitPassed)
	}
	if err != nil {
		os.Exit(exitUsage) // parseFlags has printed the error
	}
	// Tests call commands such as nft, whose directory another user's PATH may lack.
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/local/sbin:/usr/sbin:/sbin")
	// On a signal all tests are killed and reported as failed.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	code, err := run(ctx, opts, os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "runner:", err)
	}
	os.Exit(code)
}

// parseFlags reads the command line and prints errors in it.
func parseFlags(args []string, ci bool, stderr io.Writer) (options, error) {
	opts := options{kernel: "all", ci: ci, script: "test/kernel/build.sh"}
	flags := flag.NewFlagSet("runner [flags] [packages]", flag.ContinueOnError)
	flags.SetOutput(stderr)
	names := strings.Join(kernelNames, ", ")
	flags.Func("kernel", "run on the `kernels` "+names+" (default all)", func(name string) error {
		if !slices.Contains(kernelNames, name) {
			return fmt.Errorf("must be one of %s", names)
		}
		opts.kernel = name
		return nil
	})
	flags.StringVar(&opts.run, "run", "", "run only tests that match this `regexp`, as in go test")
	flags.StringVar(&opts.dir, "dir", "", "`directory` of the module with the packages, if it is another one")
	flags.BoolVar(&opts.verbose, "v", false, "show all output of the tests as it arrives")
	flags.DurationVar(&opts.timeout, "timeout", 10*time.Minute, "fail a package on a kernel after this time")
	flags.IntVar(&opts.count, "count", 1, "run each test this many times")
	flags.BoolVar(&opts.strict, "strict", true, "a test that ran on no kernel has failed")
	flags.Func("race", "on the host, the tests of these `packages` have the race detector (./a,./b/...)", func(list string) error {
		opts.race = strings.Split(list, ",")
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	if opts.timeout <= 0 || opts.count < 1 {
		err := errors.New("-timeout and -count must be more than 0")
		fmt.Fprintln(stderr, "runner:", err)
		return options{}, err
	}
	opts.patterns = flags.Args()
	if i := slices.Index(opts.patterns, "--"); i >= 0 {
		opts.patterns, opts.args = opts.patterns[:i], opts.patterns[i+1:]
	}
	if len(opts.patterns) == 0 {
		opts.patterns = []string{"./..."}
	}
	return opts, nil
}
