// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"testing"
	"time"
)

func TestLatency(t *testing.T) {
	var all samples
	if all.latency() != nil || (*samples)(nil).latency() != nil {
		t.Error("a latency of no samples")
	}
	for i := range 100 {
		all.append(&samples{Took: []time.Duration{time.Duration(i+1) * time.Microsecond}, Elements: []int{2}, Bytes: []int{i}, CPU: 3 * time.Microsecond})
	}
	want := Latency{Count: 100, MedianUS: 50.5, P99US: 99, MaxUS: 100, CPUUS: 3, Elements: 2, Bytes: 49}
	if got := all.latency(); *got != want {
		t.Errorf("%+v, want %+v", *got, want)
	}
}
