// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"
)

// The kernel frees what a transaction or a network namespace has left on
// threads of its own, for up to seconds. So that this is not measured together
// with the next step, quiet waits until the machine does little, but not for
// longer than quietLimit.
var quietLimit = 10 * time.Second // less in tests

const (
	quietWindow = 200 * time.Millisecond
	quietBusy   = 0.15 // share of all processors
)

func quiet(ctx context.Context) {
	deadline := time.Now().Add(quietLimit)
	busy, all := processorTime()
	for time.Now().Before(deadline) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(quietWindow):
		}
		b, a := processorTime()
		if a == all || float64(b-busy) < quietBusy*float64(a-all) {
			return
		}
		busy, all = b, a
	}
}

// processorTime is how long processors have worked, and existed, in ticks.
func processorTime() (busy, all int64) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	// cpu, then: user nice system idle iowait irq softirq steal; after that, parts of the former.
	for i, field := range strings.Fields(line) {
		if i == 0 || i > 8 {
			continue
		}
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, 0
		}
		all += n
		if idle := i == 4 || i == 5; !idle {
			busy += n
		}
	}
	return busy, all
}
