// SPDX-License-Identifier: Apache-2.0

package yamldoc

import (
	"fmt"
	"slices"
	"testing"
)

func TestSplit(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"", nil},
		{"# nothing\n---\n\n%YAML 1.1\n---\n", nil},
		{"a: 1\n", []string{`1 "a: 1\n"`}},
		{"a: 1\n---\n# none\n---\nb: 2\n", []string{`1 "a: 1\n"`, `4 "\nb: 2\n"`}},
		{"--- # c\na: 1\n...\nb: 2\n---", []string{`1 "# c\na: 1\n"`, `3 "\nb: 2\n"`}},
		{"--- {a: 1}\r\n---\t\r\nb: 2\r\n", []string{`1 "{a: 1}\r\n"`, `2 "\nb: 2\r\n"`}},
		{"a: |\n  ---\n  ...\n---b: 1\n", []string{`1 "a: |\n  ---\n  ...\n---b: 1\n"`}},
	} {
		var got []string
		for _, d := range Split([]byte(c.text)) {
			got = append(got, fmt.Sprintf("%d %q", d.Line, d.Text))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("Split(%q) = %q, want %q", c.text, got, c.want)
		}
	}
}
