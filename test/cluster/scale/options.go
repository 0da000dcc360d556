// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"
)

// options say what is measured. Their JSON is part of the result.
type options struct {
	Services  int           `json:"services"`
	Endpoints int           `json:"endpoints_per_service"`
	Subjects  []string      `json:"subjects"`
	Runs      int           `json:"runs"`
	Changes   int           `json:"changes"` // in each run, at most
	Burst     int           `json:"burst"`   // changes in one
	Bursts    int           `json:"bursts"`  // in each run, at most
	Budget    time.Duration `json:"budget_ns"`
	Timeout   time.Duration `json:"timeout_ns"`
	Seed      uint64        `json:"seed"`
	IPTables  string        `json:"iptables"` // the variant

	slipstream string // path of the program; built if empty
	quiet      time.Duration
	output     string
	save       string
	logs       string // directory where logs stay; empty for none
}

// The limits follow from the ranges of addresses; see objects.go.
const (
	minServices     = 2 * changing
	maxServices     = 500_000
	maxEndpoints    = 1000
	maxAllEndpoints = 5_000_000
	maxNodes        = 99 // the names of site's nodes
)

// parse reads the command line.
func parse(args []string) (options, error) {
	var o options
	var names string
	f := flag.NewFlagSet("scale", flag.ContinueOnError)
	f.IntVar(&o.Services, "services", 10_000, "Services in the cluster")
	f.IntVar(&o.Endpoints, "endpoints", 10, "endpoints of each Service")
	f.StringVar(&names, "subjects", "", "what to measure, with commas between: of "+strings.Join(subjectNames(), ", ")+"; by default all that this slipstream can be")
	f.IntVar(&o.Runs, "runs", 1, "runs of each subject, each a new process on a new node, in turns")
	f.IntVar(&o.Changes, "changes", 200, "single changes in each run, at most; see -budget")
	f.IntVar(&o.Burst, "burst", 1000, "changes in a burst")
	f.IntVar(&o.Bursts, "bursts", 5, "bursts in each run, at most; see -budget")
	f.DurationVar(&o.Budget, "budget", time.Minute, "no further change, or burst, begins in a run after this time (but 3 changes and 1 burst are made)")
	f.DurationVar(&o.Timeout, "timeout", 10*time.Minute, "longest wait for one start, change or burst; a subject that needs longer is given up")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the choice of Services")
	f.StringVar(&o.IPTables, "iptables", legacyVariant, "`variant` of the iptables commands that iptables modes use, legacy or nft")
	f.StringVar(&o.slipstream, "slipstream", "", "path of the slipstream `program`; built from this checkout by default")
	// Rules of ten thousand Services take the kernel a while to free.
	f.DurationVar(&o.quiet, "quiet", 2*time.Minute, "how long to wait, at most, for the machine to be idle before each start")
	f.StringVar(&o.output, "output", "table", "table or json")
	f.StringVar(&o.save, "save", "", "`file` to write the result to as JSON too")
	f.StringVar(&o.logs, "logs", "", "existing `directory` where configurations and logs stay")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("%q: only flags are expected", f.Arg(0))
	}
	if names != "" {
		o.Subjects = strings.Split(names, ",")
	}
	return o, o.validate()
}

func (o *options) validate() error {
	for _, v := range []struct {
		flag           string
		n, least, most int
	}{
		{"services", o.Services, minServices, maxServices},
		{"endpoints", o.Endpoints, 1, maxEndpoints},
		{"runs", o.Runs, 1, maxNodes / len(subjects)},
		{"changes", o.Changes, 1, 100_000},
		{"burst", o.Burst, 1, 100_000},
		{"bursts", o.Bursts, 1, 1000},
	} {
		if v.n < v.least || v.n > v.most {
			return fmt.Errorf("-%s: must be %d to %d", v.flag, v.least, v.most)
		}
	}
	if n := o.Services * o.Endpoints; n > maxAllEndpoints {
		return fmt.Errorf("-endpoints: %d Services of %d endpoints are %d in all, more than %d", o.Services, o.Endpoints, n, maxAllEndpoints)
	}
	if o.Timeout <= 0 {
		return fmt.Errorf("-timeout: must be more than 0")
	}
	if o.IPTables != legacyVariant && o.IPTables != nftVariant {
		return fmt.Errorf("-iptables: %q is none of legacy, nft", o.IPTables)
	}
	if o.output != "table" && o.output != "json" {
		return fmt.Errorf("-output: %q is none of table, json", o.output)
	}
	for i, name := range o.Subjects {
		if !slices.Contains(subjectNames(), name) {
			return fmt.Errorf("-subjects: %q is none of %s", name, strings.Join(subjectNames(), ", "))
		}
		if slices.Contains(o.Subjects[:i], name) {
			return fmt.Errorf("-subjects: %s is there twice", name)
		}
	}
	return nil
}
