// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"os"
	"slices"
	"strings"
	"time"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"svg": func(s string) template.HTML { return template.HTML(s) }, // drawn here
	"duration": func(seconds float64) string {
		if seconds < 90 {
			return fmt.Sprintf("%.0f s", seconds)
		}
		return fmt.Sprintf("%.1f min", seconds/60)
	},
	"processors": func(n float64) string { return fmt.Sprintf("%.2f", n) },
}).Parse(pageText))

// page is what the template shows.
type page struct {
	Machines  []string
	Versions  []string
	Fast      bool
	Disturbed []string
	From, To  time.Time // of the measurements
	Headlines []*row
	Charts    []*chart // of the first screen
	Parts     []*part
}

func newPage(records map[string]*record) (*page, error) {
	all, err := describe(records)
	if err != nil {
		return nil, err
	}
	p := &page{Parts: all}
	for _, part := range all {
		if err := part.From.read(); err != nil {
			return nil, err
		}
		r := cmp.Or(records[part.Name], &record{})
		if err := part.fill(r); err != nil {
			return nil, err
		}
		for _, t := range part.Tables {
			for _, row := range slices.Concat(t.Rows, t.Same) {
				if row.Headline != "" {
					p.Headlines = append(p.Headlines, row)
				}
			}
		}
		part.Charts = slices.DeleteFunc(part.Charts, func(c *chart) bool {
			if c.First {
				p.Charts = append(p.Charts, c)
			}
			return c.First
		})
		for _, step := range r.Steps {
			machine := fmt.Sprintf("%s, %.0f GB", step.Machine, float64(step.Memory)/1e9)
			if !slices.Contains(p.Machines, machine) {
				p.Machines = append(p.Machines, machine)
			}
			if !slices.Contains(p.Versions, step.Version) {
				p.Versions = append(p.Versions, step.Version)
			}
			p.Fast = p.Fast || step.Fast
			if p.From.IsZero() || step.Began.Before(p.From) {
				p.From = step.Began
			}
			if step.Began.After(p.To) {
				p.To = step.Began
			}
			if step.Disturbed() {
				p.Disturbed = append(p.Disturbed, fmt.Sprintf("%s, %s", part.Name, step.Name))
			}
		}
	}
	return p, nil
}

func writePage(path string, records map[string]*record) error {
	p, err := newPage(records)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, p); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// Where says on which kernel a step measured: this machine's, or that of the virtual one that it ran in.
func (r *result) Where() string {
	switch {
	case r.Result == nil:
		return ""
	case strings.HasPrefix(r.kernel(), "Linux"):
		return "on " + r.kernel()
	}
	return "in " + r.kernel()
}

// kernel is the kernel that a step measured, or the step's name if it has no result.
func (r *result) kernel() string {
	if r.Result == nil {
		return r.Name
	}
	switch m := r.Result.Machine; {
	case m.CPU == "UML":
		return "User Mode Linux " + m.Kernel
	case strings.Contains(m.CPU, "QEMU"):
		return "QEMU, Linux " + m.Kernel
	default:
		return "Linux " + m.Kernel
	}
}

// engine says what offloaded the connections of a result, and on which kernel.
func (r *result) engine() string {
	switch {
	case r.Result == nil:
		return r.Name
	case slices.ContainsFunc(r.Result.Notes, func(n string) bool { return strings.Contains(n, "ebpf") }):
		return "eBPF, " + r.kernel()
	}
	return "flowtable, " + r.kernel()
}

// Subjects names what was compared, with versions.
func (r *result) Subjects() string {
	if r.Result == nil {
		return ""
	}
	var all []string
	for _, s := range r.Result.Subjects {
		text := s.Name
		if s.Version != "" {
			text += " (" + s.Version + ")"
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}
