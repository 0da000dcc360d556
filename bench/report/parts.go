// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/bench/figure"
	"sigs.k8s.io/yaml"
)

// part is a chapter of the page, and what is measured for it.
type part struct {
	Name, Title string
	Claim       string // a sentence with the figures that were measured, or empty
	About       string // a paragraph
	Steps       []benchmark
	Tables      []*table
	Charts      []*chart
	From        copied    // measured by other programs
	Limits      []string  // what cannot be reproduced, and why
	Results     []*result `json:"-"` // of any run, or missing
}

// copied is the table of a page in docs that begins with a head.
type copied struct {
	Page, Head string
	Rows       [][]string `json:"-"`
}

// docs is where the pages are. A test has it elsewhere.
var docs = "docs"

func (c *copied) read() error {
	if c.Page == "" {
		return nil
	}
	page, err := os.ReadFile(filepath.Join(docs, c.Page))
	_, table, found := strings.Cut(string(page), "\n"+c.Head)
	if err != nil || !found {
		return errors.Join(fmt.Errorf("no table %s in %s", c.Head, c.Page), err)
	}
	for line := range strings.Lines(c.Head + table) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		c.Rows = append(c.Rows, strings.Split(strings.Trim(line, "| \n"), " | "))
	}
	c.Rows = slices.Delete(c.Rows, 1, 2) // the line below the head
	return nil
}

// result has a chart's columns, with a series for each row. A dash stands for no value.
func (c *copied) result(of *chart) (*bench.Result, error) {
	r, samples, series := &bench.Result{Title: of.Axis}, bench.NewSamples(len(of.Subjects)), []bench.Series{}
	r.AddSubjects(of.Subjects...)
	for _, row := range c.Rows[1:] {
		var cells []string
		for _, column := range of.Columns {
			if at := slices.Index(c.Rows[0], column); 0 <= at && at < len(row) {
				cells = append(cells, strings.Split(row[at], ", ")...)
			}
		}
		if len(cells) != len(samples) {
			return nil, fmt.Errorf("%s, %s: %q in the columns %q, want %d values", c.Page, row[0], cells, of.Columns, len(samples))
		}
		for k, cell := range cells {
			if n, err := strconv.ParseFloat(strings.TrimSuffix(cell, "ms"), 64); err == nil {
				samples[k].Add(row[0], n)
			} else if cell != "–" {
				return nil, err
			}
		}
		series = append(series, bench.Series{Name: row[0], Text: row[0]})
	}
	return r, r.Fill(series, samples)
}

// benchmark is a command of a full run, and that of a short one, if it is part of one, both without --save.
type benchmark struct {
	Name       string
	Full, Fast string
	Minutes    struct{ Full, Fast float64 } // for the progress line
}

// table compares kube-proxy and Slipstream.
type table struct {
	Title    string
	Step     string
	Subjects [2]string // theirs and ours
	Heads    [2]string // of their columns
	Optional bool      // it is left out if the step has failed
	Missing  string    // why theirs has no value, if it was not measured
	Rows     []*row
	Same     []*row `json:"-"` // those without a difference, unless all are
}

// row compares a series.
type row struct {
	What         string
	As           published
	Headline     string  // what the row says after its gain on the first screen, if it is there
	Series       string  // of the step
	From         string  // theirs, if it is another series
	Step         string  // if it is not the table's
	Theirs, Ours string  // the subjects, if they are not the table's
	Percentile   float64 // in place of the median
	Compared     string  // in place of a comparison

	Beside             string `json:"-"` // the head of theirs
	TheirCell, OurCell cell   `json:"-"`
	Gain               string `json:"-"` // how many times ours is better, if the test shows a difference
}

// published is a figure by others.
type published struct {
	Text, Source string // text and address; neither if nobody has published one
}

// chart has bars of some series of a step or, with numbers of Services, lines of one series.
type chart struct {
	Title, Text string
	Axis, Step  string
	Columns     []string // of the copied table, in place of series: a value for each subject, several in a cell with commas
	Ranks       string   // the axis of lines through the copied values, the highest first; without, each row has bars
	At          []int
	Apart       int  // of At, with other circumstances: lines do not lead to it
	First       bool // it is on the first screen
	Series      []string
	Subjects    []string
	SVG         string `json:"-"`
}

//go:embed parts.yaml
var partsText string

// parts are all parts, before anything is measured.
var parts = func() []*part {
	all, err := describe(nil)
	if err != nil {
		panic(err)
	}
	return all
}()

