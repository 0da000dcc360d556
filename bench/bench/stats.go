// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/aclements/go-moremath/stats"
)

// Significant is the p-value below which a difference is claimed.
const Significant = 0.05

// Statistic is a number that sums up values.
type Statistic string

const (
	P50     Statistic = "median"
	P99     Statistic = "99th percentile"
	Mean    Statistic = "mean"
	Lowest  Statistic = "lowest"
	Highest Statistic = "highest"
)

func (s Statistic) of(values []float64) float64 {
	switch s {
	case P99:
		return Percentile(values, 99)
	case Mean:
		return stats.Mean(values)
	case Lowest:
		return slices.Min(values)
	case Highest:
		return slices.Max(values)
	}
	return Median(values)
}

// Median is the middle value, or the mean of the two in the middle; 0 of none.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return stats.Sample{Xs: values}.Quantile(0.5)
}

// Percentile is the smallest value that p percent of the values do not exceed (nearest
// rank); 0 of none.
func Percentile(values []float64, p float64) float64 {
	n := len(values)
	if n == 0 {
		return 0
	}
	rank := int(math.Ceil(p / 100 * float64(n)))
	return slices.Sorted(slices.Values(values))[min(max(rank, 1), n)-1]
}

// MannWhitney is the p-value of the two-sided Mann-Whitney U test: how probable it is
// that two series of independent values differ at least as much by chance. Series of equal
// values have a p-value of 1. Three values on each side reach 0.1, five 0.008.
func MannWhitney(first, second []float64) (float64, error) {
	r, err := stats.MannWhitneyUTest(first, second, stats.LocationDiffers)
	if err == stats.ErrSamplesEqual {
		return 1, nil
	} else if err != nil {
		return 1, fmt.Errorf("Mann-Whitney test of %d and %d values: %w", len(first), len(second), err)
	}
	return r.P, nil
}

// Turns makes rounds of a turn of each of n subjects, in the order of [Order]. What disturbs the machine
// for longer than a turn disturbs all subjects.
func Turns(ctx context.Context, rounds, n int, turn func(round, subject int) error) error {
	for round := range rounds {
		for _, i := range Order(n, round) {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := turn(round, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// Order is the order of n turns in a round. Over 2n rounds each subject is first, second
// and so on equally often, and follows each other subject equally often.
func Order(n, round int) []int {
	turns := make([]int, n)
	for i := range turns {
		turns[i] = (round + i) % n
	}
	if round/n%2 == 1 {
		slices.Reverse(turns)
	}
	return turns
}
