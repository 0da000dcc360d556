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

	"github.com/slipstream-proxy/slipstream/bench/machine"
	"github.com/slipstream-proxy/slipstream/test/oracle/upstream"
)

func main() {
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		machine.QuietLimit = o.quiet
		err = scale(ctx, &o, os.Stdout, func(format string, args ...any) {
			fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
		})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

// scale measures and writes the result. A subject of which not all could be measured makes
// an error, after the result has been written.
func scale(ctx context.Context, o *options, out io.Writer, log upstream.Log) error {
	r, err := measure(ctx, o, log)
	if err != nil {
		return err
	}
	write := r.writeTable
	if o.output == "json" {
		write = r.writeJSON
	}
	err = write(out)
	if o.save != "" {
		err = errors.Join(err, r.saveTo(o.save))
	}
	for _, s := range r.Subjects {
		if s.Failed != "" {
			err = errors.Join(err, fmt.Errorf("%s: %s", s.Name, s.Failed))
		}
	}
	return err
}

// measure fills a cluster and runs all subjects in turns.
func measure(ctx context.Context, o *options, log upstream.Log) (_ *result, err error) {
	dir := o.logs
	if dir == "" {
		if dir, err = os.MkdirTemp("", "slipstream-scale-"); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	if err := useIPTables(o.IPTables, dir); err != nil {
		return nil, err
	}
	programs, err := findPrograms(ctx, o, dir, log)
	if err != nil {
		return nil, err
	}
	chosen := programs.choose(ctx, o)
	r := &result{Machine: machine.This(), Options: *o}
	r.Options.Subjects = nil
	for _, s := range chosen {
		r.Options.Subjects = append(r.Options.Subjects, s.name)
		r.Subjects = append(r.Subjects, &outcome{Name: s.name, Version: programs.version(ctx, s)})
	}
	w, err := newWorld(ctx, o, o.Runs*len(chosen), dir, log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if r.Filled, err = fill(ctx, w.plane.Client, w.content); err != nil {
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

// saveTo writes the result to a file as JSON.
func (r *result) saveTo(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(r.writeJSON(f), f.Close())
}
