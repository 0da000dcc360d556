// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"slices"
)

// candidate is a backend of a pool whose choice follows the numbers of connections.
type candidate struct {
	open   int // connections that it has now
	weight int // 0 to 100
}

// level returns the weights with which candidates get the connections until the next update,
// of which there may be expected. The connections level the candidates, in proportion to their
// own weights, as water fills a vessel from its lowest point. No candidate gets more than twice
// its share: all nodes find a new endpoint without connections at the same moment.
func level(all []candidate, expected int) []uint8 {
	const most, steps = 2, 10 // few steps, so that few slots change with an update
	order := make([]int, 0, len(all))
	total := 0
	for i, c := range all {
		if c.weight > 0 {
			order = append(order, i)
			total += c.weight
		}
	}
	slices.SortStableFunc(order, func(i, j int) int {
		return cmp.Compare(all[i].open*all[j].weight, all[j].open*all[i].weight)
	})
	expected = max(expected, len(order))
	gets := make([]float64, len(all))
	highest := 0.0
	for left := float64(expected); len(order) > 0; {
		height := fill(all, order, left)
		// The first one lacks most for its weight.
		i := order[0]
		limit := float64(most*expected*all[i].weight) / float64(total)
		if height*float64(all[i].weight)-float64(all[i].open) <= limit {
			for _, i := range order {
				gets[i] = max(0, height*float64(all[i].weight)-float64(all[i].open))
				highest = max(highest, gets[i])
			}
			break
		}
		gets[i], left, order = limit, left-limit, order[1:]
		highest = max(highest, limit)
	}
	weights := make([]uint8, len(all))
	for i, n := range gets {
		if n > 0 {
			weights[i] = uint8(n/highest*steps + 0.5)
		}
	}
	return weights
}

// fill returns the level, in connections for a weight of 1, of candidates in the order of their
// levels when a number of connections has been added to the lowest ones.
func fill(all []candidate, order []int, water float64) (height float64) {
	width := 0.0
	for _, i := range order {
		open, weight := float64(all[i].open), float64(all[i].weight)
		if width > 0 && open/weight >= water/width {
			break
		}
		water, width = water+open, width+weight
	}
	return water / width
}
