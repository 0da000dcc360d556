// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

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

// tally collects the results of connections.
type tally struct {
	answers  map[string]map[string]bool
	failures map[string]bool
}

func newTally() *tally { return &tally{map[string]map[string]bool{}, map[string]bool{}} }

func (t *tally) add(a attempt) {
	if a.failure != "" {
		t.failures[a.failure] = true
		return
	}
	if t.answers[a.as] == nil {
		t.answers[a.as] = map[string]bool{}
	}
	t.answers[a.as][a.server] = true
}

func (t *tally) outcome(note string) Outcome {
	o := Outcome{Answers: map[string][]string{}, Failures: slices.Sorted(maps.Keys(t.failures)), Note: note}
	for as, servers := range t.answers {
		o.Answers[as] = slices.Sorted(maps.Keys(servers))
	}
	return o
}
