// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// marker ends the import path of the package that makes a test a kernel test.
const marker = "/test/kerneltest"

// testPackage is a package with tests.
type testPackage struct {
	path   string // import path
	dir    string // where its tests run
	kernel bool   // they need a kernel, so they run on each
}

// listedPackage is the part of go list's output that matters here.
type listedPackage struct {
	ImportPath   string
	Dir          string
	Name         string
	ForTest      string
	Deps         []string
	TestGoFiles  []string
	XTestGoFiles []string
	Error        *struct{ Err string }
}

// listPackages returns the packages that match patterns and have tests.
func listPackages(ctx context.Context, dir string, patterns []string) ([]testPackage, error) {
	args := []string{"list", "-e", "-test", "-json=ImportPath,Dir,Name,ForTest,Deps,TestGoFiles,XTestGoFiles,Error", "--"}
	out, err := goOutput(ctx, dir, append(args, patterns...)...)
	if err != nil {
		return nil, err
	}
	packages, err := readList(strings.NewReader(out))
	if err != nil {
		return nil, err
	}
	if len(packages) == 0 {
		return nil, fmt.Errorf("no package with tests matches %s", strings.Join(patterns, " "))
	}
	return packages, nil
}

// readList makes packages of what go list -test printed. For each package with tests
// that names the package itself, variants of it such as "a [a.test]", and the test's
// main package "a.test", whose dependencies are all that the tests import, by whatever
// way.
func readList(r io.Reader) ([]testPackage, error) {
	var packages []testPackage
	kernel := map[string]bool{}
	for decoder := json.NewDecoder(r); ; {
		var l listedPackage
		err := decoder.Decode(&l)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		switch {
		case l.ForTest != "" || strings.Contains(l.ImportPath, " "):
			// A variant for a test: its files are listed with the package proper.
		case l.Name == "main" && strings.HasSuffix(l.ImportPath, ".test") && len(l.TestGoFiles)+len(l.XTestGoFiles) == 0:
			if slices.ContainsFunc(l.Deps, isMarker) {
				kernel[strings.TrimSuffix(l.ImportPath, ".test")] = true
			}
		case l.Error != nil && l.Dir == "":
			// A pattern that names nothing.
			return nil, errors.New(string(bytes.TrimSpace([]byte(l.Error.Err))))
		case l.Error != nil || len(l.TestGoFiles)+len(l.XTestGoFiles) > 0:
			// Building a package with an error will tell it.
			packages = append(packages, testPackage{path: l.ImportPath, dir: l.Dir})
		}
	}
	for i := range packages {
		packages[i].kernel = kernel[packages[i].path]
	}
	return packages, nil
}

// isMarker tells the marking package, or the variant of it that its own tests use.
func isMarker(dependency string) bool {
	path, _, _ := strings.Cut(dependency, " ")
	return strings.HasSuffix(path, marker)
}
