// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"fmt"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/desired"
)

// describeChange is a change as a story tells it: sorted lines, with the names
// of pools instead of their IDs.
func describeChange(c *desired.Change) string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, f := range c.Frontends {
		switch {
		case f.Old == nil:
			add("frontend %s: new, %s of %s", f.Key(), f.New.Kind, f.New.Service)
		case f.New == nil:
			add("frontend %s: gone", f.Key())
		default:
			add("frontend %s: now %s of %s", f.Key(), f.New.Kind, f.New.Service)
		}
	}
	for _, p := range c.Pools {
		name := fmt.Sprintf("pool %s %s", p.Service, p.Family)
		if p.Gone {
			add("%s: gone", name)
			continue
		}
		var parts []string
		if p.New {
			parts = append(parts, "new")
		}
		if s := backends("+", p.Added); s != "" {
			parts = append(parts, s)
		}
		if s := backends("-", p.Removed); s != "" {
			parts = append(parts, s)
		}
		switch {
		case p.IfEmpty == desired.Drop:
			parts = append(parts, "drops when empty")
		case len(parts) == 0:
			parts = append(parts, "rejects when empty again")
		}
		add("%s: %s", name, strings.Join(parts, ", "))
	}
	for _, p := range c.Problems {
		add("problem: %s", p.Error())
	}
	slices.Sort(lines)
	if len(lines) == 0 {
		return "nothing changed"
	}
	return strings.Join(lines, "\n")
}

func backends(sign string, all []desired.Backend) string {
	var s []string
	for _, b := range slices.SortedFunc(slices.Values(all), desired.Backend.Compare) {
		s = append(s, sign+b.String())
	}
	return strings.Join(s, " ")
}
