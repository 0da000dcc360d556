// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"fmt"

	moremath "github.com/aclements/go-moremath/stats"
)

// Hypothesis is what a test of significance looks for.
type Hypothesis int

// The hypotheses.
const (
	Differs Hypothesis = iota // the first values tend to be less or greater than the second
	Greater                   // the first values tend to be greater
)

// MannWhitney is the p-value of the Mann-Whitney U test (Wilcoxon's rank sum
// test): how probable it is that two series differ at least as much, in the way
// that the hypothesis says, when there is no difference in what they were taken
// of. It asks for no distribution of the values, only that they are independent
// of each other. Series of which all values are equal have a p-value of 1.
//
// With one value on a side no p-value is small; three on each side get to 0.1,
// five to 0.008 (of [Differs]).
func MannWhitney(first, second []float64, h Hypothesis) (float64, error) {
	alternative := moremath.LocationDiffers
	if h == Greater {
		alternative = moremath.LocationGreater
	}
	result, err := moremath.MannWhitneyUTest(first, second, alternative)
	switch err {
	case nil:
		return result.P, nil
	case moremath.ErrSamplesEqual:
		return 1, nil
	}
	return 1, fmt.Errorf("Mann-Whitney test of %d and %d values: %w", len(first), len(second), err)
}
