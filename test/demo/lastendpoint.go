// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/slipstream-proxy/slipstream/test/lab"
)

// lastEndpoint takes the only pod of a Service away and gives it another.
func (d *demo) lastEndpoint(ctx context.Context) error {
	d.section("A Service without endpoints refuses at once")
	to, err := d.cast.frontend("orders", lab.TCP, false)
	if err != nil {
		return err
	}
	for _, client := range d.world.clients {
		d.traffic.refused = append(d.traffic.refused, newFlow(client, to, ordersPace))
	}
	flows := d.traffic.refused
	d.say("Both clients connect to orders too, whose only pod, orders-1, is taken away.")
	d.hold(ctx, time.Second)
	d.copies("4-orders-gone")
	gone, err := d.apply(ctx, "4-orders-gone", "orders: no pods")
	if err != nil {
		return err
	}
	d.hold(ctx, 600*time.Millisecond)
	flowed(ctx, flows, gone.inForce(), 5)
	d.world.pods["orders-1"].drain()
	d.hold(ctx, 600*time.Millisecond)
	var waits []time.Duration // for refusals
	refusedAll := true
	for i, f := range flows {
		for _, v := range f.since(gone.nodes[i].read) {
			refusedAll = refusedAll && errors.Is(v.err, lab.ErrRefused)
			waits = append(waits, v.end.Sub(v.begin))
		}
	}
	d.times(gone, flows, "first refusal", []string{""}, func(f *flow, _ string) (time.Duration, bool) {
		first := firstRefused(f.since(gone.renamed))
		if first == nil {
			return 0, false
		}
		return first.end.Sub(gone.renamed), true
	})
	slices.Sort(waits)
	if len(waits) > 0 {
		d.line()
		d.say("From connecting to being refused: %s (median of %s), %s at the most.",
			short(waits[len(waits)/2]), count(len(waits)), short(waits[len(waits)-1]))
	}
	d.claim(refusedAll && len(waits) > 0, "once the kernel was programmed, every connection was refused; none had to wait for a timeout")

	d.line()
	d.say("A new pod, orders-2 on node-1, is ready:")
	d.copies("5-orders-back")
	if err := d.world.add(d.cast.pod("orders-2")); err != nil {
		return err
	}
	there, err := d.apply(ctx, "5-orders-back", "orders: a pod again")
	if err != nil {
		return err
	}
	d.hold(ctx, 600*time.Millisecond)
	flowed(ctx, flows, there.inForce(), 5)
	wrong, after := 0, 0
	for i, f := range flows {
		f.close()
		for _, v := range f.since(there.nodes[i].read) {
			after++
			if v.err != nil {
				wrong++
			}
		}
		wrong += unexpected(f, gone, there, i)
	}
	d.times(there, flows, "first answer by", []string{"orders-2"}, func(f *flow, server string) (time.Duration, bool) {
		visits := answered(f.since(there.renamed), server)
		if len(visits) == 0 {
			return 0, false
		}
		return visits[0].end.Sub(there.renamed), true
	})
	d.claim(wrong == 0 && after > 0, "refused in between, and only then; %s answered since", plural(after, "connection"))
	d.noneFailed()
	return nil
}

// firstRefused returns the first visit that was refused; nil if none was.
func firstRefused(visits []visit) *visit {
	for i, v := range visits {
		if errors.Is(v.err, lab.ErrRefused) {
			return &visits[i]
		}
	}
	return nil
}

// unexpected counts what must not be: visits that failed before the Service lost
// its pod, and failures of other kinds than refusals.
func unexpected(f *flow, gone, there step, node int) (n int) {
	for _, v := range f.since(time.Time{}) {
		switch {
		case v.err == nil || !v.begin.Before(there.nodes[node].read): // counted by the caller
		case v.end.Before(gone.renamed), !errors.Is(v.err, lab.ErrRefused):
			n++
		}
	}
	return n
}
