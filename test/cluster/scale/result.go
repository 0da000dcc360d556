// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/machine"
	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/stats"
)

// result is what was measured. Units are in the names of the JSON fields.
type result struct {
	Machine   machine.Machine `json:"machine"`
	LoadAfter string          `json:"load_average_after"`
	Options   options         `json:"options"`
	Filled    filled          `json:"filled"`
	Subjects  []*outcome      `json:"subjects"`
}

// outcome is what was measured of a subject.
type outcome struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	// Failed says why not all was measured; later runs are left out then.
	Failed string  `json:"failed,omitempty"`
	Runs   []*run  `json:"runs"`
	Costs  costs   `json:"costs"`
	Times  *ratios `json:"times_the_first,omitempty"` // not of the first one itself
}

// costs sums up all runs. What was not measured is 0.
type costs struct {
	StartMS           float64 `json:"start_ms"` // median of the runs, as all that is once in a run
	StartCPUMS        float64 `json:"start_cpu_ms"`
	Changes           int     `json:"changes"`
	ChangeMedianMS    float64 `json:"change_median_ms"` // of all runs' changes together
	ChangeP99MS       float64 `json:"change_p99_ms"`
	ChangeMaxMS       float64 `json:"change_max_ms"`
	ChangeCPUMS       float64 `json:"change_cpu_ms"`
	Bursts            int     `json:"bursts"`
	BurstMS           float64 `json:"burst_ms"` // median of all runs' bursts together
	BurstMaxMS        float64 `json:"burst_max_ms"`
	BurstWrittenMS    float64 `json:"burst_written_ms"`
	PeakStartBytes    int64   `json:"peak_rss_start_bytes"`
	PeakBytes         int64   `json:"peak_rss_bytes"`
	PeakCommandsBytes int64   `json:"peak_rss_commands_bytes"`
}

// ratios are to the subject that was measured first.
type ratios struct {
	Start        float64 `json:"start"`
	StartCPU     float64 `json:"start_cpu"`
	ChangeMedian float64 `json:"change_median"`
	ChangeP99    float64 `json:"change_p99"`
	ChangeCPU    float64 `json:"change_cpu"`
	Burst        float64 `json:"burst"`
	Peak         float64 `json:"peak_rss"`
}

// sumUp fills in costs and ratios.
func (r *result) sumUp() {
	for _, s := range r.Subjects {
		s.Costs = sumUp(s.Runs)
	}
	if len(r.Subjects) == 0 {
		return
	}
	first := r.Subjects[0].Costs
	for _, s := range r.Subjects[1:] {
		c := s.Costs
		s.Times = &ratios{
			Start:        ratio(c.StartMS, first.StartMS),
			StartCPU:     ratio(c.StartCPUMS, first.StartCPUMS),
			ChangeMedian: ratio(c.ChangeMedianMS, first.ChangeMedianMS),
			ChangeP99:    ratio(c.ChangeP99MS, first.ChangeP99MS),
			ChangeCPU:    ratio(c.ChangeCPUMS, first.ChangeCPUMS),
			Burst:        ratio(c.BurstMS, first.BurstMS),
			Peak:         ratio(float64(c.PeakBytes), float64(first.PeakBytes)),
		}
	}
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func sumUp(runs []*run) (c costs) {
	changes, bursts, written := []float64{}, []float64{}, []float64{}
	for _, r := range runs {
		changes = append(changes, r.ChangesMS...)
		bursts = append(bursts, r.BurstsMS...)
		written = append(written, r.BurstWrittenMS...)
	}
	c.StartMS = median(runs, func(r *run) float64 { return r.StartMS })
	c.StartCPUMS = median(runs, func(r *run) float64 { return r.StartUserMS + r.StartSystemMS })
	c.ChangeCPUMS = median(runs, func(r *run) float64 { return r.ChangeUserMS + r.ChangeSystemMS })
	c.PeakStartBytes = median(runs, func(r *run) int64 { return r.PeakStartBytes })
	c.PeakBytes = median(runs, func(r *run) int64 { return r.PeakBytes })
	c.PeakCommandsBytes = median(runs, func(r *run) int64 { return r.PeakCommandByte })
	c.Changes = len(changes)
	c.ChangeMedianMS = stats.Median(changes)
	c.ChangeP99MS = stats.Percentile(changes, 99)
	c.ChangeMaxMS = stats.Percentile(changes, 100)
	c.Bursts = len(bursts)
	c.BurstMS = stats.Median(bursts)
	c.BurstMaxMS = stats.Percentile(bursts, 100)
	c.BurstWrittenMS = stats.Median(written)
	return c
}

// median is that of the runs in which something was measured.
func median[T stats.Number](runs []*run, of func(*run) T) T {
	var all []T
	for _, r := range runs {
		if v := of(r); v != 0 {
			all = append(all, v)
		}
	}
	return stats.Median(all)
}

// writeJSON writes the result as indented JSON.
func (r *result) writeJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}
