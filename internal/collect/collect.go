// SPDX-License-Identifier: Apache-2.0

// Package collect makes a slice or a set of the members of a slice.
package collect

import "slices"

// From returns what a function makes of each member, in order; nil of none.
func From[T, R any](all []T, make func(T) R) []R {
	results := slices.Grow([]R(nil), len(all))
	for _, one := range all {
		results = append(results, make(one))
	}
	return results
}

// Set returns the set of the members.
func Set[T comparable](all []T) map[T]bool {
	set := make(map[T]bool, len(all))
	for _, one := range all {
		set[one] = true
	}
	return set
}
