// SPDX-License-Identifier: Apache-2.0

// Package collect makes slices, sets and the entries of maps.
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

// Entry returns the value of a key, a new one if there is none.
func Entry[K comparable, V any](all map[K]*V, key K) *V {
	if all[key] == nil {
		all[key] = new(V)
	}
	return all[key]
}
