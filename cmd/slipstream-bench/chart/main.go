// SPDX-License-Identifier: Apache-2.0

// Command chart draws what benchmarks have saved with --save: of slipstream-bench
// throughput, crr and balance, bars of the chosen series for each setting, as multiples of the first
// setting; of make bench-rules, lines of the rules executed by numbers of Services.
//
//	slipstream-bench throughput --save result.json
//	go run ./cmd/slipstream-bench/chart -series packet_cost,path_cost -title "Cost of a packet" -o cost.svg result.json
//
// The ending of the output's name is the format: svg, png or pdf. It is a command of its own
// because the drawing library parses its fonts in every process that it is linked into,
// which would be in the memory that slipstream-bench measures of itself.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"image/color"
	"os"
	"strconv"
	"strings"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

func main() {
	output := flag.String("o", "", "`file` to write, ending in .svg, .png or .pdf")
	title := flag.String("title", "", "title of the chart, instead of the result's")
	series := flag.String("series", "", "`names` of the series to draw, with commas between; all by default")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: chart -o FILE [flags] RESULT.json")
		flag.PrintDefaults()
	}
	flag.Parse()
	if *output == "" || flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *output, *title, *series); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

func run(input, output, title, names string) error {
	b, err := os.ReadFile(input)
	if err != nil {
		return err
	}
	var r bench.Result
	if err := json.Unmarshal(b, &r); err != nil {
		return fmt.Errorf("%s: %w", input, err)
	}
	if title != "" {
		r.Title = title
	}
	chosen := r.Series
	if names != "" {
		chosen = nil
		for name := range strings.SplitSeq(names, ",") {
			s := r.Find(name)
			if s == nil {
				return fmt.Errorf("%s: no series %q", input, name)
			}
			chosen = append(chosen, s)
		}
	}
	drawChart := drawBars
	if r.Benchmark == "rules" {
		drawChart = drawLines
	}
	p, height, err := drawChart(&r, chosen)
	if err != nil {
		return fmt.Errorf("%s: %w", input, err)
	}
	return p.Save(width, height, output)
}

const width = 8 * vg.Inch

// colours by subject, distinguishable by colour-blind people (Okabe and Ito).
var colours = []color.RGBA{
	{0x99, 0x99, 0x99, 0xff},
	{0xe6, 0x9f, 0x00, 0xff},
	{0x56, 0xb4, 0xe9, 0xff},
	{0x00, 0x9e, 0x73, 0xff},
}

func newPlot(r *bench.Result) *plot.Plot {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	plotter.DefaultFont = plot.DefaultFont
	p := plot.New()
	p.BackgroundColor = color.White
	p.Title.Text = r.Title
	p.Title.TextStyle.Font.Size = vg.Points(13)
	p.Title.Padding = vg.Points(10)
	p.X.Label.Padding, p.Y.Label.Padding = vg.Points(6), vg.Points(6)
	return p
}

// drawBars draws a group of horizontal bars for each series: a bar for each subject, as
// long as its ratio to the first subject, with ratio and median at its end. The axis
// begins at 0, so that lengths can be compared.
func drawBars(r *bench.Result, series []*bench.Series) (*plot.Plot, vg.Length, error) {
	if len(series) == 0 {
		return nil, 0, errors.New("no series")
	}
	p := newPlot(r)
	p.X.Label.Text = fmt.Sprintf("multiple of %q in the same round, median (%s is better)", r.Subjects[0].Name, series[0].Better)
	p.X.Min = 0
	const thickness, gap = 16, 14 // of a bar, and between groups, in points
	group := float64(len(r.Subjects)*thickness + gap)
	var ticks []plot.Tick
	labels := plotter.XYLabels{}
	for i, s := range series {
		if s.Better != series[0].Better {
			return nil, 0, fmt.Errorf("of %s more is better, of %s less: they need charts of their own", series[0].Name, s.Name)
		}
		centre := -group * float64(i) // from top to bottom
		ticks = append(ticks, plot.Tick{Value: centre, Label: "   " + s.Text})
		for k, o := range s.Outcomes {
			ratio := o.Ratio
			if k == 0 {
				ratio = 1
			}
			at := centre + thickness*(float64(len(s.Outcomes)-1)/2-float64(k))
			bar, err := plotter.NewPolygon(plotter.XYs{{X: 0, Y: at - 7}, {X: ratio, Y: at - 7}, {X: ratio, Y: at + 7}, {X: 0, Y: at + 7}})
			if err != nil {
				return nil, 0, err
			}
			bar.Color, bar.LineStyle.Width = colours[k%len(colours)], 0
			p.Add(bar)
			if i == 0 {
				p.Legend.Add(r.Subjects[k].Name, bar)
			}
			text := s.Unit.Format(o.Median)
			if k > 0 {
				text = fmt.Sprintf("%.2fx, %s", ratio, text)
			}
			labels.XYs = append(labels.XYs, plotter.XY{X: ratio, Y: at})
			labels.Labels = append(labels.Labels, text)
			p.X.Max = max(p.X.Max, 1.35*ratio) // room for the text
		}
	}
	values, err := plotter.NewLabels(labels)
	if err != nil {
		return nil, 0, err
	}
	values.Offset = vg.Point{X: vg.Points(4)}
	for i := range values.TextStyle {
		values.TextStyle[i].YAlign = draw.YCenter
	}
	p.Add(values)
	p.Y.Tick.Marker = plot.ConstantTicks(ticks)
	p.Y.Tick.Length, p.Y.LineStyle.Width = 0, 0
	p.Y.Min, p.Y.Max = -group*(float64(len(series))-0.5), group/2+50 // room for the legend
	p.Legend.Top, p.Legend.XOffs, p.Legend.Padding = true, vg.Points(-4), vg.Points(3)
	return p, vg.Points(group*float64(len(series)) + 160), nil
}

