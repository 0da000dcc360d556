// SPDX-License-Identifier: Apache-2.0

package iface

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/ext"
	"github.com/slipstream-proxy/slipstream/internal/node/netif"
	"golang.org/x/sys/unix"
)

// Selector tells which interfaces take part. It is safe for concurrent use.
type Selector struct {
	expression string
	program    cel.Program // nil for the default
	patterns   []Pattern
}

// Default selects the interfaces that are up and neither loopback nor WireGuard nor
// ports of a bridge or bond.
func Default() *Selector { return &Selector{} }

// variable is the interface as an expression sees it.
type variable struct {
	Name      string   `cel:"name"`
	Type      string   `cel:"type"`
	Addresses []string `cel:"addresses"`
	MTU       int      `cel:"mtu"`
	Up        bool     `cel:"up"`
	PortOf    string   `cel:"portOf"`
}

const variableName = "interface"

var environment = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		ext.NativeTypes(reflect.TypeFor[variable](), ext.ParseStructTags(true)),
		cel.Variable(variableName, cel.ObjectType("iface.variable")),
	)
})

// costLimit bounds what one evaluation may cost, in CEL's units: enough for
// looking at some thousand addresses.
const costLimit = 1_000_000

// Compile makes a Selector of an expression in CEL (https://cel.dev), such as
//
//	interface.name.startsWith("veth") || interface.type == "vxlan"
//
// It knows interface.name, .type, .addresses (a list of strings), .mtu (bytes),
// .up and .portOf, as [netif.Interface] has them. It alone decides: it may select
// interfaces that the default leaves out. An empty expression is the default.
//
// An expression that has mistakes, or whose value is not a truth value, gives an
// error in one line.
func Compile(expression string) (*Selector, error) {
	if strings.TrimSpace(expression) == "" {
		return Default(), nil
	}
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("CEL: %w", err)
	}
	compiled, issues := env.Compile(expression)
	if err := issues.Err(); err != nil {
		e := issues.Errors()[0]
		return nil, fmt.Errorf("interface expression %q: column %d: %s", expression, e.Location.Column()+1, strings.Join(strings.Fields(e.Message), " "))
	}
	if t := compiled.OutputType(); !t.IsExactType(cel.BoolType) {
		return nil, fmt.Errorf("interface expression %q: is of type %v, not bool", expression, t)
	}
	program, err := env.Program(compiled, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(costLimit))
	if err != nil {
		return nil, fmt.Errorf("interface expression %q: %w", expression, err)
	}
	s := &Selector{expression: expression, program: program}
	if p, ok := patterns(compiled.NativeRep().Expr()); ok {
		s.patterns = disjoint(p)
	}
	return s, nil
}

// String is the expression; "" for the default.
func (s *Selector) String() string { return s.expression }

// Selects says whether an interface takes part. An error is the expression's, when
// it asks for what is not there (addresses[0] of an interface without any); such
// an interface does not take part.
func (s *Selector) Selects(i *netif.Interface) (bool, error) {
	if s.program == nil {
		return byDefault(i), nil
	}
	v := &variable{Name: i.Name, Type: i.Type, Addresses: make([]string, len(i.Addresses)), MTU: i.MTU, Up: i.Up, PortOf: i.PortOf}
	for n, a := range i.Addresses {
		v.Addresses[n] = a.String()
	}
	result, _, err := s.program.Eval(map[string]any{variableName: v})
	if err != nil {
		return false, fmt.Errorf("interface expression %q: interface %s: %w", s.expression, i.Name, err)
	}
	return result.Value() == true, nil
}

// Pattern is an interface's name or, with Prefix, a prefix of names.
type Pattern struct {
	Name   string
	Prefix bool
}

func (p Pattern) includes(q Pattern) bool {
	return p == q || p.Prefix && strings.HasPrefix(q.Name, p.Name)
}

// Patterns returns patterns that match exactly the interfaces that the Selector selects,
// for kernels that match names themselves. No two of them match the same name. It returns
// nil if the expression uses anything but names.
func (s *Selector) Patterns() []Pattern { return s.patterns }

// disjoint removes patterns that others include, which the kernel refuses in one flowtable
// (EEXIST), and names that are too long for an interface.
func disjoint(all []Pattern) (some []Pattern) {
	for _, p := range all {
		if len(p.Name) < unix.IFNAMSIZ && !slices.ContainsFunc(some, func(q Pattern) bool { return q.includes(p) }) {
			some = append(slices.DeleteFunc(some, p.includes), p)
		}
	}
	return some
}

// patterns reads an expression that consists of name.startsWith("...") and name ==
// "...", with || between.
func patterns(e ast.Expr) (all []Pattern, ok bool) {
	if e.Kind() != ast.CallKind {
		return nil, false
	}
	call := e.AsCall()
	switch args := call.Args(); call.FunctionName() {
	case operators.LogicalOr:
		for _, arg := range args {
			some, ok := patterns(arg)
			if !ok {
				return nil, false
			}
			all = append(all, some...)
		}
		return all, true
	case operators.Equals:
		for i := range args {
			if name, ok := text(args[1-i]); ok && isName(args[i]) {
				return []Pattern{{Name: name}}, name != ""
			}
		}
	case "startsWith":
		if name, ok := text(args[0]); ok && call.IsMemberFunction() && isName(call.Target()) {
			return []Pattern{{Name: name, Prefix: true}}, name != ""
		}
	}
	return nil, false
}

func isName(e ast.Expr) bool {
	if e.Kind() != ast.SelectKind {
		return false
	}
	s := e.AsSelect()
	return s.FieldName() == "name" && !s.IsTestOnly() && s.Operand().Kind() == ast.IdentKind && s.Operand().AsIdent() == variableName
}

func text(e ast.Expr) (string, bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	s, ok := e.AsLiteral().Value().(string)
	return s, ok
}
