// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/slipstream-proxy/slipstream/test/lab"
)

// floods measures floods of small datagrams.
func (w *world) floods(ctx context.Context, o ThroughputOptions, r *Result) (err error) {
	echo, err := w.server.Serve(lab.UDP, w.backend(floodPort))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, echo.Close()) }()
	references, undo, err := w.divertAll(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	m, err := w.turns(ctx, o.Rounds, r.settings(), func(ctx context.Context, _ Setting) (values, error) {
		return w.floodTurn(ctx, references, time.Duration(o.Seconds)*time.Second)
	})
	if err != nil {
		return err
	}
	quantities := []quantity{datagrams}
	for _, r := range references {
		quantities = append(quantities, r.quantity)
	}
	return errors.Join(m.offloaded(), r.add(m, quantities...))
}

// mostLost is the share of a flood that may be lost. If packets were queued on
// their way and dropped, the sender's time would no longer be the packet's.
const mostLost = 0.01

// floodTurn counts the datagrams of a flood where they are dropped, and measures the
// cost of one.
func (w *world) floodTurn(ctx context.Context, references []reference, d time.Duration) (values, error) {
	before, err := arrived(&w.server.Machine)
	if err != nil {
		return nil, err
	}
	f, err := w.flood(ctx, d/2)
	if err != nil {
		return nil, err
	}
	after, err := arrived(&w.server.Machine)
	if err != nil {
		return nil, err
	}
	got := int(after - before)
	if lost := f.sent - got; float64(lost) > mostLost*float64(f.sent) {
		return nil, fmt.Errorf("flood: of %d datagrams %d were lost on the way", f.sent, lost)
	}
	v, n, err := w.costs(ctx, references, d/2)
	if err != nil {
		return nil, err
	}
	v[datagrams.name] = float64(got) / f.took.Seconds()
	v[diverted] = float64(n)
	return v, nil
}
