// SPDX-License-Identifier: Apache-2.0

// Package observe makes connections on a stage: for each client and each address of a
// Service it finds the servers that answer, the source address that they see, or the
// error.
package observe

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/test/lab"
)

// Kind is a way to look.
type Kind int

const (
	// Reach makes enough connections to meet every backend.
	Reach Kind = iota
	// Stick connects repeatedly, to see whether connections stay with one server.
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

	Backends int  // at most
	Mixed    bool // some connections may fail where others do not
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

// Outcome is the result of a probe.
type Outcome struct {
	// Answers are the servers that answered, as "name:port", by the owner of the source
	// address that they saw.
	Answers map[string][]string
	// Failures are the errors of connections without an answer, such as "refused".
	Failures []string
	// Note is anything else: whether connections stay with one server, or the answer of
	// a health check.
	Note string
}

// Failures that other packages refer to.
const (
	Timeout = "timeout" // no answer
	Refused = "refused" // a reset or an ICMP error
)

// String is the outcome in one line; equal outcomes have the same.
func (o Outcome) String() string {
	var parts []string
	for _, as := range slices.Sorted(maps.Keys(o.Answers)) {
		parts = append(parts, fmt.Sprintf("%s seen as %s", strings.Join(o.Answers[as], " "), as))
	}
	parts = append(parts, o.Failures...)
	if o.Note != "" {
		parts = append(parts, o.Note)
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, "; ")
}

// Equal says whether both are the same.
func (o Outcome) Equal(p Outcome) bool { return o.String() == p.String() }

// attempt is the result of one connection: the server and the owner of the source address
// that it saw, or the failure.
type attempt struct {
	server, as string
	failure    string
}

type tally map[attempt]bool

func (t tally) outcome(note string) Outcome {
	o := Outcome{Answers: map[string][]string{}, Note: note}
	for a := range t {
		if a.failure != "" {
			o.Failures = append(o.Failures, a.failure)
		} else {
			o.Answers[a.as] = append(o.Answers[a.as], a.server)
		}
	}
	slices.Sort(o.Failures)
	for _, servers := range o.Answers {
		slices.Sort(servers)
	}
	return o
}