// describe returns the parts. Some of their texts depend on what was measured.
func describe(records map[string]*record) (all []*part, err error) {
	find := func(part, step string) *result {
		if r := records[part]; r != nil {
			if found := r.find(step); found != nil {
				return found
			}
		}
		return &result{Name: step}
	}
	t, err := template.New("parts.yaml").Funcs(template.FuncMap{
		"thousands": bench.Thousands,
		"list":      func(all ...any) []any { return all },
		"pairs":     pairs,
		"subjects": func(mode string) string {
			return fmt.Sprintf("[kube-proxy-%s, %s]", mode, strings.TrimSuffix("slipstream-"+mode, "-nftables"))
		},
		"has": func(part, step, series string) bool {
			r := find(part, step).Result
			return r != nil && r.Find(series) != nil
		},
		// values is the row of a series, or nil if it was not measured for both.
		"values": func(part, step, series, theirs, ours string) *row {
			one := &row{Series: series}
			(&table{Step: step, Subjects: [2]string{theirs, ours}, Rows: []*row{one}}).fill(&record{Steps: []*result{find(part, step)}})
			if one.TheirCell.Text == "" || one.OurCell.Text == "" {
				return nil
			}
			return one
		},
		"where":  func(part, step string) string { return find(part, step).kernel() },
		"engine": func(part, step string) string { return find(part, step).engine() },
	}).Parse(partsText)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, nil); err != nil {
		return nil, err
	}
	return all, yaml.UnmarshalStrict(b.Bytes(), &all)
}

// pairs gives one value after the other with the value that follows it, in their order.
func pairs(all ...string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for i := 0; i < len(all) && yield(all[i], all[i+1]); i += 2 {
		}
	}
}

// fill completes the tables and charts, and leaves out those that have nothing to show.
func (p *part) fill(r *record) error {
	p.Results = r.Steps
	p.Tables = slices.DeleteFunc(p.Tables, func(t *table) bool { t.fill(r); return len(t.Rows) == 0 })
	for _, c := range p.Charts {
		if err := c.draw(r, p.From); err != nil {
			return fmt.Errorf("part %s: %s: %w", p.Name, c.Title, err)
		}
	}
	p.Charts = slices.DeleteFunc(p.Charts, func(c *chart) bool { return c.SVG == "" })
	return nil
}

// fill fills the cells. It removes the rows that have not been measured, unless something that failed is why.
func (t *table) fill(r *record) {
	if t.Heads[0] == "" {
		t.Heads = [2]string{"kube-proxy", "Slipstream"}
	}
	t.Rows = slices.DeleteFunc(t.Rows, func(row *row) bool {
		step := r.find(cmp.Or(row.Step, t.Step))
		if step == nil || t.Optional && step.Result == nil {
			return true
		}
		theirs, ours := cmp.Or(row.Theirs, t.Subjects[0]), cmp.Or(row.Ours, t.Subjects[1])
		from := cmp.Or(row.From, row.Series)
		row.TheirCell, row.OurCell = step.cell(from, theirs, row.Percentile), step.cell(row.Series, ours, row.Percentile)
		if row.TheirCell.Missing == notMeasured {
			row.TheirCell.Missing = cmp.Or(t.Missing, notMeasured)
		}
		text, gain := step.compare(from, theirs, row.Series, ours)
		row.Compared, row.Gain, row.Beside = cmp.Or(row.Compared, text), gain, t.Heads[0]
		return row.OurCell.Missing == notMeasured
	})
	same := func(r *row) bool { return strings.HasPrefix(r.Compared, noDifference) }
	if slices.ContainsFunc(t.Rows, func(r *row) bool { return !same(r) }) {
		for _, r := range t.Rows {
			if same(r) {
				t.Same = append(t.Same, r)
			}
		}
		t.Rows = slices.DeleteFunc(t.Rows, same)
	}
}

// draw draws the chart, if there are values for it.
func (c *chart) draw(r *record, from copied) (err error) {
	drawn, axis := c.bars(r), c.Ranks
	switch {
	case len(c.Columns) > 0:
		drawn, err = from.result(c)
	case len(c.At) > 0:
		drawn, axis = c.lines(r), "Services"
		c.Text = strings.TrimSpace("Medians, with bars from the lowest to the highest value. Both axes are logarithmic. " + c.Text)
	}
	switch {
	case err != nil || len(drawn.Series) == 0:
	case axis == "":
		c.SVG, err = figure.Bars(drawn)
	case len(drawn.Series) > 1: // there is no line of one point
		c.SVG, err = figure.Lines(drawn, axis, c.Axis, c.Apart)
	}
	return err
}

// bars returns the chart's series that were measured.
func (c *chart) bars(r *record) *bench.Result {
	drawn := &bench.Result{}
	if step := r.find(c.Step); step != nil && step.Result != nil {
		drawn.Subjects = step.Result.Subjects
		for _, name := range c.Series {
			if found := step.Result.Find(name); found != nil && len(found.Outcomes[0].Values) > 0 {
				drawn.Series = append(drawn.Series, found)
			}
		}
	}
	return drawn
}

// lines returns the chart's series with each number of Services.
func (c *chart) lines(r *record) *bench.Result {
	drawn := &bench.Result{}
	drawn.AddSubjects(c.Subjects...)
	for _, at := range c.At {
		number := strings.NewReplacer("{n}", strconv.Itoa(at))
		one, measured := &bench.Series{At: at}, false
		for _, subject := range c.Subjects {
			o := bench.Outcome{}
			if series, found, _ := r.find(number.Replace(c.Step)).outcome(number.Replace(c.Series[0]), subject); found != nil {
				one.Unit, o, measured = series.Unit, *found, true
			}
			one.Outcomes = append(one.Outcomes, o)
		}
		if measured {
			drawn.Series = append(drawn.Series, one)
		}
	}
	return drawn
}
