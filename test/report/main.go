// SPDX-License-Identifier: Apache-2.0

// Command report measures everything that the project claims, beside kube-proxy, and writes one
// page with the results. 'make report' builds what it needs and runs it in the repository's root.
//
//	go run ./test/report [-fast] [-part rules,balance] [-render] [-snapshot] [-out report]
//
// It runs the benchmarks of this repository (parts.go), each as a command of its own, and keeps
// what a command has measured in OUT/data/PART.json as soon as it ends. A second run measures only
// what is missing or has failed; -part measures the named parts again. OUT/index.html has no
// number that is not in these files, except what others have published.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	fast := flag.Bool("fast", false, "measure less, in 15 minutes instead of 90")
	names := flag.String("part", "", "`names` of parts to measure again, with commas between, and no others: "+strings.Join(partNames(), ", "))
	render := flag.Bool("render", false, "only write the page, from what was measured before")
	out := flag.String("out", "report", "`directory` for the page, and for the measurements in data/")
	version := flag.String("version", "unknown", "version of Slipstream; what another one has measured is measured again")
	keep := flag.Bool("snapshot", false, "only write page and records of a full run to docs/report, and README's first table")
	flag.Parse()
	if *keep {
		records, err := load(filepath.Join(*out, "data"))
		if err == nil {
			err = snapshot(records, "docs/report", "README.md", os.Stderr)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "report: snapshot:", err)
			os.Exit(1)
		}
		return
	}
	if err := run(ctx, *fast, *render, *names, *out, *version); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func partNames() (all []string) {
	for _, p := range parts {
		all = append(all, p.name)
	}
	return all
}

func run(ctx context.Context, fast, render bool, names, out, version string) error {
	var chosen []string
	if names != "" {
		chosen = strings.Split(names, ",")
		for _, name := range chosen {
			if !slices.Contains(partNames(), name) {
				return fmt.Errorf("-part: %q is none of %s", name, strings.Join(partNames(), ", "))
			}
		}
	}
	data := filepath.Join(out, "data")
	if err := os.MkdirAll(data, 0o755); err != nil {
		return err
	}
	records, err := load(data)
	if err != nil {
		return err
	}
	var failed error
	if !render {
		failed = measure(ctx, records, data, fast, chosen, version)
		if ctx.Err() != nil {
			return errors.New("interrupted: run the same command again to go on")
		}
	}
	page := filepath.Join(out, "index.html")
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
		if len(chosen) > 0 && !slices.Contains(chosen, p.name) {
			continue
		}
		r := records[p.name]
		if r == nil || len(chosen) > 0 {
			r = &record{Part: p.name}
		}
		steps := p.steps(fast)
		r.keep(steps, version)
		records[p.name] = r
		for _, s := range steps {
			if old := r.find(s.name); old == nil || old.Result == nil {
				jobs = append(jobs, job{p, s})
			}
		}
	}
	durations := loadDurations(data)
	for i, j := range jobs {
		left := time.Duration(0)
		for _, rest := range jobs[i:] {
			left += durations.of(rest.step)
		}
		fmt.Printf("[%d/%d, about %s left] %s: %s\n", i+1, len(jobs), minutes(left), j.part.name, j.step.name)
		s := j.step.run(ctx, data, j.part.name)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.Version, s.Fast = version, fast
		if s.Failed != "" {
			failed = errors.Join(failed, fmt.Errorf("%s, %s: %s", j.part.name, j.step.name, s.Failed))
			fmt.Println("  failed:", s.Failed)
		} else {
			durations.set(s)
		}
		r := records[j.part.name]
		r.put(s)
		if err := errors.Join(r.save(data), durations.save(data)); err != nil {
			return err
		}
	}
	return failed
}

// minutes writes a duration for the progress line.
func minutes(d time.Duration) string {
	if d < 90*time.Second {
		return "1 minute"
	}
	return fmt.Sprintf("%d minutes", int((d+30*time.Second)/time.Minute))
}
