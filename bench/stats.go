// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// number is what statistics are made of.
type number interface {
	~int | ~int64 | ~uint64 | ~float64
}

// median is the middle of some values, or the mean of the two in the middle; 0
// of none.
func median[T number](values []T) T {
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

// percentile is the smallest of the values that is not exceeded by p percent of
// them (nearest rank); 0 of none.
func percentile[T number](values []T, p float64) T {
	n := len(values)
	if n == 0 {
		return 0
	}
	rank := int(math.Ceil(p / 100 * float64(n)))
	return slices.Sorted(slices.Values(values))[min(max(rank, 1), n)-1]
}

// medianBy is the element in the middle by some measure, the lower one of two.
// There must be one.
func medianBy[T any, M cmp.Ordered](values []T, measure func(T) M) T {
	sorted := slices.SortedStableFunc(slices.Values(values), func(a, b T) int {
		return cmp.Compare(measure(a), measure(b))
	})
	return sorted[(len(sorted)-1)/2]
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
