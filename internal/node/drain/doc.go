// SPDX-License-Identifier: Apache-2.0

// Package drain tells a pod that is being deleted when new connections have ceased to come to it.
//
// 'slipstream drained', a preStop hook, connects to a Unix socket of the node's proxy and passes an rtnetlink socket of
// its network namespace (SCM_RIGHTS). The kernel says of it which namespace that is (SIOCGSKNS, Linux 4.9), and
// answers on it with the pod's addresses. So a pod can only ask about itself, and the proxy enters no namespace. From then on the
// proxy counts conntrack's events of new connections to these addresses.
package drain

import (
	"encoding/json"
	"time"
)

// Request is what a pod asks for.
type Request struct {
	MinWait *time.Duration `json:"minWait,omitempty"` // nil: the node knows
	Quiet   time.Duration  `json:"quiet"`             // how long no connection may come
	MaxWait time.Duration  `json:"maxWait"`
}

// Result says why a wait has ended.
type Result struct {
	Quiet       bool          `json:"quiet"` // no new connection came for the time that was asked for
	Waited      time.Duration `json:"waited"`
	Connections int           `json:"connections"`       // new ones that came meanwhile
	Blind       string        `json:"blind,omitempty"`   // why the node cannot tell
	Refused     string        `json:"refused,omitempty"` // the wait did not begin
}

const (
	longest     = time.Hour // that a pod may wait
	shortest    = 4 * tick  // that it may wait after a connection
	requestSize = 4096      // bytes
)

// tick is the time between two looks at conntrack's events.
const tick = 50 * time.Millisecond

func decode(b []byte) (r Request, err error) {
	err = json.Unmarshal(b, &r)
	r.MaxWait, r.Quiet = min(r.MaxWait, longest), max(r.Quiet, shortest)
	return r, err
}
