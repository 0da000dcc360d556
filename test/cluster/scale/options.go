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
	common
	Services int           `json:"services"`
	Subjects []string      `json:"subjects"`
	Runs     int           `json:"runs"`
	Changes  int           `json:"changes"` // in each run, at most
	Burst    int           `json:"burst"`   // changes in one
	Bursts   int           `json:"bursts"`  // in each run, at most
	Budget   time.Duration `json:"budget_ns"`

	quiet time.Duration
}

// minServices leaves as many of several endpoints as there are of one.
const minServices = 2 * changing

// parse reads the command line.
func parse(args []string) (options, error) {
	var o options
	var names string
	f := flag.NewFlagSet("scale", flag.ContinueOnError)
	o.define(f)
	f.IntVar(&o.Services, "services", 10_000, "Services in the cluster")
	f.StringVar(&names, "subjects", "", "what to measure, with commas between: of "+strings.Join(subjectNames(), ", ")+"; by default all that this slipstream can be")
	f.IntVar(&o.Runs, "runs", 1, "runs of each subject, each a new process on a new node, in turns")
	f.IntVar(&o.Changes, "changes", 200, "single changes in each run, at most; see -budget")
	f.IntVar(&o.Burst, "burst", 1000, "changes in a burst")
	f.IntVar(&o.Bursts, "bursts", 5, "bursts in each run, at most; see -budget")
	f.DurationVar(&o.Budget, "budget", time.Minute, "no further change, or burst, begins in a run after this time (but 3 changes and 1 burst are made)")
	// Rules of ten thousand Services take the kernel a while to free.
	f.DurationVar(&o.quiet, "quiet", 2*time.Minute, "how long to wait, at most, for the machine to be idle before each start")
	if err := parseFlags(f, args); err != nil {
		return o, err
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
		{"runs", o.Runs, 1, maxNodes / len(subjects)},
		{"changes", o.Changes, 1, 100_000},
		{"burst", o.Burst, 1, 100_000},
		{"bursts", o.Bursts, 1, 1000},
	} {
		if v.n < v.least || v.n > v.most {
			return fmt.Errorf("-%s: must be %d to %d", v.flag, v.least, v.most)
		}
	}
	if err := o.common.validate(o.Services); err != nil {
		return err
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
