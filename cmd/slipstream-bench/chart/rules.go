// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/executed"
	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/table"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

const rulesWidth = 7 * vg.Inch

// drawRules draws, for each proxy, the rules executed for a new connection by numbers of
// Services: a line through the medians, with bars from the least to the most. Both
// axes are logarithmic, so that what grows with the Services is a straight line that rises.
func drawRules(result []byte) (*plot.Plot, vg.Length, error) {
	var r executed.Result
	if err := json.Unmarshal(result, &r); err != nil {
		return nil, 0, err
	}
	p := plot.New()
	p.Title.Text = fmt.Sprintf("Rules executed for a new connection, Services of %d endpoints", r.Endpoints)
	p.Title.Padding = vg.Points(8)
	p.X.Label.Text, p.Y.Label.Text = "Services", "rules: median, least to most"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = thousands{}, thousands{}
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	points := 0
	for i, s := range r.Subjects {
		c := counts(s.Counts)
		if c.Len() == 0 {
			continue
		}
		points += c.Len()
		line, marks, err := plotter.NewLinePoints(c)
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", s.Name, err)
		}
		bars, err := plotter.NewYErrorBars(c)
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", s.Name, err)
		}
		colour := colours[1+i%(len(colours)-1)]
		line.Color, marks.Color, bars.Color = colour, colour, colour
		line.Width, marks.Shape = vg.Points(1.5), draw.CircleGlyph{}
		p.Add(line, marks, bars)
		p.Legend.Add(s.Name, line, marks)
		labels, err := plotter.NewLabels(c)
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", s.Name, err)
		}
		// The first one's below its line, which is below the others', and theirs above.
		labels.Offset = vg.Point{X: vg.Points(6), Y: vg.Points(-12)}
		if i > 0 {
			labels.Offset = vg.Point{X: vg.Points(-6), Y: vg.Points(3)}
			for k := range labels.TextStyle {
				labels.TextStyle[k].XAlign = draw.XRight
			}
		}
		p.Add(labels)
	}
	if points == 0 {
		return nil, 0, errors.New("nothing was counted")
	}
	p.Y.Min = min(p.Y.Min, 10)
	p.X.Min, p.X.Max = p.X.Min/1.6, p.X.Max*1.6 // for the labels
	return p, rulesWidth, nil
}

// counts are points of a chart, with bars and labels.
type counts []executed.Count

func (c counts) Len() int                { return len(c) }
func (c counts) XY(i int) (x, y float64) { return float64(c[i].Services), c[i].Median }
func (c counts) Label(i int) string      { return table.Thousands(int(c[i].Median + 0.5)) }
func (c counts) YError(i int) (l, h float64) {
	return c[i].Median - float64(c[i].Least), float64(c[i].Most) - c[i].Median
}

// thousands are ticks at all powers of ten, with commas.
type thousands struct{}

func (thousands) Ticks(from, to float64) []plot.Tick {
	all := plot.LogTicks{Prec: -1}.Ticks(from, to)
	for i := range all {
		if n, err := strconv.ParseFloat(all[i].Label, 64); err == nil {
			all[i].Label = table.Thousands(int(n))
		}
	}
	return all
}
