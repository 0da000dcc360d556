// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"image/color"
	"strings"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/forward"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

const height = 4.5 * vg.Inch

// width makes room for the labels of n series.
func width(n int) vg.Length { return vg.Length(1+1.9*float64(n)) * vg.Inch }

// colours of the settings, which colour-blind people can tell apart (Okabe and
// Ito).
var colours = []color.RGBA{
	{0x99, 0x99, 0x99, 0xff},
	{0xe6, 0x9f, 0x00, 0xff},
	{0x56, 0xb4, 0xe9, 0xff},
}

// boxDistance is from one setting's box to the next one's. Series are 1 apart.
const boxDistance = 0.25

// newPlot makes the chart of a result.
func newPlot(r *forward.Result) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = title(r)
	p.Title.Padding = vg.Points(8)
	p.Y.Label.Text = "multiple of the median of \"off\""
	p.Legend.Top = true
	grid := plotter.NewGrid()
	grid.Vertical.Width = 0
	same := plotter.NewFunction(func(float64) float64 { return 1 })
	same.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
	p.Add(grid, same)
	var labels []string
	for i, s := range r.Series {
		labels = append(labels, label(s))
		base := s.Outcomes[0].Median
		for j, o := range s.Outcomes {
			values := make(plotter.Values, len(o.Values))
			for k, v := range o.Values {
				values[k] = v / base
			}
			at := float64(i) + boxDistance*(float64(j)-float64(len(s.Outcomes)-1)/2)
			box, err := plotter.NewBoxPlot(vg.Points(18), at, values)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", s.Name, o.Name, err)
			}
			box.FillColor = colours[j%len(colours)]
			box.MedianStyle.Width = vg.Points(1.5)
			p.Add(box)
			if i == 0 {
				p.Legend.Add(o.Name, swatch{box.FillColor})
			}
		}
	}
	p.NominalX(labels...)
	p.X.Min, p.X.Max = -0.5, float64(len(r.Series))-0.5
	p.Y.Min = min(p.Y.Min, 0.9)
	p.Y.Max = max(p.Y.Max, 1.1)
	p.Y.Max += 0.15 * (p.Y.Max - p.Y.Min) // for the legend
	return p, nil
}

// swatch is a colour in the legend.
type swatch struct{ color.Color }

func (s swatch) Thumbnail(c *draw.Canvas) {
	c.FillPolygon(s.Color, []vg.Point{{X: c.Min.X, Y: c.Min.Y}, {X: c.Min.X, Y: c.Max.Y}, {X: c.Max.X, Y: c.Max.Y}, {X: c.Max.X, Y: c.Min.Y}})
}

// title says what was measured, where.
func title(r *forward.Result) string {
	o := r.Options()
	nodes := "one node"
	if o.Nodes > 1 {
		nodes = "two nodes"
	}
	return fmt.Sprintf("%s over %s, %s: Linux %s, %d x %s, %d rounds", r.Benchmark, nodes, o.Family, r.Machine.Kernel, r.Machine.CPUs, r.Machine.CPU, o.Rounds)
}

// label names a series and its absolute values.
func label(s *forward.Series) string {
	lines := strings.SplitN(strings.Replace(s.Text, ", best", "\nbest", 1), ", ", 2)
	for _, o := range s.Outcomes {
		lines = append(lines, o.Name+": "+s.Unit.Format(o.Median))
	}
	return strings.Join(append(lines, "("+string(s.Better)+" is better)"), "\n")
}
