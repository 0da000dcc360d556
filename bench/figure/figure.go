// SPDX-License-Identifier: Apache-2.0

// Package figure draws the results of benchmarks for the report's page.
package figure

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"image/color"
	"math"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const width = 8 * vg.Inch

// colours by subject, the same on the whole page, distinguishable by colour-blind people (Okabe and Ito). Others are grey.
var colours = map[string]color.RGBA{
	"slipstream": blue, "nftables": blue, "lc": blue, "eBPF": blue, "threshold 20": blue, "during the attack": blue,
	"slipstream-iptables": sky, "iptables": sky, "rr": sky, "flowtable": sky, "no threshold": sky,
	"kube-proxy-nftables": vermilion, "ipvs-lc": vermilion,
	"kube-proxy-iptables": orange, "kube-proxy-ipvs": orange,
	"sockets": green, "detection": green, "no Service": purple, "IPVS": purple, "unseen": purple, "one link": yellow,
}

var (
	blue, sky, vermilion = color.RGBA{0x00, 0x72, 0xb2, 0xff}, color.RGBA{0x56, 0xb4, 0xe9, 0xff}, color.RGBA{0xd5, 0x5e, 0x00, 0xff}
	orange, green        = color.RGBA{0xe6, 0x9f, 0x00, 0xff}, color.RGBA{0x00, 0x9e, 0x73, 0xff}
	purple, yellow       = color.RGBA{0xcc, 0x79, 0xa7, 0xff}, color.RGBA{0xd4, 0xc4, 0x10, 0xff}
)

func colour(subject string) color.RGBA {
	if c, ok := colours[subject]; ok {
		return c
	}
	return color.RGBA{0x99, 0x99, 0x99, 0xff}
}

// shapes of marks by subject, for those who do not see the colours.
var shapes = []draw.GlyphDrawer{draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}, draw.CrossGlyph{}, draw.RingGlyph{}, draw.SquareGlyph{}}

func newPlot() *plot.Plot {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	plotter.DefaultFont = plot.DefaultFont
	p := plot.New()
	p.BackgroundColor = nil
	p.X.Label.Padding, p.Y.Label.Padding = vg.Points(6), vg.Points(6)
	return p
}

// legend has the names of subjects, two in a row.
type legend []plot.Legend

func (l *legend) add(subject string, thumbs ...plot.Thumbnailer) {
	one := plot.NewLegend()
	one.Add(subject, thumbs...)
	one.Top, one.Left, one.Padding = true, true, vg.Points(3)
	*l = append(*l, one)
}

// svg returns the plot, below its legend, as an element to be placed in a page. Its text and axes have the page's
// colour of text.
func (l legend) svg(p *plot.Plot, height vg.Length) (string, error) {
	const row, column = 18, width * 3 / 8
	above := vg.Points(float64(row*((len(l)+1)/2) + 6))
	c := vgsvg.New(width, height+above)
	all := draw.New(c)
	for i, one := range l {
		one.Draw(draw.Crop(all, vg.Length(i%2)*column, 0, 0, -vg.Points(float64(row*(i/2)))))
	}
	p.Draw(draw.Crop(all, vg.Points(10), -vg.Points(20), 0, -above)) // room for half of the numbers below the axis' ends
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return "", err
	}
	text := b.String()
	text = text[strings.Index(text, "<svg"):]
	return strings.NewReplacer("#000000", "currentColor", "<svg ", `<svg fill="currentColor" aria-hidden="true" `).Replace(text), nil
}

// Bars draws a group of horizontal bars for each series: a bar for each subject, as
// long as its ratio to the first subject, with ratio and median at its end. The axis
// begins at 0, so that lengths can be compared. Where the test sees no difference, there is no bar.
// Bars of counts, of which neither more nor less is better, are as long as the median; their axis has the result's title.
func Bars(r *bench.Result) (string, error) {
	p, names, series := newPlot(), legend{}, r.Series
	p.X.Label.Text = fmt.Sprintf("multiple of %q in the same round, median (%s is better)", r.Subjects[0].Name, series[0].Better)
	p.X.Min = 0
	thickness, gap := 16.0, 30.0 // of a bar, and between groups with their text, in points
	if series[0].Better == "" {
		p.X.Label.Text, thickness, gap = r.Title, 10, 16
	}
	group := float64(len(r.Subjects))*thickness + gap
	labels := plotter.XYLabels{}
	for i, s := range series {
		if s.Better != series[0].Better {
			return "", fmt.Errorf("of %s more is better, of %s less: they need charts of their own", series[0].Name, s.Name)
		}
		centre := -group * float64(i) // from top to bottom
		labels.XYs = append(labels.XYs, plotter.XY{Y: centre + float64(len(r.Subjects))*thickness/2 + 8})
		labels.Labels = append(labels.Labels, s.Text)
		for k, o := range s.Outcomes {
			if len(o.Values) == 0 && i > 0 { // the first group has the legend
				continue
			}
			ratio, text := o.Ratio, s.Unit.Format(o.Median)
			switch {
			case s.Better == "":
				ratio = o.Median
			case k == 0:
				ratio = 1
			case o.P >= bench.Significant:
				ratio, text = 0, "no difference shown, "+text
			default:
				text = fmt.Sprintf("%.2fx, %s", ratio, text)
			}
			at, half := centre+thickness*(float64(len(s.Outcomes)-1)/2-float64(k)), thickness/2-1
			bar, err := plotter.NewPolygon(plotter.XYs{{X: 0, Y: at - half}, {X: ratio, Y: at - half}, {X: ratio, Y: at + half}, {X: 0, Y: at + half}})
			if err != nil {
				return "", err
			}
			bar.Color, bar.LineStyle.Width = colour(r.Subjects[k].Name), 0
			p.Add(bar)
			if i == 0 {
				names.add(r.Subjects[k].Name, bar)
			}
			labels.XYs = append(labels.XYs, plotter.XY{X: ratio, Y: at})
			labels.Labels = append(labels.Labels, text)
			p.X.Max = max(p.X.Max, 1.35*ratio) // room for the text
		}
	}
	values, err := plotter.NewLabels(labels)
	if err != nil {
		return "", err
	}
	values.Offset = vg.Point{X: vg.Points(4)}
	for i := range values.TextStyle {
		values.TextStyle[i].YAlign = draw.YCenter
	}
	p.Add(values)
	p.HideY()
	p.Y.Min, p.Y.Max = -group*(float64(len(series))-0.5), group/2
	return names.svg(p, vg.Points(group*float64(len(series))+50))
}

