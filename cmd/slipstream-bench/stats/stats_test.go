// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"slices"
	"testing"
)

func TestMedianAndPercentile(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = 100 - i
	}
	tests := []struct {
		name        string
		values      []int
		median, p99 int
		p50         int
	}{
		{"none", nil, 0, 0, 0},
		{"one", []int{7}, 7, 7, 7},
		{"two", []int{8, 4}, 6, 8, 4},
		{"odd, out of order", []int{9, 1, 5}, 5, 9, 5},
		{"even", []int{40, 10, 20, 30}, 25, 40, 20},
		{"an outlier", []int{1, 1, 1, 1000}, 1, 1000, 1},
		{"hundred", hundred, 50, 99, 50},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			before := slices.Clone(test.values)
			if got := Median(test.values); got != test.median {
				t.Errorf("median %d, want %d", got, test.median)
			}
			if got := Percentile(test.values, 99); got != test.p99 {
				t.Errorf("99th percentile %d, want %d", got, test.p99)
			}
			if got := Percentile(test.values, 50); got != test.p50 {
				t.Errorf("50th percentile %d, want %d", got, test.p50)
			}
			if !slices.Equal(before, test.values) {
				t.Error("the values were changed")
			}
		})
	}
}

func TestMedianBy(t *testing.T) {
	length := func(s string) int { return len(s) }
	for want, values := range map[string][]string{
		"aa": {"aaa", "aa", "a"},
		"b":  {"bb", "b"},
		"c":  {"c"},
	} {
		if got := MedianBy(values, length); got != want {
			t.Errorf("%q of %q, want %q", got, values, want)
		}
	}
}
