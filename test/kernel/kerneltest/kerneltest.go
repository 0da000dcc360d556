// SPDX-License-Identifier: Apache-2.0

// Package kerneltest lets tests say what they need from the kernel and the machine that they
// run on: a test that begins with
//
//	kerneltest.Require(t, kerneltest.NFTables, kerneltest.SCTPSockets)
//
// is skipped where one of them is missing. Features are probed by using them, never derived
// from a version number.
//
// Importing this package also marks tests as kernel tests: test/kernel/runner runs them on the host's
// kernel and on the User Mode Linux kernels, all others on the host alone.
package kerneltest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// Feature is something of the kernel or the machine that a test may need.
type Feature struct {
	name  string
	probe func() error // nil if it is there, else what is missing
}

// String returns the feature's name, such as "SCTP sockets".
func (f Feature) String() string { return f.name }

// Probe returns nil if the feature is there, and otherwise an error that says how using it
// failed. It is used once per process.
func (f Feature) Probe() error { return f.probe() }

// features are all of them.
var features []Feature

// Features returns all features, in no particular order.
func Features() []Feature { return slices.Clone(features) }

// Define makes a feature out of a probe and the features that the probe needs. A feature that only the tests of one
// package need is defined there.
func Define(name string, probe func() error, needs ...Feature) Feature {
	f := Feature{name: name, probe: sync.OnceValue(func() error {
		for _, need := range needs {
			if err := need.Probe(); err != nil {
				return missing(need, err)
			}
		}
		return oneLine(probe())
	})}
	features = append(features, f)
	return f
}

func missing(f Feature, why error) error { return fmt.Errorf("no %v: %w", f, why) }

// oneLine shortens an error to its first line, as messages have one line.
func oneLine(err error) error {
	if err == nil {
		return nil
	}
	first, _, more := strings.Cut(err.Error(), "\n")
	if !more {
		return err
	}
	return errors.New(first)
}

// Require skips the test unless the running kernel has all the features.
func Require(t testing.TB, features ...Feature) {
	t.Helper()
	for _, f := range features {
		if err := f.Probe(); err != nil {
			t.Skip("NOT RUN on kernel " + Kernel() + ": " + missing(f, err).Error())
		}
	}
}

// NewLab makes a lab that is closed at the end of the test. It skips the test where the
// process may not make network namespaces.
func NewLab(t testing.TB) *lab.Lab {
	t.Helper()
	Require(t, NetNS)
	l, err := lab.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close lab: %v", err)
		}
	})
	return l
}

// Kernel returns the release of the running kernel as uname -r has it, such as
// "6.12.94+deb12-amd64", followed by " uml" on User Mode Linux.
func Kernel() string { return kernel() }

// UML reports whether the running kernel is User Mode Linux.
func UML() bool { return strings.HasSuffix(Kernel(), " uml") }

var kernel = sync.OnceValue(func() string {
	var name unix.Utsname
	_ = unix.Uname(&name) // it fails for a bad pointer only
	release := unix.ByteSliceToString(name.Release[:])
	info, _ := os.ReadFile("/proc/cpuinfo")
	if isUML(info) {
		release += " uml"
	}
	return release
})

// isUML recognizes User Mode Linux by the processor model that it reports.
func isUML(cpuinfo []byte) bool {
	return bytes.Contains(cpuinfo, []byte("User Mode Linux"))
}
