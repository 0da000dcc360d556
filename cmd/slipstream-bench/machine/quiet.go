// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"
)

// QuietLimit is how long [Quiet] waits at most. Tests that do not look at times
// set it to 0.
var QuietLimit = 10 * time.Second

const (
	quietWindow = 200 * time.Millisecond
	quietBusy   = 0.15 // share of all processors
)

// Quiet waits until the machine does little, but not for longer than
// [QuietLimit]. The kernel frees what a transaction or a network namespace has
// left on threads of its own, for up to seconds; that is not to be measured
// together with the next step.
func Quiet(ctx context.Context) {
	deadline := time.Now().Add(QuietLimit)
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
