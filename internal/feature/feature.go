// SPDX-License-Identifier: Apache-2.0

// Package feature has the result of probes, which find out whether the node has a feature by using it. The
// error of a probe is nil if the node has the feature, wraps a [Missing] if it lacks the feature, and is
// another one if the probe could not tell, for example without a privilege.
package feature

import (
	"errors"
	"fmt"
)

// Missing says that the node lacks a feature.
type Missing struct {
	Feature string // short and the same on all nodes, such as "expression masq"
	Remedy  string // such as "needs CONFIG_NFT_MASQ"
	Err     error  // of the kernel or of a command; or nil
}

// Error describes it in one line.
func (m Missing) Error() string {
	s := fmt.Sprintf("missing %s (%s)", m.Feature, m.Remedy)
	if m.Err != nil {
		s += ": " + m.Err.Error()
	}
	return s
}

// Unwrap returns Err.
func (m Missing) Unwrap() error { return m.Err }

// Lacks reports whether a probe has found that a feature is missing.
func Lacks(err error) bool {
	_, lacks := errors.AsType[Missing](err)
	return lacks
}
