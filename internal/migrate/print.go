// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"io"
	"strings"
)

// Write writes the report as text: each mode, and the configuration of the recommended one.
func (r *Report) Write(to io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "kube-proxy runs in the mode %s.\n", r.From)
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
	for _, f := range all {
		fmt.Fprintf(b, "    %-8s %s: %s\n", f.Severity, f.Case, f.Text)
		if f.Do != "" {
			fmt.Fprintf(b, "             %s\n", f.Do)
		}
	}
}
