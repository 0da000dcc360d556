// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"math"
	"testing"
)

func TestMannWhitney(t *testing.T) {
	sequence := func(from, n int) (all []float64) {
		for i := range n {
			all = append(all, float64(from+i))
		}
		return all
	}
	tests := []struct {
		name          string
		first, second []float64
		h             Hypothesis
		want          float64
	}{
		// Exact: of the C(10, 5) = 252 ways to rank, one has all of the first on
		// top, and one all at the bottom.
		{"all greater", sequence(6, 5), sequence(1, 5), Greater, 1. / 252},
		{"all less", sequence(1, 5), sequence(6, 5), Greater, 1},
		{"all greater, two-sided", sequence(6, 5), sequence(1, 5), Differs, 2. / 252},
		{"all less, two-sided", sequence(1, 5), sequence(6, 5), Differs, 2. / 252},
		{"one each", sequence(2, 1), sequence(1, 1), Greater, 1. / 2},
		// U is 21 of 25; of the 252 ways, 1+1+2+3+5 have 21 or more.
		{"mixed", []float64{3, 6, 8, 9, 10}, []float64{1, 2, 4, 5, 7}, Greater, 12. / 252},
		// The example of wilcox.test in R, from Hollander and Wolfe (1973),
		// page 69: permeability constants of the human chorioamnion.
		{
			"Hollander and Wolfe",
			[]float64{0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46},
			[]float64{1.15, 0.88, 0.90, 0.74, 1.21}, Greater, 0.1272,
		},
		{"all equal", []float64{1, 1, 1}, []float64{1, 1, 1}, Differs, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := MannWhitney(test.first, test.second, test.h)
			if err != nil {
				t.Fatal(err)
			}
			if math.Abs(got-test.want) > 5e-5 {
				t.Errorf("p = %.5f, want %.5f", got, test.want)
			}
		})
	}
	if _, err := MannWhitney(nil, sequence(1, 3), Differs); err == nil {
		t.Error("no error without values")
	}
}
