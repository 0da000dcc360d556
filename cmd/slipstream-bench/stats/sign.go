// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"errors"

	moremath "github.com/aclements/go-moremath/stats"
)

// Sign is the p-value of the sign test: how probable it is that in at least so many of
// the pairs the first value is greater, when there is no difference in what they were
// taken of. It asks for nothing but that pairs are independent of each other, so
// whatever changes between pairs and is the same within one does no harm. Pairs of
// equal values do not count; without any other, p is 1.
//
// Seven pairs of which all say the same have a p-value of 0.008.
func Sign(first, second []float64) (float64, error) {
	if len(first) != len(second) {
		return 1, errors.New("sign test: the values are not in pairs")
	}
	greater, less := 0, 0
	for i := range first {
		switch {
		case first[i] > second[i]:
			greater++
		case first[i] < second[i]:
			less++
		}
	}
	// At least so many greater are at most so many less.
	return min(1, moremath.BinomialDist{N: greater + less, P: 0.5}.CDF(float64(less))), nil
}
