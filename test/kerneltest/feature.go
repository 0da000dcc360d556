// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"errors"
	"slices"
	"strings"
	"sync"
)

// Feature is something of the kernel or the machine that a test may need.
type Feature struct {
	name  string
	probe func() error // nil if it is there, else what is missing
}

// String returns the feature's name as it stands in messages, such as "SCTP sockets".
func (f Feature) String() string { return f.name }

// Probe returns nil if the feature is there, and otherwise an error that says how
// using it failed. The kernel is asked once per process.
func (f Feature) Probe() error { return f.probe() }

// features are all of them.
var features []Feature

// Features returns all features, in no particular order.
func Features() []Feature { return slices.Clone(features) }

// define makes a feature out of a probe and the features without which the probe would
// tell nothing.
func define(name string, probe func() error, needs ...Feature) Feature {
	f := Feature{name: name, probe: sync.OnceValue(func() error {
		for _, need := range needs {
			if err := need.Probe(); err != nil {
				return missing{need, err}
			}
		}
		return oneLine(probe())
	})}
	features = append(features, f)
	return f
}

// oneLine shortens an error to its first line, for messages have one line: some
// libraries join several errors about the same thing.
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

// missing is the error of a feature whose own needs are not met.
type missing struct {
	feature Feature
	why     error
}

func (m missing) Error() string { return "no " + m.feature.name + ": " + m.why.Error() }

func (m missing) Unwrap() error { return m.why }
