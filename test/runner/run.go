// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// run does all that the command does, and returns its exit code.
func run(ctx context.Context, opts options, stdout, stderr io.Writer) (int, error) {
	packages, err := listPackages(ctx, opts.dir, opts.patterns)
	if err != nil {
		return exitUsage, err
	}
	module, err := goOutput(ctx, opts.dir, "list", "-m", "-f", "{{.Path}}\n{{.Dir}}")
	if err != nil {
		return exitUsage, err
	}
	modulePath, moduleDir, _ := strings.Cut(module, "\n")
	if opts.script == "" {
		opts.script = filepath.Join(moduleDir, "test", "kernel", "build.sh")
	}
	kernels, err := findKernels(ctx, opts, packages, stderr)
	if err != nil {
		return exitUsage, err
	}
	test2json, err := goOutput(ctx, opts.dir, "tool", "-n", "test2json")
	if err != nil {
		return exitUsage, err
	}
	// On User Mode Linux this is reached through the host's file system.
	binaries, err := os.MkdirTemp("", "slipstream-tests-")
	if err != nil {
		return exitUsage, err
	}
	defer os.RemoveAll(binaries)

	fmt.Fprintf(stdout, "Kernels: %s\n", kernels)
	builds := compileAll(ctx, opts.dir, packages, binaries)
	x := executor{
		opts:      opts,
		test2json: test2json,
		progress:  &progress{to: stdout, module: modulePath, verbose: opts.verbose},
	}

	// The kernels work side by side, each of them on one package at a time: packages
	// that share a kernel could get in each other's way.
	lanes := make([][]packageRun, len(kernels))
	var working sync.WaitGroup
	for i, k := range kernels {
		lane := func() {
			for _, p := range packages {
				if k.uml() && !p.kernel {
					continue
				}
				lanes[i] = append(lanes[i], x.run(ctx, k, p, builds[p.path]))
			}
		}
		if opts.serial {
			lane()
		} else {
			working.Go(lane)
		}
	}
	working.Wait()

	total := merge(slices.Concat(lanes...), policy{strict: opts.strict, allowSkip: opts.allowSkip})
	report{result: total, module: modulePath, kernels: kernels, strict: opts.strict}.write(stdout)
	if err := ctx.Err(); err != nil {
		return exitFailed, fmt.Errorf("interrupted: %w", context.Cause(ctx))
	}
	if !total.ok() {
		return exitFailed, nil
	}
	return exitPassed, nil
}

// build is the test binary of a package, once ready is closed.
type build struct {
	ready  chan struct{}
	binary string
	output string // the compiler's, if it failed
	failed bool
}

// compileAll builds the test binaries, several at a time, and returns at once.
func compileAll(ctx context.Context, dir string, packages []testPackage, to string) map[string]*build {
	builds := make(map[string]*build, len(packages))
	turns := make(chan struct{}, runtime.NumCPU())
	previous := make(chan struct{})
	close(previous)
	for i, p := range packages {
		b := &build{ready: make(chan struct{}), binary: filepath.Join(to, fmt.Sprintf("%d.test", i))}
		builds[p.path] = b
		// In order of the list, which is the order in which they are wanted.
		before, started := previous, make(chan struct{})
		previous = started
		go func() {
			<-before
			turns <- struct{}{}
			close(started)
			defer func() { <-turns; close(b.ready) }()
			b.output, b.failed = compile(ctx, dir, p.path, b.binary)
		}()
	}
	return builds
}
