// SPDX-License-Identifier: Apache-2.0

package figure

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/slipstream-proxy/slipstream/bench/bench"
)

// Options say what is drawn of a result that was saved: bars of the chosen series for each subject, as
// multiples of the first one, or for rules lines by numbers of Services.
type Options struct {
	Output string   // file; the ending is the format: svg, png or pdf
	Title  string   // instead of the result's
	Series []string // to draw, all if there are none
}

// Draw draws a result that was saved.
func Draw(input string, o Options) error {
	b, err := os.ReadFile(input)
	if err != nil {
		return err
	}
	var r bench.Result
	if err := json.Unmarshal(b, &r); err != nil {
		return fmt.Errorf("%s: %w", input, err)
	}
	if o.Title != "" {
		r.Title = o.Title
	}
	chosen := r.Series
	if len(o.Series) > 0 {
		chosen = nil
	}
	for _, name := range o.Series {
		s := r.Find(name)
		if s == nil {
			return fmt.Errorf("%s: no series %q", input, name)
		}
		chosen = append(chosen, s)
	}
	var f *Figure
	if r.Benchmark == "rules" {
		f, err = Lines(&r, chosen, "Services", "rules executed: median, lowest to highest")
	} else {
		f, err = Bars(&r, chosen)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", input, err)
	}
	return f.Save(o.Output)
}
