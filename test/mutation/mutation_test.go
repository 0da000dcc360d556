// SPDX-License-Identifier: Apache-2.0

//go:build mutation

// Package mutation changes single conditions and constants of a package, one at a time, and runs the package's tests on
// each of these mutants. A mutant that passes shows what the tests do not look at.
package mutation

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	of      = flag.String("of", "internal/desired", "the package, relative to the repository")
	mutants = flag.Int("mutants", 50, "how many mutants are drawn")
	seed    = flag.Uint64("mutation-seed", 0, "the seed of the draw; 0 for a random one")
	tests   = flag.String("tests", "", "run only these of the package's tests")
)

// mutant is one change of a file.
type mutant struct {
	file     string
	line     int
	from, to int // offsets of what is replaced
	text     string
	what     string
}

// TestMutants reports how many of the mutants that compile the tests reject, and lists the others.
func TestMutants(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(root, *of, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var all []mutant
	for _, f := range files {
		if !strings.HasSuffix(f, "_test.go") {
			all = append(all, mutantsOf(t, f)...)
		}
	}
	first := cmp.Or(*seed, 1+rand.Uint64N(1<<32))
	fmt.Printf("%d mutants of %s, seed %d\n", len(all), *of, first)
	rand.New(rand.NewPCG(first, 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	killed, viable := 0, 0
	for _, m := range all {
		if viable == *mutants {
			break
		}
		survived, compiles := run(t, root, m)
		if !compiles {
			continue
		}
		if viable++; !survived {
			killed++
			continue
		}
		name, _ := filepath.Rel(root, m.file)
		fmt.Printf("survived: %s:%d: %s\n", name, m.line, m.what)
	}
	if viable == 0 {
		t.Fatal("no mutant compiles")
	}
	fmt.Printf("%s: %d of %d mutants were rejected, %.0f %%\n", *of, killed, viable, 100*float64(killed)/float64(viable))
}

// run runs the package's tests on a mutant.
func run(t *testing.T, root string, m mutant) (survived, compiles bool) {
	source, err := os.ReadFile(m.file)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	mutated, overlay := filepath.Join(dir, filepath.Base(m.file)), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {m.file: mutated}})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{mutated: slices.Concat(source[:m.from], []byte(m.text), source[m.to:]), overlay: replace} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.CommandContext(t.Context(), "go", "test", "-overlay", overlay, "-vet=off", "-failfast", "-timeout", "5m", "-run", *tests, "./"+*of)
	c.Dir = root
	out, err := c.CombinedOutput()
	return err == nil, !bytes.Contains(out, []byte("[build failed]"))
}

// opposites has, for an operator, the one that a mutant has.
var opposites = map[token.Token]string{
	token.EQL: "!=", token.NEQ: "==", token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">",
	token.LAND: "||", token.LOR: "&&", token.ADD: "-", token.SUB: "+",
}

func mutantsOf(t *testing.T, file string) (all []mutant) {
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, file, source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	add := func(at token.Pos, length int, text string) {
		p := files.Position(at)
		was := string(source[p.Offset : p.Offset+length])
		all = append(all, mutant{file, p.Line, p.Offset, p.Offset + length, text, fmt.Sprintf("%s becomes %s", was, text)})
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BinaryExpr:
			if to := opposites[n.Op]; to != "" {
				add(n.OpPos, len(n.Op.String()), to)
			}
		case *ast.IfStmt:
			cond := string(source[files.Position(n.Cond.Pos()).Offset:files.Position(n.Cond.End()).Offset])
			add(n.Cond.Pos(), len(cond), "!("+cond+")")
		case *ast.BasicLit:
			if v, err := strconv.Atoi(n.Value); n.Kind == token.INT && err == nil {
				add(n.Pos(), len(n.Value), strconv.Itoa(v+1))
			}
		case *ast.Ident:
			if to := map[string]string{"true": "false", "false": "true"}[n.Name]; to != "" {
				add(n.Pos(), len(n.Name), to)
			}
		}
		return true
	})
	return all
}
