// SPDX-License-Identifier: Apache-2.0

package kerneltest

import "testing"

// Require skips the test unless the running kernel has all the features.
func Require(t testing.TB, features ...Feature) {
	t.Helper()
	for _, f := range features {
		if err := f.Probe(); err != nil {
			t.Skip(message(Kernel(), f, err))
		}
	}
}

// message is the one line that a skipped test leaves.
func message(kernel string, f Feature, why error) string {
	return "NOT RUN on kernel " + kernel + ": " + missing{f, why}.Error()
}
