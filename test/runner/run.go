// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
)

// run runs the tests and writes the report. It returns the command's exit code.
func run(ctx context.Context, opts options, stdout, stderr io.Writer) (int, error) {
	packages, err := listPackages(ctx, opts)
	if err != nil {
		return exitUsage, err
	}
	kernels, err := findKernels(ctx, opts, packages, stderr)
	if err != nil {
		return exitUsage, err
	}
	test2json, err := goCommand(ctx, opts.dir, "tool", "-n", "test2json").Output()
	if err != nil {
		return exitUsage, fmt.Errorf("go tool -n test2json: %w", err)
	}
	// UML reaches this directory through the host's file system.
	binaries, err := os.MkdirTemp("", "slipstream-tests-")
	if err != nil {
		return exitUsage, err
	}
	defer os.RemoveAll(binaries)

	separator := "Kernels: "
	for _, k := range kernels {
		fmt.Fprint(stdout, separator, k.label)
		separator = ", "
	}
	fmt.Fprintln(stdout)

	// Building goes on in the background, in the order in which the binaries are needed.
	for i := range packages {
		p := &packages[i]
		p.binary = filepath.Join(binaries, fmt.Sprintf("%d.test", i))
		p.build = sync.OnceValue(func() error { return compile(ctx, opts.dir, p.path, p.binary) })
	}
	var builders errgroup.Group
	builders.SetLimit(runtime.NumCPU())
	go func() {
		for _, p := range packages {
			builders.Go(p.build)
		}
	}()

	// Packages that share a kernel can disturb each other. So the host runs them one by one,
	// and each has a UML machine of its own. Those machines have one processor and often
	// wait: one more of them runs than the host has processors. The last packages have the
	// longest tests and the oldest kernel is the slowest: they begin.
	x := executor{opts: opts, test2json: strings.TrimSpace(string(test2json)), out: log.New(stdout, "", 0)}
	runs := make([]packageRun, len(kernels)*len(packages))
	var host sync.WaitGroup
	var machines errgroup.Group
	machines.SetLimit(runtime.NumCPU() + 1)
	for i, k := range kernels {
		if k.path == "" {
			host.Go(func() {
				for j, p := range packages {
					runs[i*len(packages)+j] = x.run(ctx, k, p)
				}
			})
		}
	}
	for j, p := range slices.Backward(packages) {
		for i, k := range slices.Backward(kernels) {
			if p.kernel && k.path != "" {
				machines.Go(func() error {
					runs[i*len(packages)+j] = x.run(ctx, k, p)
					return nil
				})
			}
		}
	}
	_ = machines.Wait()
	host.Wait()
	runs = slices.DeleteFunc(runs, func(r packageRun) bool { return r.pkg == "" })

	total := merge(runs, opts.strict)
	total.write(stdout, opts.strict)
	switch {
	case ctx.Err() != nil:
		return exitFailed, fmt.Errorf("interrupted: %w", context.Cause(ctx))
	case total.ok():
		return exitPassed, nil
	default:
		return exitFailed, nil
	}
}
