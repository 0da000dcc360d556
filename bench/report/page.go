// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"os"
	"strings"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"svg": func(s string) template.HTML { return template.HTML(s) }, // drawn here
	"gigabytes": func(bytes uint64) string {
		return fmt.Sprintf("%.1f GB", float64(bytes)/1e9)
	},
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
	Headlines []headline
	Sections  []*section
}

// headline is a row of the first table.
type headline struct {
	What, Link string
	row
}

func newPage(records map[string]*record) (*page, error) {
	p := &page{}
	for _, part := range parts {
		s := &section{Name: part.name, Title: part.title, About: part.about, Limits: part.limits}
		p.Sections = append(p.Sections, s)
		r := records[part.name]
		if r == nil {
			continue
		}
		s.Steps = r.Steps
		if err := part.fill(s, r); err != nil {
			return nil, fmt.Errorf("part %s: %w", part.name, err)
		}
		for _, t := range s.Tables {
			for _, row := range t.Rows {
				if row.headline != "" {
					p.Headlines = append(p.Headlines, headline{row.headline, "#" + s.Name, row})
				}
			}
		}
		for _, step := range r.Steps {
			p.Machines = appendNew(p.Machines, fmt.Sprintf("%s, %.0f GB", step.Machine, float64(step.Memory)/1e9))
			p.Versions = appendNew(p.Versions, step.Version)
			p.Fast = p.Fast || step.Fast
			if step.Disturbed() {
				p.Disturbed = append(p.Disturbed, fmt.Sprintf("%s, %s", part.name, step.Name))
			}
		}
	}
	return p, nil
}

func appendNew(all []string, s string) []string {
	for _, old := range all {
		if old == s {
			return all
		}
	}
	return append(all, s)
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

// Machine is the machine that a step measured: this one, or the virtual one that it ran in.
func (r *result) Where() string {
	if r.Result == nil {
		return ""
	}
	m := r.Result.Machine
	if m.CPU == "UML" {
		return "in User Mode Linux " + m.Kernel
	}
	if strings.Contains(m.CPU, "QEMU") {
		return "in QEMU, Linux " + m.Kernel
	}
	return "on Linux " + m.Kernel
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
