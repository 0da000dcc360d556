// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"fmt"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Prober is a Dataplane that can detect missing features of the node before it programs.
type Prober interface {
	// Probe tries to use all features that the dataplane needs, in each family,
	// and returns those that are missing. It changes nothing. Afterwards the
	// dataplane does not program a family with a missing feature.
	//
	// An error says that the probe was not possible, for example without
	// CAP_NET_ADMIN (EPERM).
	Probe(ctx context.Context) ([]Missing, error)
}

// Missing is a feature that a dataplane needs and the node lacks.
type Missing struct {
	Family  desired.Family
	Feature string // short and the same on all nodes, such as "expression masq"
	Err     error  // error of the kernel or of a command
	Remedy  string // such as "needs CONFIG_NFT_MASQ"
}

// String describes it in one line.
func (m Missing) String() string {
	return fmt.Sprintf("%s: missing %s (%s): %v", m.Family, m.Feature, m.Remedy, m.Err)
}
