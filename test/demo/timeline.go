// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"slices"
	"time"

	"github.com/fatih/color"
)

// The timeline's columns before and after the file's rename.
const (
	cellsBefore = 18
	cellsAfter  = 36
)

// timeline shows who answered when, around the rename of a file.
type timeline struct {
	flows   []*flow
	renamed time.Time
	window  time.Duration // over which connections are counted, before and after
	settled time.Time     // when the window after begins
}

// cell returns the time of one column: such that the change is within the first
// half of the columns after the rename.
func (t *timeline) cell() time.Duration {
	changed := t.settled.Sub(t.renamed)
	for _, ms := range []time.Duration{2, 5, 10, 20, 50, 100, 200, 500} {
		if changed <= ms*time.Millisecond*cellsAfter/2 {
			return ms * time.Millisecond
		}
	}
	return time.Second
}

// needs returns until when connections must flow for the timeline to be whole.
func (t *timeline) needs() time.Time {
	columns, counts := t.renamed.Add(cellsAfter*t.cell()), t.settled.Add(t.window)
	if counts.After(columns) {
		return counts
	}
	return columns
}

// show prints a line for each server, in a style of its own where there is one.
func (t *timeline) show(s *screen, servers []string, styles map[string]*color.Color) {
	cell := t.cell()
	start := t.renamed.Add(-cellsBefore * cell)
	begin := t.renamed.Add(-t.window)
	if start.Before(begin) {
		begin = start
	}
	cells, before, after := map[string][]int{}, map[string]int{}, map[string]int{}
	for _, f := range t.flows {
		for _, v := range answered(f.since(begin), "") {
			if cells[v.server] == nil {
				cells[v.server] = make([]int, cellsBefore+cellsAfter)
			}
			if i := int(v.begin.Sub(start) / cell); !v.begin.Before(start) && i < cellsBefore+cellsAfter {
				cells[v.server][i]++
			}
			switch {
			case v.begin.Before(t.renamed):
				if !v.begin.Before(t.renamed.Add(-t.window)) {
					before[v.server]++
				}
			case !v.begin.Before(t.settled) && v.begin.Before(t.settled.Add(t.window)):
				after[v.server]++
			}
		}
	}
	most := usual(slices.Concat(slices.Collect(maps.Values(cells))...))
	axis := left("-"+whole(cellsBefore*cell), cellsBefore) + "v file renamed"
	end := "+" + whole(cellsAfter*cell)
	axis += right(end, cellsBefore+cellsAfter-len(axis))
	s.line()
	s.line("  ", faint.Sprint(left("", 7), axis, right("before", 8), right("after", 7)))
	for _, server := range servers {
		row := cells[server]
		if row == nil {
			row = make([]int, cellsBefore+cellsAfter)
		}
		style := styles[server]
		if style == nil {
			style = filled
		}
		s.line("  ", left(server, 7), style.Sprint(strip(row, most)),
			right(orDash(before[server]), 8), right(orDash(after[server]), 7))
	}
	s.line("         ", faint.Sprintf("New connections by the pod that answered, one column for %s;", whole(cell)))
	s.line("         ", faint.Sprintf("counted over %s before the rename and after the change.", whole(t.window)))
	s.line()
}

// usual returns what nine of ten of the numbers above 0 do not exceed, so that a
// single high one does not make all others look small.
func usual(numbers []int) int {
	numbers = slices.DeleteFunc(slices.Clone(numbers), func(n int) bool { return n == 0 })
	if len(numbers) == 0 {
		return 1
	}
	slices.Sort(numbers)
	return numbers[(len(numbers)-1)*9/10]
}

func orDash(n int) string {
	if n == 0 {
		return "-"
	}
	return count(n)
}
