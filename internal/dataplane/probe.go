// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"fmt"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Prober is a Dataplane that can find out beforehand what the node lacks.
type Prober interface {
	// Probe tries what the dataplane needs of the node, by use, for each
	// family, and returns what is missing. It programs nothing and leaves
	// nothing behind. Afterwards the dataplane leaves a family out if
	// something is missing for it.
	//
	// An error says that the probe itself was not possible, for example for
	// want of CAP_NET_ADMIN (EPERM).
	Probe(ctx context.Context) ([]Missing, error)
}

// Missing is a feature that a dataplane needs and the node lacks.
type Missing struct {
	Family  desired.Family
	Feature string // short and the same on all nodes, such as "expression masq"
	Err     error  // what the kernel or a command answered
	Remedy  string // what to do, such as "needs CONFIG_NFT_MASQ"
}

// String describes it in one line.
func (m Missing) String() string {
	return fmt.Sprintf("%s: missing %s (%s): %v", m.Family, m.Feature, m.Remedy, m.Err)
}
