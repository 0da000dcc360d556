// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"cmp"
	"math"
	"slices"
)

// Number is what statistics are made of.
type Number interface {
	~int | ~int64 | ~uint64 | ~float64
}

// Median is the middle of some values, or the mean of the two in the middle; 0
// of none.
func Median[T Number](values []T) T {
	n := len(values)
	if n == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	if n%2 == 1 {
		return sorted[n/2]
	}
	low, high := sorted[n/2-1], sorted[n/2]
	return low + (high-low)/2
}

// Percentile is the smallest of the values that is not exceeded by p percent of
// them (nearest rank); 0 of none.
func Percentile[T Number](values []T, p float64) T {
	n := len(values)
	if n == 0 {
		return 0
	}
	rank := int(math.Ceil(p / 100 * float64(n)))
	return slices.Sorted(slices.Values(values))[min(max(rank, 1), n)-1]
}

// MedianBy is the element in the middle by some measure, the lower one of two.
// There must be one.
func MedianBy[T any, M cmp.Ordered](values []T, measure func(T) M) T {
	sorted := slices.SortedStableFunc(slices.Values(values), func(a, b T) int {
		return cmp.Compare(measure(a), measure(b))
	})
	return sorted[(len(sorted)-1)/2]
}

// Mean is the arithmetic mean; 0 of none.
func Mean[T Number](values []T) float64 {
	if len(values) == 0 {
		return 0
	}
	var sum float64
	for _, v := range values {
		sum += float64(v)
	}
	return sum / float64(len(values))
}

// StdDev is the standard deviation of the population that the values are a
// sample of (divided by one less than there are); 0 of less than two.
func StdDev[T Number](values []T) float64 {
	if len(values) < 2 {
		return 0
	}
	mean, sum := Mean(values), 0.0
	for _, v := range values {
		d := float64(v) - mean
		sum += d * d
	}
	return math.Sqrt(sum / float64(len(values)-1))
}
