// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"math"
	"testing"
)

func TestSign(t *testing.T) {
	for _, test := range []struct {
		greater, less, equal int
		want                 float64
	}{
		{7, 0, 0, 1. / 128},
		{0, 7, 0, 1},
		{4, 1, 3, 6. / 32},
		{1, 1, 0, 3. / 4},
		{0, 0, 2, 1},
		{0, 0, 0, 1},
		// 0.5 by the normal approximation, with the half-unit of continuity.
		{1000, 1000, 0, 0.5089},
		{560, 440, 0, 8.2e-5},
	} {
		var first, second []float64
		add := func(n int, a, b float64) {
			for i := range n {
				first, second = append(first, a+float64(i)), append(second, b+float64(i))
			}
		}
		add(test.greater, 2, 1)
		add(test.less, 1, 2)
		add(test.equal, 3, 3)
		got, err := Sign(first, second)
		if err != nil || math.Abs(got-test.want) > 0.02*test.want {
			t.Errorf("%d greater, %d less, %d equal: p = %.6f, %v; want %.6f", test.greater, test.less, test.equal, got, err, test.want)
		}
	}
	if _, err := Sign([]float64{1}, nil); err == nil {
		t.Error("no error for values that are no pairs")
	}
}
