// SPDX-License-Identifier: Apache-2.0

// Package report measures everything that the project claims, beside kube-proxy, and writes one
// page with the results.
//
// It runs the benchmarks of this module (parts.yaml), each as a command of its own, and keeps
// what a command has measured in OUT/data/PART.json as soon as it ends. A second run measures only
// what is missing or has failed; --part measures the named parts again. OUT/index.html has no
// number that is not in these files, except what others have published.
package report

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/spf13/pflag"
)

// Options say what is done.
type Options struct {
	fast, render bool
	parts        []string
	out, version string
}

// AddFlags adds the flags.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.fast, "fast", false, "measure less, in 15 minutes instead of 90")
	f.StringSliceVar(&o.parts, "part", nil, "`names` of parts to measure again, and no others: "+strings.Join(partNames(), ", "))
	f.BoolVar(&o.render, "render", false, "only write the page, from what was measured before")
	f.StringVar(&o.out, "out", "report", "`directory` for the page, and for the measurements in data/")
	f.StringVar(&o.version, "version", "unknown", "version of Slipstream; what another one has measured is measured again")
}

func partNames() []string { return collect.From(parts, func(p *part) string { return p.Name }) }

// Run measures and writes the page.
func Run(ctx context.Context, o Options) error {
	if len(o.parts) > 0 {
		if err := bench.SomeOf("--part", o.parts, partNames()...); err != nil {
			return err
		}
	}
	data := filepath.Join(o.out, "data")
	if err := os.MkdirAll(data, 0o755); err != nil {
		return err
	}
	records, err := load(data)
	if err != nil {
		return err
	}
	var failed error
	if !o.render {
		failed = measure(ctx, records, data, o.fast, o.parts, o.version)
		if ctx.Err() != nil {
			return errors.New("interrupted: run the same command again to go on")
		}
	}
	page := filepath.Join(o.out, "index.html")
	if err := writePage(page, records); err != nil {
		return errors.Join(failed, err)
	}
	fmt.Println("wrote", page)
	return failed
}

// job is a step that is to be measured.
type job struct {
	part *part
	step step
}

// measure runs the steps that have no result yet (one in which a subject was given up has one), or those of the chosen parts, and stores each
// result in records and in a file. It goes on after a step that fails.
func measure(ctx context.Context, records map[string]*record, data string, fast bool, chosen []string, version string) (failed error) {
	var jobs []job
	for _, p := range parts {
		if len(chosen) > 0 && !slices.Contains(chosen, p.Name) {
			continue
		}
		r := records[p.Name]
		if r == nil || len(chosen) > 0 {
			r = &record{Part: p.Name}
		}
		steps := p.in(fast)
		// What other commands, or another version, have measured is forgotten.
		r.Steps = slices.DeleteFunc(r.Steps, func(old *result) bool {
			return !slices.ContainsFunc(steps, func(s step) bool {
				return s.name == old.Name && s.command == old.Command && old.Version == version
			})
		})
		records[p.Name] = r
		for _, s := range steps {
			if old := r.find(s.name); old == nil || old.Result == nil {
				jobs = append(jobs, job{p, s})
			}
		}
	}
	for i, j := range jobs {
		left := 0.0
		for _, rest := range jobs[i:] {
			left += rest.step.minutes
		}
		fmt.Printf("[%d/%d, about %.0f min left] %s: %s\n", i+1, len(jobs), max(left, 1), j.part.Name, j.step.name)
		s := j.step.run(ctx, data, j.part.Name)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.Version, s.Fast = version, fast
		if s.Failed != "" {
			failed = errors.Join(failed, fmt.Errorf("%s, %s: %s", j.part.Name, j.step.name, s.Failed))
			fmt.Println("  failed:", s.Failed)
		}
		r := records[j.part.Name]
		r.put(s)
		if err := r.save(data); err != nil {
			return err
		}
	}
	return failed
}
