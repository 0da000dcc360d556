// SPDX-License-Identifier: Apache-2.0

package executed

import (
	"bytes"
	"strings"
	"testing"
)

// TestTable wants two proxies next to each other, of which one has a list and was not
// counted to the end.
func TestTable(t *testing.T) {
	counted := func(services, first, last int, rules ...int) Count {
		c := Count{Services: services, Rules: rules, First: first, Last: last}
		c.SumUp()
		return c
	}
	r := Result{
		Endpoints: 10, Sample: 4, Seed: 7,
		Subjects: []*Subject{
			{Name: "ours", Version: "v1", Counts: []Count{counted(10, 0, 0, 18, 12, 13, 11), counted(1000, 0, 0, 20)}},
			{Name: "theirs", Version: "v2", Failed: "it ended\nwith a log", Counts: []Count{counted(10, 15, 28, 25, 1225, 25, 25)}},
		},
	}
	var out bytes.Buffer
	if err := r.WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	_, got, _ := strings.Cut(out.String(), "\n\n")
	want := `            ours               theirs
Services  median  least  most  median  least   most  first  last of list  times
10          12.5     11    18      25     25  1,225     15            28    2.0
1,000         20     20    20       -      -      -      -             -
`
	if got != want {
		t.Errorf("%s\nwant\n%s", &out, want)
	}
	for _, want := range []string{"drawn with seed 7", "theirs: v2; not all counted: it ended\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}
