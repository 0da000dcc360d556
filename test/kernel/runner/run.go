// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/test/kernel/uml"
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

	fmt.Fprintln(stdout, "Kernels:", strings.Join(collect.From(kernels, func(k kernel) string { return k.label }), ", "))

	// Building goes on in the background, in the order in which the binaries are needed.
	for i := range packages {
		p := &packages[i]
		p.plain = newBinary(ctx, opts.dir, p.path, filepath.Join(binaries, fmt.Sprintf("%d.test", i)), false)
		p.onHost = p.plain
		if slices.ContainsFunc(opts.race, p.matches) {
			p.onHost = newBinary(ctx, opts.dir, p.path, filepath.Join(binaries, fmt.Sprintf("%d.race.test", i)), true)
		}
		for _, k := range kernels {
			if p.kernel || k.path == "" {
				p.on(k).runs.Add(1)
			}
		}
	}
	var builders errgroup.Group
	builders.SetLimit(runtime.NumCPU())
	go func() {
		for _, p := range packages {
			for _, b := range slices.Compact([]*binary{p.onHost, p.plain}) {
				if b.runs.Load() > 0 {
					builders.Go(b.build)
				}
			}
		}
	}()

	// Packages that share a kernel can disturb each other: the host runs those with kernel tests one by one, and
	// each has a UML machine of its own. These have one processor and often wait, so one more runs than the host has
	// processors; packages without kernel tests take turns with them. The packages with the longest tests, and the oldest
	// kernel, the slowest, begin. The kernels between it and the host's run the tests that did not wholly pass
	// on the host, and so does the oldest with packages that are alike on all kernels.
	x := executor{opts: opts, test2json: strings.TrimSpace(string(test2json)), out: log.New(stdout, "", 0)}
	runs := make([]packageRun, len(kernels)*len(packages))
	onHost := kernels[0].path == ""
	ended := make([]chan struct{}, len(packages)) // on the host
	for j := range packages {
		ended[j] = make(chan struct{})
	}
	var host sync.WaitGroup
	if onHost {
		host.Go(func() {
			var turns errgroup.Group
			if turns.SetLimit(1); opts.kernel == "host" && opts.race != nil {
				turns.SetLimit(runtime.NumCPU()) // as go test does; races need some disturbance
			}
			for j, p := range packages {
				if p.kernel {
					turns.Go(func() error {
						defer close(ended[j])
						runs[j] = x.run(ctx, kernels[0], p)
						return nil
					})
				}
			}
			_ = turns.Wait()
		})
	}
	var machines errgroup.Group
	if machines.SetLimit(runtime.NumCPU() + 1); opts.kernel == "host" {
		machines.SetLimit(1)
	}
	whole := func(i int, p testPackage) bool {
		return !onHost || !p.kernel || i == len(kernels)-1 && !slices.Contains(alike, p.name)
	}
	for _, first := range []bool{true, false} {
		for i, k := range slices.Backward(kernels) {
			for j, p := range packages {
				if (k.path == "") == p.kernel || whole(i, p) != first {
					continue
				}
				machines.Go(func() error {
					if !first {
						<-ended[j]
						p.skip = runs[j].passed()
					}
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
	if flaky := x.again(ctx, total, runs, kernels, packages); len(flaky) > 0 {
		total = merge(runs, opts.strict)
		total.flaky = flaky
	}
	total.write(stdout, opts.strict)
	if ctx.Err() != nil {
		return exitFailed, fmt.Errorf("interrupted: %w", context.Cause(ctx))
	}
	if !total.ok() {
		return exitFailed, nil
	}
	return exitPassed, nil
}

// longest are the packages whose tests take longest, the longest last.
var longest = []string{"./internal/dataplane/nftables", "./internal/dataplane/iptables", "./internal/fastpath", "./cmd/slipstream", "./test/scenario"}

// alike are packages with long tests of which little depends on the version of the kernel. The oldest runs those that did
// not wholly pass on the host; with -kernel 6.1 it runs all.
var alike = []string{"./cmd/slipstream", "./internal/dataplane/iptables", "./internal/proxy"}

// kernelNames are the values of -kernel.
var kernelNames = append([]string{"all", "uml", "host"}, uml.Versions...)

// kernel is a kernel to run tests on.
type kernel struct {
	name  string // "host", or one of uml.Versions
	label string // with the release, such as "uml 6.12.117"
	path  string // of a UML kernel; empty for the host
}

// findKernels returns the kernels that the options select, and builds those that are
// missing. One that cannot be built on this machine is an error in CI, and where -kernel
// names it; one that does not boot is always an error.
func findKernels(ctx context.Context, opts options, packages []testPackage, stderr io.Writer) ([]kernel, error) {
	var found []kernel
	if opts.kernel == "all" || opts.kernel == "host" {
		release, err := os.ReadFile("/proc/sys/kernel/osrelease")
		if err != nil {
			return nil, err
		}
		found = append(found, kernel{name: "host", label: "host " + strings.TrimSpace(string(release))})
	}
	if !slices.ContainsFunc(packages, func(p testPackage) bool { return p.kernel }) {
		return found, nil
	}
	for _, version := range uml.Versions {
		if opts.kernel != "all" && opts.kernel != "uml" && opts.kernel != version {
			continue
		}
		path, err := buildKernel(ctx, opts.script, version, stderr)
		if errors.Is(err, errUnavailable) && !opts.ci && opts.kernel == "all" {
			banner(stderr, "NO KERNEL "+version+": its tests run on the other kernels alone", err.Error())
			continue
		}
		if err != nil {
			return nil, err
		}
		release, err := uml.Machine{Kernel: path}.Check(ctx)
		if err != nil {
			return nil, err
		}
		found = append(found, kernel{name: version, label: "uml " + release, path: path})
	}
	return found, nil
}

var errUnavailable = errors.New("not available") // missing, and cannot be built on this machine

// buildKernel returns the path of a kernel. build.sh builds it if none is named or cached.
func buildKernel(ctx context.Context, script, version string, stderr io.Writer) (string, error) {
	cmd := exec.CommandContext(ctx, script, version)
	cmd.Stderr = stderr
	out, err := cmd.Output()
	if status, is := errors.AsType[*exec.ExitError](err); is && status.ExitCode() == 3 {
		return "", fmt.Errorf("kernel %s: %w, see the output of build.sh", version, errUnavailable)
	}
	if err != nil {
		return "", fmt.Errorf("kernel %s: %s: %w", version, script, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// testPackage is a package with tests.
type testPackage struct {
	path   string // import path
	name   string // in the output: the path, relative to the module
	dir    string // where its tests run
	kernel bool   // its tests run on every kernel

	plain, onHost *binary  // the same, but where -race names the package
	skip          []string // tests that need not run
}

// on returns the binary that runs on a kernel.
func (p testPackage) on(k kernel) *binary {
	if k.path == "" {
		return p.onHost
	}
	return p.plain
}

// matches reports whether a pattern such as ./a or ./a/... names the package.
func (p testPackage) matches(pattern string) bool {
	above, all := strings.CutSuffix(pattern, "/...")
	return p.name == above || all && strings.HasPrefix(p.name, above+"/")
}

// binary is that of a package's tests.
type binary struct {
	path  string
	build func() error // builds it, once; the error has the compiler's output
	runs  atomic.Int32 // that still need it
}

func newBinary(ctx context.Context, dir, pkg, path string, race bool) *binary {
	return &binary{path: path, build: sync.OnceValue(func() error { return compile(ctx, dir, pkg, path, race) })}
}

// listPackages returns the packages that match the patterns and have tests. Without the
// host's kernel, they are those with kernel tests.
func listPackages(ctx context.Context, opts options) ([]testPackage, error) {
	fields := "-json=ImportPath,Dir,Name,ForTest,Deps,TestGoFiles,XTestGoFiles,Module,Error"
	cmd := goCommand(ctx, opts.dir, append([]string{"list", "-e", "-test", fields, "--"}, opts.patterns...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, &stderr)
	}
	packages, err := readList(bytes.NewReader(out))
	if err == nil && len(packages) == 0 {
		err = fmt.Errorf("no package with tests matches %s", strings.Join(opts.patterns, " "))
	}
	if opts.kernel != "all" && opts.kernel != "host" {
		packages = slices.DeleteFunc(packages, func(p testPackage) bool { return !p.kernel })
	}
	slices.SortStableFunc(packages, func(a, b testPackage) int {
		return cmp.Compare(slices.Index(longest, b.name), slices.Index(longest, a.name))
	})
	return packages, err
}

// readList reads the output of go list -test: for each package with tests the package "a"
// itself, variants such as "a [a.test]", and the main package "a.test", which depends on
// everything that the tests import.
func readList(r io.Reader) ([]testPackage, error) {
	var packages []testPackage
	kernel := map[string]bool{}
	for decoder := json.NewDecoder(r); decoder.More(); {
		var l struct {
			ImportPath, Dir, Name, ForTest  string
			Deps, TestGoFiles, XTestGoFiles []string
			Module                          struct{ Path string }
			Error                           *struct{ Err string }
		}
		if err := decoder.Decode(&l); err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		hasTests := len(l.TestGoFiles)+len(l.XTestGoFiles) > 0
		tested, isTestMain := strings.CutSuffix(l.ImportPath, ".test")
		switch {
		case l.ForTest != "" || strings.Contains(l.ImportPath, " "):
			// A variant for a test. Its files are listed with the package itself.
		case isTestMain && l.Name == "main" && !hasTests:
			kernel[tested] = slices.ContainsFunc(l.Deps, func(path string) bool {
				path, _, _ = strings.Cut(path, " ") // a variant
				return strings.HasSuffix(path, "/test/kernel/kerneltest")
			})
		case l.Error != nil && l.Dir == "":
			// A pattern that matches nothing.
			return nil, errors.New(strings.TrimSpace(l.Error.Err))
		case l.Error != nil || hasTests:
			// The error, if any, is reported when the package is built.
			packages = append(packages, testPackage{path: l.ImportPath, dir: l.Dir, name: l.ImportPath})
			if rest, ok := strings.CutPrefix(l.ImportPath, l.Module.Path); ok && l.Module.Path != "" {
				packages[len(packages)-1].name = "." + rest
			}
		}
	}
	for i := range packages {
		packages[i].kernel = kernel[packages[i].path]
	}
	return packages, nil
}

// goCommand returns a go command that works in dir, at the lowest priority so that it does
// not slow down tests. Without cgo a test binary needs no libraries of its machine.
func goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "nice", append([]string{"-n", "19", "go"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	return cmd
}

// compile builds one test binary. All of them take some gigabytes, so they have no symbols.
func compile(ctx context.Context, dir, path, binary string, race bool) error {
	cmd := goCommand(ctx, dir, "test", "-c", "-ldflags", "-s -w", "-o", binary, path)
	if race {
		cmd.Args = slices.Insert(cmd.Args, len(cmd.Args)-1, "-race")
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
	}
	out, err := cmd.CombinedOutput()
	if err == nil {
		_, err = os.Stat(binary) // go test -c succeeds without a binary when there are no tests
	}
	if err != nil {
		return fmt.Errorf("the tests do not build:\n%s%w", out, err)
	}
	return nil
}
