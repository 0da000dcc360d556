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
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/chart/figure"
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
	var f *figure.Figure
	if r.Benchmark == "rules" {
		f, err = figure.Lines(&r, chosen, "Services", "rules executed: median, lowest to highest")
	} else {
		f, err = figure.Bars(&r, chosen)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", input, err)
	}
	return f.Save(output)
}
