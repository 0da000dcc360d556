// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/collect"
)

// Write writes the report as text: what follows from it, each mode, and the configuration of the recommended one.
func (r *Report) Write(to io.Writer) error {
	var b strings.Builder
	if m := r.mode(); m == nil {
		fmt.Fprintf(&b, "kube-proxy runs in the mode %s. No mode of Slipstream is possible on this node.\n", r.From)
	} else {
		n := map[Severity]int{}
		ofServices := slices.Concat(collect.From(m.Services, func(s Service) []Finding { return s.Findings })...)
		for _, f := range append(ofServices, m.Node...) {
			n[f.Severity]++
		}
		fmt.Fprintf(&b, "kube-proxy runs in the mode %s. In Slipstream's mode %s, what stops working: %d, what differs: %d, what needs a look: %d.\n",
			r.From, m.Mode, n[Stops], n[Differs], n[Action])
	}
	for _, m := range r.Modes {
		fmt.Fprintf(&b, "\nMode %s", m.Mode)
		if m.Mode == r.Recommended && len(r.Modes) > 1 {
			b.WriteString(" (recommended)")
		}
		b.WriteString("\n")
		if len(m.Node) > 0 {
			b.WriteString("  This node\n")
			writeFindings(&b, m.Node)
		}
		for _, s := range m.Services {
			fmt.Fprintf(&b, "  Service %s\n", s.Name)
			writeFindings(&b, s.Findings)
		}
		if m.Possible {
			fmt.Fprintf(&b, "  Services without a change of their own: %d\n", m.Unchanged)
		}
	}
	if m := r.mode(); m != nil {
		fmt.Fprintf(&b, "\nConfiguration for the mode %s:\n\n%s", m.Mode, m.Configuration)
	}
	_, err := io.WriteString(to, b.String())
	return err
}

func writeFindings(b *strings.Builder, all []Finding) {
	const margin = "             "
	for _, f := range all {
		writeLines(b, fmt.Sprintf("    %-8s %s:", f.Severity, f.Case), margin, f.Text)
		if f.Do != "" {
			writeLines(b, margin[1:], margin, f.Do)
		}
	}
}

// writeLines breaks a text into lines of at most 100 bytes where it can.
func writeLines(b *strings.Builder, line, margin, text string) {
	for _, word := range strings.Fields(text) {
		if len(line)+1+len(word) > 100 && line != margin {
			b.WriteString(line + "\n")
			line = margin[1:]
		}
		line += " " + word
	}
	b.WriteString(line + "\n")
}
