// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"os"
	"runtime/debug"
)

// garbage is how much garbage, in percent of the memory in use, may pile up before
// it is collected. Half of Go's own choice takes a tenth off the memory of a cold
// start, and adds some percent to its time.
const garbage = 50

// LimitGarbage sets how much garbage may pile up in this process, unless the
// environment variable GOGC does.
func LimitGarbage() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
}
