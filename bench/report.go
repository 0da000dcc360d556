// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"io"
)

// WriteTable writes the result for reading.
func (r *SyncResult) WriteTable(w io.Writer) error {
	if err := r.writeHeader(w); err != nil {
		return err
	}
	t := &table{}
	t.row("", "slipstream", "chains via nft -f", "nft / slipstream")
	r.programming(t)
	for _, s := range seriesNames {
		r.change(t, s.name, s.text)
	}
	b := r.Slipstream.Burst
	t.row(fmt.Sprintf("burst of %s endpoints replaced, median of %d", thousands(b.Changes), b.Count), duration(b.TotalMS*1e3))
	t.row("  for each", duration(b.PerChangeUS))
	t.row("  elements written", thousands(b.Elements))
	r.memory(t)
	return t.write(w)
}

func (r *SyncResult) writeHeader(w io.Writer) error {
	m, o := r.Machine, r.Options
	t := &table{}
	external := ""
	if o.External > 0 {
		external = fmt.Sprintf(", %d %% of them external", o.External)
	}
	_, err := fmt.Fprintf(w, `%s Services x %s endpoints%s, %s, mode %s, up to %s repetitions of each change, seed %d, runs: %d
Linux %s, %d x %s, %s, load average %s
`, thousands(o.Services), thousands(o.Endpoints), external, o.Family, o.Mode, thousands(o.Repetitions), o.Seed, o.Runs,
		m.Kernel, m.CPUs, m.CPU, m.Go, m.Load)
	if err != nil {
		return err
	}
	if o.Runs > 1 {
		t.row(fmt.Sprintf("cold start, restart and memory are those of the run in the middle of %d", o.Runs))
	}
	if r.Chains.Skipped != "" {
		t.row("chains via nft -f: not all measured (" + r.Chains.Skipped + ")")
	}
	if r.Slipstream.Verified {
		t.row("verified: what the kernel had in the end is what was meant")
	}
	t.row()
	return t.write(w)
}

// programming writes the rows about programming everything.
func (r *SyncResult) programming(t *table) {
	s, c := r.Slipstream, r.Chains.Cold
	if c == nil {
		c = &Load{}
	}
	t.row("cold start (nft: one transaction)", duration(s.Cold.TotalMS*1e3), unless0(c.TotalMS*1e3, duration), ratio(s.Cold.TotalMS, c.TotalMS))
	if split := r.Chains.ColdSplit; split != nil {
		t.row(fmt.Sprintf("  nft: a transaction for every %s Services", thousands(splitServices)), "",
			duration(split.TotalMS*1e3), ratio(s.Cold.TotalMS, split.TotalMS))
	}
	parts := func(p Programming) {
		t.row("  objects into the state", duration(p.StateMS*1e3))
		t.row("  full description", duration(p.FullMS*1e3))
		t.row("  encoding, and the kernel", duration(p.KernelMS*1e3))
	}
	parts(s.Cold)
	t.row("  elements written", thousands(s.Cold.Elements))
	t.row("  sent to the kernel (nft: its script)", size(int64(s.Cold.Bytes)), unless0(float64(c.Bytes), func(n float64) string { return size(int64(n)) }))
	t.row("restart over what is there", duration(s.Restart.TotalMS*1e3))
	parts(s.Restart)
}

// change writes the rows about one kind of change.
func (r *SyncResult) change(t *table, name, text string) {
	l, c := r.Slipstream.Changes[name], &Latency{}
	if name == endpointReplaced && r.Chains.EndpointReplaced != nil {
		c = r.Chains.EndpointReplaced
	}
	if l == nil {
		l = &Latency{}
	}
	count := thousands(l.Count)
	if c.Count > 0 {
		count += ", nft of " + thousands(c.Count)
	}
	row := func(what string, of func(*Latency) float64) {
		t.row(what, duration(of(l)), unless0(of(c), duration), ratio(of(l), of(c)))
	}
	row(text+", median of "+count, func(l *Latency) float64 { return l.MedianUS })
	t.row("  99th percentile", duration(l.P99US))
	row("  longest", func(l *Latency) float64 { return l.MaxUS })
	row("  processor time", func(l *Latency) float64 { return l.CPUUS })
	t.row("  elements written", thousands(l.Elements))
}

// memory writes the rows about memory.
func (r *SyncResult) memory(t *table) {
	m := r.Slipstream.Memory
	t.row("peak RSS of the cold start (nft: of the command)", size(m.PeakColdBytes),
		unless0(float64(r.Chains.PeakBytes), func(n float64) string { return size(int64(n)) }),
		ratio(float64(m.PeakColdBytes), float64(r.Chains.PeakBytes)))
	t.row("peak RSS of everything", size(m.PeakBytes))
	t.row("RSS at rest after the cold start", size(m.RestCold.Resident))
	t.row("  of it the binary", size(m.RestCold.File))
	t.row("  reachable heap", size(m.RestCold.Heap))
	t.row("RSS at rest in the end", size(m.Rest.Resident))
}

// unless0 formats a number that was measured.
func unless0(x float64, format func(float64) string) string {
	if x == 0 {
		return ""
	}
	return format(x)
}
