// SPDX-License-Identifier: Apache-2.0

// Command chart draws what benchmarks have saved: of slipstream-bench throughput and
// bench crr, for each series a box of each setting's values over the rounds, as multiples
// of the median without the fast path; of make bench-rules, the rules executed by numbers
// of Services.
//
//	slipstream-bench throughput --save result.json
//	go run ./cmd/slipstream-bench/chart -o result.svg result.json
//
// The name's ending says what it is to be: svg, png or pdf. It is a command of its
// own because fonts and the like would make slipstream larger by a third.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/executed"
	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/forward"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
)

func main() {
	output := flag.String("o", "", "file to write, ending in .svg, .png or .pdf")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: chart -o FILE RESULT.json")
		flag.PrintDefaults()
	}
	flag.Parse()
	if *output == "" || flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *output); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

func run(input, output string) error {
	b, err := os.ReadFile(input)
	if err != nil {
		return err
	}
	var kind struct {
		Benchmark string `json:"benchmark"`
	}
	if err := json.Unmarshal(b, &kind); err != nil {
		return fmt.Errorf("%s: %w", input, err)
	}
	draw := drawSeries
	if kind.Benchmark == executed.Benchmark {
		draw = drawRules
	}
	p, width, err := draw(b)
	if err != nil {
		return fmt.Errorf("%s: %w", input, err)
	}
	return p.Save(width, height, output)
}

// drawSeries draws a result of bench throughput or bench crr.
func drawSeries(result []byte) (*plot.Plot, vg.Length, error) {
	var r forward.Result
	if err := json.Unmarshal(result, &r); err != nil {
		return nil, 0, err
	}
	if len(r.Series) == 0 {
		return nil, 0, errors.New("no series of bench throughput or bench crr, and no numbers of rules")
	}
	p, err := newPlot(&r)
	return p, width(len(r.Series)), err
}
