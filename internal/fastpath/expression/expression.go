// SPDX-License-Identifier: Apache-2.0

// Package expression compiles expressions of the configuration, in CEL (https://cel.dev).
package expression

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"
	corev1 "k8s.io/api/core/v1"
)

// Expression is an expression of type bool over one variable of type T, a struct with tags "cel".
// It is safe for concurrent use.
type Expression[T any] struct {
	name, text string
	program    cel.Program
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
	return &Expression[T]{name, text, program}, nil
}

// Eval evaluates the expression. It fails, for example, for the first element of an empty list.
func (e *Expression[T]) Eval(v *T) (bool, error) {
	result, _, err := e.program.Eval(map[string]any{e.name: v})
	if err != nil {
		return false, err
	}
	return result.Value() == true, nil
}

// String returns the text.
func (e *Expression[T]) String() string { return e.text }

// pod is the variable of an expression that selects pods.
type pod struct {
	Namespace   string            `cel:"namespace"`
	Name        string            `cel:"name"`
	Labels      map[string]string `cel:"labels"`
	Annotations map[string]string `cel:"annotations"`
}

// Pods returns a function that selects pods by an expression in CEL, such as
//
//	pod.namespace == "voip" || pod.labels["app"] == "sip"
//
// Its variables are pod.namespace, .name, .labels and .annotations (maps of strings). A pod for
// which the expression fails, for example because it lacks a label, is not selected. Pods
// returns nil for an empty expression, and an error of one line for an invalid one.
func Pods(text string) (selects func(*corev1.Pod) bool, err error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	e, err := Compile[pod]("pod", text)
	if err != nil {
		return nil, err
	}
	return func(p *corev1.Pod) bool {
		is, _ := e.Eval(&pod{p.Namespace, p.Name, p.Labels, p.Annotations})
		return is
	}, nil
}
