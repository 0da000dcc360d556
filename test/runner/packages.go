// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// testPackage is a package with tests.
type testPackage struct {
	path   string // import path
	name   string // in the output: the path, relative to the module
	dir    string // where its tests run
	kernel bool   // its tests run on every kernel

	binary string       // of the tests
	build  func() error // builds the binary, once; the error has the compiler's output
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
				return strings.HasSuffix(path, "/test/kerneltest")
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

// compile builds one test binary.
func compile(ctx context.Context, dir, path, binary string) error {
	out, err := goCommand(ctx, dir, "test", "-c", "-o", binary, path).CombinedOutput()
	if err == nil {
		_, err = os.Stat(binary) // go test -c succeeds without a binary when there are no tests
	}
	if err != nil {
		return fmt.Errorf("the tests do not build:\n%s%w", out, err)
	}
	return nil
}
