// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"bytes"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Kernel returns the release of the running kernel as uname -r has it, such as
// "6.12.94+deb12-amd64", followed by " uml" on User Mode Linux.
func Kernel() string { return kernel() }

var kernel = sync.OnceValue(func() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "unknown"
	}
	release := unix.ByteSliceToString(name.Release[:])
	info, _ := os.ReadFile("/proc/cpuinfo")
	if isUML(info) {
		release += " uml"
	}
	return release
})

// isUML tells User Mode Linux by the processor model that it reports.
func isUML(cpuinfo []byte) bool {
	return bytes.Contains(cpuinfo, []byte("User Mode Linux"))
}
