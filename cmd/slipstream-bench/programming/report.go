// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"fmt"
	"io"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/table"
)

// WriteTable writes the result for reading.
func (r *SyncResult) WriteTable(w io.Writer) error {
	if err := r.writeHeader(w); err != nil {
		return err
	}
	t := &table.Table{}
	t.Row("", "slipstream", r.baseline(), r.tool()+" / slipstream")
	r.programming(t)
	for _, s := range seriesNames {
		r.change(t, s.name, s.text)
	}
	b := r.Slipstream.Burst
	t.Row(fmt.Sprintf("burst of %s endpoints replaced, median of %d", table.Thousands(b.Changes), b.Count), table.Duration(b.TotalMS*1e3))
	t.Row("  for each", table.Duration(b.PerChangeUS))
	t.Row("  elements written", table.Thousands(b.Elements))
	r.memory(t)
	return t.Write(w)
}

// tool is short for the command that programs the baseline.
func (r *SyncResult) tool() string {
	if _, ok := iptablesVariant(r.Options.Mode); ok {
		return "restore"
	}
	return "nft"
}

// baseline is what it is and how it is programmed.
func (r *SyncResult) baseline() string {
	if _, ok := iptablesVariant(r.Options.Mode); ok {
		return "list via " + r.Options.Mode + "-restore"
	}
	return "chains via nft -f"
}

func (r *SyncResult) writeHeader(w io.Writer) error {
	m, o := r.Machine, r.Options
	t := &table.Table{}
	external := ""
	if o.External > 0 {
		external = fmt.Sprintf(", %d %% of them external", o.External)
	}
	_, err := fmt.Fprintf(w, `%s Services x %s endpoints%s, %s, mode %s, up to %s repetitions of each change, seed %d, runs: %d
%s, load average %s
`, table.Thousands(o.Services), table.Thousands(o.Endpoints), external, o.Family, o.Mode, table.Thousands(o.Repetitions), o.Seed, o.Runs,
		m, m.Load)
	if err != nil {
		return err
	}
	if o.Runs > 1 {
		t.Row(fmt.Sprintf("cold start, restart and memory are those of the run in the middle of %d", o.Runs))
	}
	if r.Chains.Skipped != "" {
		t.Row(r.baseline() + ": not all measured (" + r.Chains.Skipped + ")")
	}
	if r.Slipstream.Verified {
		t.Row("verified: what the kernel had in the end is what was meant")
	}
	t.Row()
	return t.Write(w)
}

// programming writes the rows about programming everything.
func (r *SyncResult) programming(t *table.Table) {
	s, c := r.Slipstream, r.Chains.Cold
	if c == nil {
		c = &Load{}
	}
	t.Row("cold start ("+r.tool()+": one transaction)", table.Duration(s.Cold.TotalMS*1e3), unless0(c.TotalMS*1e3, table.Duration), table.Ratio(s.Cold.TotalMS, c.TotalMS))
	if split := r.Chains.ColdSplit; split != nil {
		t.Row(fmt.Sprintf("  nft: a transaction for every %s Services", table.Thousands(splitServices)), "",
			table.Duration(split.TotalMS*1e3), table.Ratio(s.Cold.TotalMS, split.TotalMS))
	}
	parts := func(p Programming) {
		t.Row("  objects into the state", table.Duration(p.StateMS*1e3))
		t.Row("  full description", table.Duration(p.FullMS*1e3))
		t.Row("  encoding, and the kernel", table.Duration(p.KernelMS*1e3))
	}
	parts(s.Cold)
	t.Row("  elements written", table.Thousands(s.Cold.Elements))
	t.Row("  sent to the kernel ("+r.tool()+": its script)", table.Size(int64(s.Cold.Bytes)), unless0(float64(c.Bytes), func(n float64) string { return table.Size(int64(n)) }))
	t.Row("restart over what is there", table.Duration(s.Restart.TotalMS*1e3))
	parts(s.Restart)
}

// change writes the rows about one kind of change.
func (r *SyncResult) change(t *table.Table, name, text string) {
	l, c := r.Slipstream.Changes[name], &Latency{}
	if name == endpointReplaced && r.Chains.EndpointReplaced != nil {
		c = r.Chains.EndpointReplaced
	}
	if l == nil {
		l = &Latency{}
	}
	count := table.Thousands(l.Count)
	if c.Count > 0 {
		count += ", " + r.tool() + " of " + table.Thousands(c.Count)
	}
	row := func(what string, of func(*Latency) float64) {
		t.Row(what, table.Duration(of(l)), unless0(of(c), table.Duration), table.Ratio(of(l), of(c)))
	}
	row(text+", median of "+count, func(l *Latency) float64 { return l.MedianUS })
	t.Row("  99th percentile", table.Duration(l.P99US))
	row("  longest", func(l *Latency) float64 { return l.MaxUS })
	row("  processor time", func(l *Latency) float64 { return l.CPUUS })
	t.Row("  elements written", table.Thousands(l.Elements))
}

// memory writes the rows about memory.
func (r *SyncResult) memory(t *table.Table) {
	m := r.Slipstream.Memory
	t.Row("peak RSS of the cold start ("+r.tool()+": of the command)", table.Size(m.PeakColdBytes),
		unless0(float64(r.Chains.PeakBytes), func(n float64) string { return table.Size(int64(n)) }),
		table.Ratio(float64(m.PeakColdBytes), float64(r.Chains.PeakBytes)))
	t.Row("peak RSS of everything", table.Size(m.PeakBytes))
	t.Row("RSS at rest after the cold start", table.Size(m.RestCold.Resident))
	t.Row("  of it the binary", table.Size(m.RestCold.File))
	t.Row("  reachable heap", table.Size(m.RestCold.Heap))
	t.Row("RSS at rest in the end", table.Size(m.Rest.Resident))
}

// unless0 formats a number that was measured.
func unless0(x float64, format func(float64) string) string {
	if x == 0 {
		return ""
	}
	return format(x)
}
