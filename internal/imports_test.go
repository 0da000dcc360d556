// SPDX-License-Identifier: Apache-2.0

package internal

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/slipstream-proxy/slipstream/"

// source is the files of one package that are not tests.
type source struct {
	imports []string // those of this module start with "internal/" or the like
	starts  bool     // goroutines
}

// sources reads all packages below a directory, by path in the module.
func sources(t *testing.T, dir string) map[string]source {
	all := map[string]source{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), "../")
		s := all[name]
		for _, i := range file.Imports {
			s.imports = append(s.imports, strings.TrimPrefix(strings.Trim(i.Path.Value, `"`), module))
		}
		ast.Inspect(file, func(n ast.Node) bool {
			_, is := n.(*ast.GoStmt)
			s.starts = s.starts || is
			return true
		})
		all[name] = s
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// row is a row of the table in architecture.md: packages, and those of internal that they may import.
var row = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| ((?:`[^`]+`,? ?)+)\\|")

// TestImports holds the rules of architecture.md about which package knows which.
func TestImports(t *testing.T) {
	text, err := os.ReadFile("../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	rules := row.FindAllStringSubmatch(string(text), -1)
	if len(rules) < 5 {
		t.Fatalf("architecture.md has %d rules", len(rules))
	}
	all := sources(t, "../internal")
	// matches reports whether a package is meant by its name or, with "/*", by its parent's.
	matches := func(path, rule string) bool {
		parent, below := strings.CutSuffix(rule, "/*")
		return below && strings.HasPrefix(path, parent+"/") || path == rule
	}
	for _, r := range rules {
		used := false
		for path, s := range all {
			path = strings.TrimPrefix(path, "internal/")
			if !matches(path, r[1]) || strings.HasSuffix(path, "test") { // helpers of tests
				continue
			}
			used = true
			for _, i := range s.imports {
				i, ours := strings.CutPrefix(i, "internal/")
				allowed := slices.ContainsFunc(strings.Split(r[2], "`"), func(rule string) bool { return matches(i, rule) })
				if ours && !allowed {
					t.Errorf("%s imports %s, and may import %s of internal only", path, i, r[2])
				}
			}
		}
		if !used {
			t.Errorf("there is no package %s", r[1])
		}
	}

	desired := all["internal/desired"]
	if desired.starts {
		t.Error("desired starts goroutines")
	}
	for _, i := range desired.imports {
		if slices.Contains([]string{"net", "os", "os/exec", "syscall", "net/http", "golang.org/x/sys/unix"}, i) || strings.HasPrefix(i, "k8s.io/client-go") {
			t.Errorf("desired imports %s, but does no I/O", i)
		}
	}
	for _, dir := range []string{"../internal", "../cmd"} {
		for path, s := range sources(t, dir) {
			for _, i := range s.imports {
				if strings.HasPrefix(i, "test/") && !strings.HasSuffix(path, "test") {
					t.Errorf("%s imports %s, which is for tests", path, i)
				}
			}
		}
	}
}
