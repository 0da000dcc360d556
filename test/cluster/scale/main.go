// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/machine"
	"github.com/slipstream-proxy/slipstream/test/oracle/upstream"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := command(ctx, os.Args[1:], os.Stdout, func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
	})
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

// command does what the command line says.
func command(ctx context.Context, args []string, out io.Writer, log upstream.Log) error {
	if len(args) > 0 && args[0] == "rules" {
		o, err := parseRules(args[1:])
		if err != nil {
			return err
		}
		return rules(ctx, &o, out, log)
	}
	o, err := parse(args)
	if err != nil {
		return err
	}
	machine.QuietLimit = o.quiet
	return scale(ctx, &o, out, log)
}

// scale measures and writes the result. A subject of which not all could be measured makes
// an error, after the result has been written.
func scale(ctx context.Context, o *options, out io.Writer, log upstream.Log) error {
	r, err := measure(ctx, o, log)
	if err != nil {
		return err
	}
	err = o.write(out, r.writeTable, r.writeJSON)
	for _, s := range r.Subjects {
		if s.Failed != "" {
			err = errors.Join(err, fmt.Errorf("%s: %s", s.Name, s.Failed))
		}
	}
	return err
}

// measure fills a cluster and runs all subjects in turns.
func measure(ctx context.Context, o *options, log upstream.Log) (_ *result, err error) {
	dir, done, err := o.directory()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, done()) }()
	programs, err := findPrograms(ctx, &o.common, dir, log)
	if err != nil {
		return nil, err
	}
	chosen := programs.choose(ctx, o.Subjects...)
	r := &result{Machine: machine.This(), Options: *o}
	r.Options.Subjects = nil
	for _, s := range chosen {
		r.Options.Subjects = append(r.Options.Subjects, s.name)
		r.Subjects = append(r.Subjects, &outcome{Name: s.name, Version: programs.version(ctx, s)})
	}
	c := newContent(o.Services, o.Endpoints, changing, o.Seed)
	w, err := newWorld(ctx, c, o.Runs*len(chosen), dir, log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if r.Filled, err = fill(ctx, w.plane.Client, w.content, 0, o.Services); err != nil {
		return nil, err
	}
	log("wrote %d Services and %d EndpointSlices in %.1f s", r.Filled.Services, r.Filled.Slices, r.Filled.Seconds)
	for range o.Runs {
		for i, s := range chosen {
			if r.Subjects[i].Failed != "" {
				continue
			}
			one, err := w.measure(ctx, o, s, programs.of(s), log)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			r.Subjects[i].Runs = append(r.Subjects[i].Runs, one)
			if err != nil {
				log("%s: %v", s.name, err)
				r.Subjects[i].Failed = err.Error()
			}
		}
	}
	r.LoadAfter = machine.This().Load
	r.sumUp()
	return r, nil
}
