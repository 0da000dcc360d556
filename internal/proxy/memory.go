// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"os"
	"runtime/debug"
)

// garbage is the target percentage of the garbage collector. Half of Go's default reduces
// the memory of a cold start by a tenth, and adds some percent to its time.
const garbage = 50

// LimitGarbage sets the target percentage of the garbage collector, unless the environment
// variable GOGC does.
func LimitGarbage() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
}