// Lines draws a line for each subject through the medians, by the value that the series were
// measured at, with bars from the lowest to the highest. Both axes are logarithmic, so that
// proportional growth is a straight line. x and y are the texts of the axes. Values of 0 are left
// out. Lines do not lead to values at apart, which are of other circumstances. Series that were measured at
// nothing are ranked, by each subject's medians, the highest first.
func Lines(r *bench.Result, x, y string, apart int) (string, error) {
	p, names := newPlot(), legend{}
	p.X.Label.Text, p.Y.Label.Text = x, y
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	unit := r.Series[0].Unit
	p.X.Tick.Marker, p.Y.Tick.Marker = decades(bench.Count), decades(unit)
	p.Add(plotter.NewGrid())
	for k, subject := range r.Subjects {
		var all points
		var joined plotter.XYs
		if r.Series[0].At == 0 {
			slices.SortFunc(r.Series, func(a, b *bench.Series) int { return cmp.Compare(b.Outcomes[k].Median, a.Outcomes[k].Median) })
		}
		for i, s := range r.Series {
			if o := s.Outcomes[k]; o.Median > 0 {
				all.add(cmp.Or(s.At, i+1), unit, o)
				if s.At == 0 || s.At != apart {
					joined = append(joined, all.XYs[len(all.XYs)-1])
				}
			}
		}
		if len(all.XYs) == 0 {
			continue
		}
		line, marks, err := plotter.NewLinePoints(all.XYs)
		bars, failed := plotter.NewYErrorBars(all)
		if err := errors.Join(err, failed); err != nil {
			return "", fmt.Errorf("%s: %w", subject.Name, err)
		}
		line.XYs = joined
		c := colour(subject.Name)
		line.Color, marks.Color, bars.Color = c, c, c
		line.Width, marks.Shape, marks.Radius = vg.Points(1.5), shapes[k%len(shapes)], vg.Points(3)
		p.Add(line, marks, bars)
		names.add(subject.Name, line, marks)
		if len(r.Subjects) > 2 { // values would cover each other
			continue
		}
		labels, err := plotter.NewLabels(plotter.XYLabels{XYs: all.XYs, Labels: all.labels})
		if err != nil {
			return "", fmt.Errorf("%s: %w", subject.Name, err)
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
		p.Add(labels)
	}
	if len(names) == 0 {
		return "", errors.New("nothing was counted")
	}
	p.Y.Min, p.Y.Max = p.Y.Min/1.3, p.Y.Max*1.3
	if len(r.Subjects) <= 2 { // room for the labels
		p.X.Min, p.X.Max = p.X.Min/1.6, p.X.Max*1.6
	}
	return names.svg(p, 4*vg.Inch)
}

// points are measured values at numbers of Services.
type points struct {
	plotter.XYs
	plotter.YErrors
	labels []string
}

func (p *points) add(at int, unit bench.Unit, o bench.Outcome) {
	p.XYs = append(p.XYs, plotter.XY{X: float64(at), Y: o.Median})
	least := max(o.Lowest, o.Median/1000) // 0 has no place on the axis
	p.YErrors = append(p.YErrors, struct{ Low, High float64 }{o.Median - least, o.Highest - o.Median})
	p.labels = append(p.labels, unit.Format(o.Median))
}

// decades are ticks at powers of ten, with the unit. Within three decades, 2 and 5 times them have it too, and within
// less than one, all.
type decades bench.Unit

func (d decades) Ticks(from, to float64) (all []plot.Tick) {
	for power := math.Pow(10, math.Floor(math.Log10(from))); power <= to; power *= 10 {
		for i := 1.0; i < 10; i++ {
			tick := plot.Tick{Value: i * power}
			if i == 1 || to/from < 1000 && (i == 2 || i == 5) || to/from < 5 {
				tick.Label = bench.Unit(d).Format(tick.Value)
			}
			if from <= tick.Value && tick.Value <= to {
				all = append(all, tick)
			}
		}
	}
	return all
}
