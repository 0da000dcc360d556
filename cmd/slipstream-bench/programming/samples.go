// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"fmt"
	"slices"
	"time"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/stats"
)

// samples are the repetitions of one kind of change.
type samples struct {
	Took     []time.Duration // each, from the objects to the kernel
	Elements []int           // written and deleted, each
	Bytes    []int           // sent to the kernel, or to nft; each
	CPU      time.Duration   // of all together
}

func (s *samples) append(t *samples) {
	s.Took = append(s.Took, t.Took...)
	s.Elements = append(s.Elements, t.Elements...)
	s.Bytes = append(s.Bytes, t.Bytes...)
	s.CPU += t.CPU
}

// Latency is what one kind of change costs.
type Latency struct {
	Count    int     `json:"count"` // repetitions
	MedianUS float64 `json:"median_us"`
	P99US    float64 `json:"p99_us"`
	MaxUS    float64 `json:"max_us"`
	CPUUS    float64 `json:"cpu_us"` // user and system, mean of all repetitions
	Elements int     `json:"elements"`
	Bytes    int     `json:"bytes"`
}

// latency summarizes; nil when there are no samples.
func (s *samples) latency() *Latency {
	if s == nil || len(s.Took) == 0 {
		return nil
	}
	return &Latency{
		Count:    len(s.Took),
		MedianUS: micros(stats.Median(s.Took)),
		P99US:    micros(stats.Percentile(s.Took, 99)),
		MaxUS:    micros(slices.Max(s.Took)),
		CPUUS:    micros(s.CPU) / float64(len(s.Took)),
		Elements: stats.Median(s.Elements),
		Bytes:    stats.Median(s.Bytes),
	}
}

// Names of series.
const (
	endpointReplaced = "endpoint_replaced"
	endpointAdded    = "endpoint_added"
	endpointRemoved  = "endpoint_removed"
	serviceAdded     = "service_added"
	serviceRemoved   = "service_removed"
	burst            = "burst"
)

// seriesNames are those of single changes, in the order of reports, with what
// they are.
var seriesNames = []struct{ name, text string }{
	{endpointReplaced, "one endpoint replaced"},
	{endpointAdded, "one endpoint added"},
	{endpointRemoved, "one endpoint removed"},
	{serviceAdded, "one Service added"},
	{serviceRemoved, "one Service removed"},
}

// burstChanges is how many changes a burst has.
const burstChanges = 1000

// checkSeries makes a missing series an error of the bench.
func checkSeries(all map[string]*samples) error {
	for _, s := range seriesNames {
		if all[s.name] == nil || len(all[s.name].Took) == 0 {
			return fmt.Errorf("nothing was measured of %q", s.text)
		}
	}
	return nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
