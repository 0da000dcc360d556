// SPDX-License-Identifier: Apache-2.0

package expression

import (
	"strings"
	"testing"
)

type thing struct {
	Name   string            `cel:"name"`
	Labels map[string]string `cel:"labels"`
	All    []string          `cel:"all"`
}

// FuzzCompile: no expression, however odd, ends the process; an error is one line, and evaluation has an end
// whatever a tenant writes into the object.
func FuzzCompile(f *testing.F) {
	f.Add(`x.name == "mesh" && x.labels["a"].startsWith("b")`, "mesh", "a", "b")
	f.Add(`x.all.exists(a, x.all.all(b, x.all.exists(c, a + b + c == x.name)))`, "x", "x", "y")
	f.Add("x.name.matches('(a+)+$')\n|| false", strings.Repeat("a", 30), "", "")
	f.Fuzz(func(t *testing.T, text, name, key, value string) {
		e, err := Compile[thing]("x", text)
		if err != nil {
			if strings.ContainsAny(strings.ReplaceAll(err.Error(), text, ""), "\n\r") {
				t.Errorf("the error has several lines: %q", err)
			}
			return
		}
		_, _ = e.Eval(&thing{name, map[string]string{key: value}, []string{name, key, value}})
	})
}
