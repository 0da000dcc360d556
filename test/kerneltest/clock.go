// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"errors"
	"os"
)

// OwnClock is a clock of the machine's that a test may set: that of User Mode Linux. Any
// other is everybody's.
var OwnClock = define("clock of its own", probeOwnClock, Root)

func probeOwnClock() error {
	cpuinfo, err := os.ReadFile("/proc/cpuinfo")
	if err == nil && !isUML(cpuinfo) {
		err = errors.New("not User Mode Linux, so the clock is everybody's")
	}
	return err
}
