// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"
)

// common are the options of all that is measured here.
type common struct {
	Endpoints int           `json:"endpoints_per_service"`
	Timeout   time.Duration `json:"timeout_ns"`
	Seed      uint64        `json:"seed"`
	IPTables  string        `json:"iptables"` // the variant

	slipstream string // path of the program; built if empty
	output     string
	save       string
	logs       string // directory where logs stay; empty for none
}

// The limits follow from the ranges of addresses; see objects.go.
const (
	maxServices     = 500_000
	maxEndpoints    = 1000
	maxAllEndpoints = 5_000_000
	maxNodes        = 99 // the names of site's nodes
)

// define defines the flags.
func (o *common) define(f *flag.FlagSet) {
	f.IntVar(&o.Endpoints, "endpoints", 10, "endpoints of each Service")
	f.DurationVar(&o.Timeout, "timeout", 10*time.Minute, "longest wait for one start, change or burst; a subject that needs longer is given up")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the choice of Services")
	f.StringVar(&o.IPTables, "iptables", legacyVariant, "`variant` of the iptables commands that iptables modes use, legacy or nft")
	f.StringVar(&o.slipstream, "slipstream", "", "path of the slipstream `program`; built from this checkout by default")
	f.StringVar(&o.output, "output", "table", "table or json")
	f.StringVar(&o.save, "save", "", "`file` to write the result to as JSON too")
	f.StringVar(&o.logs, "logs", "", "existing `directory` where configurations and logs stay")
}

// parseFlags parses a command line that has nothing but flags.
func parseFlags(f *flag.FlagSet, args []string) error {
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("%q: only flags are expected", f.Arg(0))
	}
	return nil
}

// validate checks the options with the number of Services there are to be.
func (o *common) validate(services int) error {
	if o.Endpoints < 1 || o.Endpoints > maxEndpoints {
		return fmt.Errorf("-endpoints: must be 1 to %d", maxEndpoints)
	}
	if n := services * o.Endpoints; n > maxAllEndpoints {
		return fmt.Errorf("-endpoints: %d Services of %d endpoints are %d in all, more than %d", services, o.Endpoints, n, maxAllEndpoints)
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
	return nil
}

// directory is where configurations and logs are written, with the commands of the
// variant in it. What done deletes is not to stay.
func (o *common) directory() (dir string, done func() error, err error) {
	dir, done = o.logs, func() error { return nil }
	if dir == "" {
		if dir, err = os.MkdirTemp("", "slipstream-scale-"); err != nil {
			return "", nil, err
		}
		done = func() error { return os.RemoveAll(dir) }
	}
	if err := useIPTables(o.IPTables, dir); err != nil {
		return "", nil, errors.Join(err, done())
	}
	return dir, done, nil
}

// write writes a result as the options say.
func (o *common) write(out io.Writer, table, json func(io.Writer) error) error {
	write := table
	if o.output == "json" {
		write = json
	}
	err := write(out)
	if o.save == "" {
		return err
	}
	f, failed := os.Create(o.save)
	if failed != nil {
		return errors.Join(err, failed)
	}
	return errors.Join(err, json(f), f.Close())
}