// drawLines draws a line for each subject through the medians, by the value that the series were
// measured at, with bars from the lowest to the highest. Both axes are logarithmic, so that
// proportional growth is a straight line.
func drawLines(r *bench.Result, series []*bench.Series) (*plot.Plot, vg.Length, error) {
	p := newPlot(r)
	p.X.Label.Text, p.Y.Label.Text = "Services", "rules executed: median, lowest to highest"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = thousands{}, thousands{}
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.XOffs, p.Legend.Padding = vg.Points(8), vg.Points(3)
	p.Add(plotter.NewGrid())
	any := false
	for k, subject := range r.Subjects {
		var all points
		for _, s := range series {
			if o := s.Outcomes[k]; s.At > 0 && o.Median > 0 {
				all = append(all, point{s.At, o})
			}
		}
		if len(all) == 0 {
			continue
		}
		any = true
		line, marks, err := plotter.NewLinePoints(all)
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", subject.Name, err)
		}
		bars, err := plotter.NewYErrorBars(all)
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", subject.Name, err)
		}
		colour := colours[(2*k+3)%len(colours)]
		line.Color, marks.Color, bars.Color = colour, colour, colour
		line.Width, marks.Shape, marks.Radius = vg.Points(1.5), draw.CircleGlyph{}, vg.Points(3)
		labels, err := plotter.NewLabels(all)
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", subject.Name, err)
		}
		// Below the line of the first subject, and above those of the others.
		labels.Offset = vg.Point{X: vg.Points(6), Y: vg.Points(-13)}
		align := text.XLeft
		if k > 0 {
			labels.Offset, align = vg.Point{X: vg.Points(-6), Y: vg.Points(4)}, text.XRight
		}
		for i := range labels.TextStyle {
			labels.TextStyle[i].XAlign = align
		}
		p.Add(line, marks, bars, labels)
		p.Legend.Add(subject.Name, line, marks)
	}
	if !any {
		return nil, 0, errors.New("nothing was counted")
	}
	p.Y.Min = min(p.Y.Min, 10)
	p.X.Min, p.X.Max = p.X.Min/1.6, p.X.Max*1.6 // room for the labels
	p.Y.Max *= 1.3
	return p, 5 * vg.Inch, nil
}

// point is a measured value at a number of Services.
type point struct {
	at int
	bench.Outcome
}

type points []point

func (p points) Len() int                { return len(p) }
func (p points) XY(i int) (x, y float64) { return float64(p[i].at), p[i].Median }
func (p points) Label(i int) string      { return bench.Thousands(int(p[i].Median + 0.5)) }
func (p points) YError(i int) (low, high float64) {
	return p[i].Median - p[i].Lowest, p[i].Highest - p[i].Median
}

// thousands are ticks at powers of ten, with commas.
type thousands struct{}

func (thousands) Ticks(from, to float64) []plot.Tick {
	all := plot.LogTicks{Prec: -1}.Ticks(from, to)
	for i := range all {
		if n, err := strconv.ParseFloat(all[i].Label, 64); err == nil {
			all[i].Label = bench.Thousands(int(n))
		}
	}
	return all
}
