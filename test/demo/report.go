// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fatih/color"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// width is the number of columns that the output takes at most.
const width = 80

// The colours. Package color leaves them out where NO_COLOR is set and where
// standard output is not a terminal.
var (
	bold  = color.New(color.Bold)
	faint = color.New(color.Faint)
	title = color.New(color.FgCyan, color.Bold)
	good  = color.New(color.FgGreen, color.Bold)
	bad   = color.New(color.FgRed, color.Bold)
)

// report prints the demo's output and keeps the results for the summary.
type report struct {
	ctx    context.Context // once it is done, nothing is printed or claimed any more
	out    io.Writer
	steps  []*step
	held   int
	broken []string // claims that did not hold

	current *step // nil in the summary
}

// step is the result of one part of the demo.
type step struct {
	name       string
	failed     bool
	programmed []time.Duration // to program each node's kernel, as slipstream logs it
	seen       []time.Duration // from the change of a file until a client saw the effect
}

// step begins a part of the demo.
func (r *report) step(name string) *step {
	r.current = &step{name: name}
	r.steps = append(r.steps, r.current)
	r.heading(fmt.Sprintf("%d  %s", len(r.steps), name))
	return r.current
}

func (r *report) heading(text string) {
	r.line("")
	text = "── " + text + " "
	r.line(title.Sprint(text + strings.Repeat("─", max(0, width-len([]rune(text))))))
}

// line prints one line.
func (r *report) line(text string) {
	if r.ctx.Err() == nil {
		fmt.Fprintln(r.out, strings.TrimRight(text, " "))
	}
}

// say prints text, indented.
func (r *report) say(format string, args ...any) {
	for l := range strings.Lines(fmt.Sprintf(format, args...)) {
		r.line("  " + strings.TrimSuffix(l, "\n"))
	}
}

// command prints a command with the same effect as the demo's next step.
func (r *report) command(format string, args ...any) {
	r.line("  " + faint.Sprint("$ ") + bold.Sprintf(format, args...))
}

// claim prints a claim that the demo has checked, and whether it holds.
func (r *report) claim(holds bool, format string, args ...any) {
	if r.ctx.Err() != nil {
		return // an interrupted step proves nothing
	}
	text := fmt.Sprintf(format, args...)
	if holds {
		r.held++
		r.line("  " + good.Sprint("✓ ") + text)
		return
	}
	if r.current != nil {
		r.current.failed = true
	}
	r.broken = append(r.broken, text)
	r.line("  " + bad.Sprint("✗ DOES NOT HOLD: ") + text)
}

// table prints rows of cells in columns, the first row as a heading.
func (r *report) table(rows [][]string) {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush() // a strings.Builder does not fail
	// Colours are added last: a tabwriter counts escape sequences.
	colours := strings.NewReplacer("✓", good.Sprint("✓"), "✗", bad.Sprint("✗"))
	heading, rest, _ := strings.Cut(b.String(), "\n")
	r.line("  " + faint.Sprint(strings.TrimRight(heading, " ")))
	r.say("%s", colours.Replace(rest))
}

// summary adds up.
func (d *demo) summary(context.Context) error {
	var made, refused, failed, echoed, lost int64
	why := map[string]int64{}
	for _, f := range slices.Concat(d.kinds, d.web, d.orders) {
		s := f.load.Stats()
		made += s.OK + s.Failed
		for kind, n := range s.Failures {
			if kind == lab.Outcome(lab.ErrRefused) && slices.Contains(d.orders, f) {
				refused += n // the step noEndpoints checks when
				continue
			}
			failed += n
			why[kind] += n
		}
	}
	kinds := ""
	for _, kind := range slices.Sorted(maps.Keys(why)) {
		kinds += fmt.Sprintf(" (%d %s)", why[kind], kind)
	}
	ended := 0
	for _, s := range d.streams {
		stats := s.Stats()
		echoed += stats.Received
		lost += stats.Failed
		if stats.Ended {
			ended++
		}
	}
	warnings := 0
	for _, p := range d.proxies {
		warnings += len(p.log().warnings())
	}
	d.current = nil
	d.heading("summary")
	d.claim(failed == 0 && refused > 0, "%d connections, TCP and UDP, IPv4 and IPv6: %d failed%s", made, failed, kinds)
	d.say("  (%d were refused, as they should be, while orders had no endpoints)", refused)
	d.claim(ended == 0 && lost == 0 && echoed > 0, "%d long-lived connections: %d broken; %d messages, %d lost",
		len(d.streams), ended, echoed, lost)
	d.claim(warnings == 0, "%d warnings and errors in slipstream's log", warnings)
	d.line("")
	rows := [][]string{{"", "kernel programmed in", "clients saw it after"}}
	for _, s := range d.steps {
		mark := "✓ "
		if s.failed {
			mark = "✗ "
		}
		rows = append(rows, []string{mark + s.name, span(s.programmed), span(s.seen)})
	}
	d.table(rows)
	d.say("\nSlipstream reads a directory once nothing in it has changed for 100 ms.\n\n")
	all := d.held + len(d.broken)
	if len(d.broken) == 0 {
		d.line("  " + good.Sprintf("All %d claims hold.", all))
		return nil
	}
	d.line("  " + bad.Sprintf("%d of %d claims do not hold:", len(d.broken), all))
	for _, text := range d.broken {
		d.line("  " + bad.Sprint("✗ ") + text)
	}
	return nil
}

// span writes the shortest and the longest of some times.
func span(all []time.Duration) string {
	if len(all) == 0 {
		return "-"
	}
	low, high := short(slices.Min(all)), short(slices.Max(all))
	if low == high {
		return low
	}
	return low + " to " + high
}

// short writes a duration with three digits.
func short(d time.Duration) string {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}

// because appends an error to a text, if there is one.
func because(err error) string {
	if err == nil {
		return ""
	}
	return fmt.Sprintf(" (%v)", err)
}
