// SPDX-License-Identifier: Apache-2.0

// Package machine is the machine that benchmarks run on.
package machine

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine is what measurements were made on.
type Machine struct {
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu"`
	CPUs   int    `json:"cpus"`
	Go     string `json:"go"`
	// Load is the machine's load average over a minute when measuring
	// began. More than a few tenths is others' work, and spoils numbers.
	Load string `json:"load_average"`
}

// This is the machine at hand.
func This() Machine {
	m := Machine{CPU: "unknown", CPUs: runtime.NumCPU(), Go: runtime.Version()}
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		m.CPU = cpuModel(string(b))
	}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load, _, _ = strings.Cut(string(b), " ")
	}
	return m
}

// String is the machine in one line, without its load.
func (m Machine) String() string {
	return fmt.Sprintf("Linux %s, %d x %s, %s", m.Kernel, m.CPUs, m.CPU, m.Go)
}

// cpuModel is the first processor's name in the text of /proc/cpuinfo.
func cpuModel(cpuinfo string) string {
	for line := range strings.Lines(cpuinfo) {
		name, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(name) {
		case "model name", "Model", "cpu model":
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}
