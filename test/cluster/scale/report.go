// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/table"
)

// writeTable writes the result for reading: a column for each subject, and after each but
// the first one how many times as much it is.
func (r *result) writeTable(w io.Writer) error {
	m, o, f := r.Machine, r.Options, r.Filled
	_, err := fmt.Fprintf(w, `%s Services x %s endpoints on kube-apiserver (%s endpoints in %s slices, written in %s); runs: %d
%s, load average %s before, %s after
`, table.Thousands(o.Services), table.Thousands(o.Endpoints), table.Thousands(f.Endpoints), table.Thousands(f.Slices), table.Duration(f.Seconds*1e6), o.Runs,
		m, m.Load, r.LoadAfter)
	if err != nil {
		return err
	}
	for _, s := range r.Subjects {
		line := s.Name + ": " + s.Version
		if s.Failed != "" {
			cause, _, _ := strings.Cut(s.Failed, "\n")
			line += "; not all measured: " + cause
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	t := &table.Table{}
	t.Row()
	r.rows(t)
	return t.Write(w)
}

func (r *result) rows(t *table.Table) {
	head := []string{""}
	for i, s := range r.Subjects {
		head = append(head, s.Name)
		if i > 0 {
			head = append(head, "times")
		}
	}
	t.Row(head...)
	row := func(text string, compared bool, value func(*costs) float64, format func(float64) string) {
		cells := []string{text}
		for i, s := range r.Subjects {
			v, cell := value(&s.Costs), "-"
			if v != 0 {
				cell = format(v)
			}
			cells = append(cells, cell)
			if i == 0 {
				continue
			}
			times := ""
			if compared {
				times = table.Ratio(value(&r.Subjects[0].Costs), v)
			}
			cells = append(cells, times)
		}
		t.Row(cells...)
	}
	duration := func(ms float64) string { return table.Duration(ms * 1e3) }
	count := func(n float64) string { return table.Thousands(int(n)) }
	size := func(bytes float64) string { return table.Size(int64(bytes)) }

	row("start until Services answer", true, func(c *costs) float64 { return c.StartMS }, duration)
	row("  processor time", true, func(c *costs) float64 { return c.StartCPUMS }, duration)
	row("an endpoint replaced, median", true, func(c *costs) float64 { return c.ChangeMedianMS }, duration)
	row("  99th percentile", true, func(c *costs) float64 { return c.ChangeP99MS }, duration)
	row("  longest", false, func(c *costs) float64 { return c.ChangeMaxMS }, duration)
	row("  processor time", true, func(c *costs) float64 { return c.ChangeCPUMS }, duration)
	row("  changes", false, func(c *costs) float64 { return float64(c.Changes) }, count)
	row(fmt.Sprintf("behind after a burst of %s, median", table.Thousands(min(r.Options.Burst, r.Options.Services-changing+1))), true,
		func(c *costs) float64 { return c.BurstMS }, duration)
	row("  longest", false, func(c *costs) float64 { return c.BurstMaxMS }, duration)
	row("  writing it took", false, func(c *costs) float64 { return c.BurstWrittenMS }, duration)
	row("  bursts", false, func(c *costs) float64 { return float64(c.Bursts) }, count)
	row("peak RSS when started", true, func(c *costs) float64 { return float64(c.PeakStartBytes) }, size)
	row("peak RSS in the end", true, func(c *costs) float64 { return float64(c.PeakBytes) }, size)
	row("  of a command it runs, beside that", false, func(c *costs) float64 { return float64(c.PeakCommandsBytes) }, size)
}
