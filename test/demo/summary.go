// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// summary adds up.
func (d *demo) summary(context.Context) error {
	n := d.traffic.totals()
	var trouble []string
	for _, a := range d.agents {
		trouble = append(trouble, a.log.trouble()...)
	}
	d.section("Summary")
	d.line("  ", faint.Sprint(left("update", 22), right("kernel programmed in", 24), right("seen by clients after", 24)))
	for _, u := range d.updates {
		d.line("  ", left(u.name, 22), right(span(u.took), 24), right(span(u.seen), 24))
	}
	d.line()
	d.say("Some 10 ms until clients see a change are slipstream's wait for the writer of a file to be done with it.")
	d.line()
	row := func(name string, value int64, note string) {
		d.line("  ", left(name, 34), bold.Sprint(right(count(value), 12)), "  ", faint.Sprint(note))
	}
	row("connections made", n.made, "TCP and UDP, IPv4 and IPv6")
	row("  refused, as they should be", n.refused, "while orders had no pod")
	row("  failed", n.failed, strings.TrimSpace(n.reasons()))
	row("established connections", int64(len(d.traffic.talks)), count(n.echoed)+" messages, "+count(n.lost)+" lost")
	row("  cut", int64(n.cut), "")
	row("errors and warnings logged", int64(len(trouble)), "")
	d.line()
	d.claim(n.failed == 0 && n.refused > 0, "no connection failed")
	d.claim(n.cut == 0 && n.lost == 0 && n.echoed > 0, "no established connection was cut")
	d.claim(len(trouble) == 0, "slipstream had nothing to complain about")
	d.line()
	all := d.held + len(d.broken)
	if len(d.broken) == 0 {
		d.line("  ", good.Sprintf("All %d claims were checked and hold.", all))
		return nil
	}
	d.line("  ", bad.Sprintf("%d of %d claims did not hold:", len(d.broken), all))
	for _, text := range d.broken {
		d.line("  ", bad.Sprint("✗ "), text)
	}
	return nil
}

// span writes the least and the most of some times.
func span(all []time.Duration) string {
	if len(all) == 0 {
		return "-"
	}
	low, high := short(slices.Min(all)), short(slices.Max(all))
	if low == high {
		return low
	}
	return fmt.Sprintf("%s to %s", low, high)
}
