// SPDX-License-Identifier: Apache-2.0

// Package observe makes connections on a stage: for each client and each address of a
// Service it finds the servers that answer, the source address that they see, or the
// error.
package observe

import (
	"fmt"
	"net/netip"

	"github.com/slipstream-proxy/slipstream/test/lab"
)

// Kind is a way to look.
type Kind int

const (
	// Reach makes enough connections to meet every backend.
	Reach Kind = iota
	// Stick makes connections again and again, to see whether they stay with one
	// server.
	Stick
	// Share connects to one address of a Service and then to another, to see whether
	// the server stays the same.
	Share
	// Health asks a health check node port over HTTP.
	Health
)

// Probe is one thing to look at.
type Probe struct {
	Kind     Kind
	From     string // vantage
	Protocol lab.Protocol
	To       netip.AddrPort
	Then     netip.AddrPort // for Share: the second address
	What     string         // what To is, for people

	// Service is the Service's namespace and name; empty where To belongs to none.
	Namespace, Service string

	// Backends is how many there may be, at most.
	Backends int

	// Mixed says that some connections may fail where others do not.
	Mixed bool
}

// String describes the probe in one line.
func (p Probe) String() string {
	s := fmt.Sprintf("%s -> %v %v (%s)", p.From, p.Protocol, p.To, p.What)
	switch p.Kind {
	case Stick:
		s += ", again and again"
	case Share:
		s += fmt.Sprintf(", then %v", p.Then)
	}
	return s
}
