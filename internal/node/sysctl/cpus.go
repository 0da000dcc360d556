// SPDX-License-Identifier: Apache-2.0

package sysctl

import (
	"os"
	"runtime"
	"strconv"
	"strings"
)

// CPUs returns the machine's number of CPUs, even if this process may use fewer.
func CPUs() int {
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err == nil {
		if n := count(strings.TrimSpace(string(text))); n > 0 {
			return n
		}
	}
	return runtime.NumCPU()
}

// count returns the length of a list such as "0-3,5"; 0 if it is invalid.
func count(list string) (n int) {
	for _, part := range strings.Split(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || to < from {
			return 0
		}
		n += to - from + 1
	}
	return n
}
