// SPDX-License-Identifier: Apache-2.0

package main

import "time"

// times prints what each client saw of a step, next to what the slipstream of its
// node says: for each thing the time since the file's rename, or a dash if the
// client did not see it. The flows are one for each node.
func (d *demo) times(s step, flows []*flow, what string, things []string, saw func(*flow, string) (time.Duration, bool)) {
	const kernel, thing = 14, 18 // columns
	head, names := left("", 26)+right("kernel", kernel), left("", 26)+right("programmed", kernel)
	for _, t := range things {
		head += right(what, thing)
		names += right(t, thing)
	}
	d.line("  ", faint.Sprint(head))
	d.line("  ", faint.Sprint(names))
	for i, f := range flows {
		row := left(f.name(), 26) + right("in "+short(s.nodes[i].took), kernel)
		for _, t := range things {
			after, ok := saw(f, t)
			if !ok {
				row += right("-", thing)
				continue
			}
			d.saw(after)
			row += right("after "+short(after), thing)
		}
		d.line("  ", row)
	}
}
