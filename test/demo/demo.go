// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// options are the demo's flags.
type options struct {
	slipstream string // path of the binary
	fast       bool
}

// demo is one run. Its parts come one after the other and build on each other.
type demo struct {
	*screen
	options
	binary    binary
	cast      *cast
	world     *world
	manifests *manifests
	agents    []*agent // slipstream, one on each node
	traffic   traffic
	updates   []update // for the summary
}

// run runs the demo. The error says why it could not go on, or that a claim did
// not hold.
func run(ctx context.Context, o options, s *screen) (err error) {
	s.silent = func() bool { return ctx.Err() != nil }
	d := &demo{screen: s, options: o}
	if d.binary, err = findBinary(ctx, o.slipstream); err != nil {
		return err
	}
	if d.cast, err = readCast(); err != nil {
		return err
	}
	if d.world, err = newWorld(d.cast); err != nil {
		return err
	}
	defer func() {
		d.traffic.end()
		err = errors.Join(err, d.world.close())
	}()
	if err := checkTables(d.world.nodes[0]); err != nil {
		return err
	}
	if d.manifests, err = newManifests(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.manifests.remove()) }()

	for _, part := range []func(context.Context) error{
		d.start, d.spread, d.scaleUp, d.scaleDown, d.lastEndpoint, d.kill, d.cleanup, d.summary,
	} {
		err := part(ctx)
		d.endLive()
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		if err != nil {
			d.line()
			d.logs()
			return err
		}
	}
	if n := len(d.broken); n > 0 {
		d.logs()
		return fmt.Errorf("%s did not hold", plural(n, "claim"))
	}
	return nil
}

// hold lets time pass: for the reader, and for connections to flow. It returns
// early when ctx ends.
func (d *demo) hold(ctx context.Context, long time.Duration) {
	if d.fast {
		long /= 4
	}
	end := time.After(long)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-end:
			d.endLive()
			return
		case <-ctx.Done():
			return
		case <-tick.C:
			d.live(d.traffic.String())
		}
	}
}

// logs prints what the slipstream processes said last, when something went wrong.
func (d *demo) logs() {
	for _, a := range d.agents {
		for _, l := range a.log.tail(12) {
			d.line("  ", faint.Sprintf("%s: %s", a.node.Name(), l))
		}
	}
}
