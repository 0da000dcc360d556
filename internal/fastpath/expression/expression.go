// SPDX-License-Identifier: Apache-2.0

// Package expression compiles expressions of the configuration, in CEL (https://cel.dev).
package expression

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/ext"
)

// Expression is an expression of type bool over one variable of type T, a struct with tags "cel".
// It is safe for concurrent use.
type Expression[T any] struct {
	name, text string
	program    cel.Program
	tree       ast.Expr
}

// costLimit limits the cost of one evaluation, in CEL's units. It is enough to compare some
// thousand addresses.
const costLimit = 1_000_000

// Compile compiles an expression. name is that of the variable, also in errors. An invalid
// expression, or one that is not of type bool, returns an error of one line.
func Compile[T any](name, text string) (*Expression[T], error) {
	typ := reflect.TypeFor[T]()
	env, err := cel.NewEnv(
		ext.NativeTypes(typ, ext.ParseStructTags(true)),
		cel.Variable(name, cel.ObjectType(typ.String())),
	)
	if err != nil {
		return nil, fmt.Errorf("CEL: %w", err)
	}
	compiled, issues := env.Compile(text)
	if err := issues.Err(); err != nil {
		e := issues.Errors()[0]
		return nil, fmt.Errorf("%s expression %q: column %d: %s", name, text, e.Location.Column()+1, strings.Join(strings.Fields(e.Message), " "))
	}
	if t := compiled.OutputType(); !t.IsExactType(cel.BoolType) {
		return nil, fmt.Errorf("%s expression %q: is of type %v, not bool", name, text, t)
	}
	program, err := env.Program(compiled, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(costLimit))
	if err != nil {
		return nil, fmt.Errorf("%s expression %q: %w", name, text, err)
	}
	return &Expression[T]{name, text, program, compiled.NativeRep().Expr()}, nil
}

// Eval evaluates the expression. It fails, for example, for the first element of an empty list.
func (e *Expression[T]) Eval(v *T) (bool, error) {
	result, _, err := e.program.Eval(map[string]any{e.name: v})
	if err != nil {
		return false, err
	}
	return result.Value() == true, nil
}

// Tree returns the syntax tree.
func (e *Expression[T]) Tree() ast.Expr { return e.tree }

// String returns the text.
func (e *Expression[T]) String() string { return e.text }
