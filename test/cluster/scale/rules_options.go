// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"strconv"
	"strings"
)

// rulesOptions say what "scale rules" counts.
type rulesOptions struct {
	common
	services []int // one number after the other, each more than the one before
	sample   int   // connections for each of them, at most
}

// parseRules reads the command line that follows "rules".
func parseRules(args []string) (rulesOptions, error) {
	var o rulesOptions
	var services string
	f := flag.NewFlagSet("scale rules", flag.ContinueOnError)
	o.define(f)
	f.StringVar(&services, "services", "10,100,1000,10000", "numbers of Services in the cluster, with commas between, from few to many")
	f.IntVar(&o.sample, "sample", 100, "Services that are connected to, with each number of them")
	if err := parseFlags(f, args); err != nil {
		return o, err
	}
	for text := range strings.SplitSeq(services, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			return o, fmt.Errorf("-services: %q is no number", text)
		}
		o.services = append(o.services, n)
	}
	return o, o.validate()
}

func (o *rulesOptions) validate() error {
	last := 0
	for _, n := range o.services {
		if n <= last || n > maxServices {
			return fmt.Errorf("-services: %d after %d: must rise, from 1 to %d", n, last, maxServices)
		}
		last = n
	}
	if most := maxNodes / len(rulesSubjects); len(o.services) > most {
		return fmt.Errorf("-services: more than %d numbers", most)
	}
	if o.sample < 1 || o.sample > 10_000 {
		return fmt.Errorf("-sample: must be 1 to 10000")
	}
	return o.common.validate(last)
}
