// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"time"
)

// kill ends slipstream the hard way on all nodes and starts it again.
func (d *demo) kill(ctx context.Context) error {
	d.section("kill -9, and slipstream starts again")
	d.say("The kernel keeps what slipstream has programmed. While slipstream is away, only changes are not acted on.")
	d.hold(ctx, 600*time.Millisecond)
	for _, a := range d.agents {
		pid := a.proc.PID()
		if err := a.kill(); err != nil {
			return err
		}
		d.command("kill -9 %d    # slipstream on %s", pid, a.node.Name())
	}
	dead := time.Now()
	d.hold(ctx, 2*time.Second)
	flowed(ctx, d.traffic.flows, dead, 5)
	alone, failed := d.webSince(dead)
	d.claim(alone > 0 && failed == 0, "%s in %s without slipstream, %d failed",
		plural(alone, "new connection"), short(time.Since(dead)), failed)
	d.line()
	again := time.Now()
	for _, a := range d.agents {
		u, err := a.start(ctx, d.binary, d.manifests.dir)
		if err != nil {
			return err
		}
		d.updates = addTo(d.updates, "restart", u.took)
		d.line("  ", bold.Sprint(a.node.Name()), "  slipstream runs again; what was there taken over in ", bold.Sprint(short(u.took)))
	}
	d.hold(ctx, 1200*time.Millisecond)
	flowed(ctx, d.traffic.flows, time.Now(), 5)
	over, failed := d.webSince(again)
	d.claim(over > 0 && failed == 0, "%s while it took over and since, %d failed", plural(over, "new connection"), failed)
	d.claim(d.talking(ctx, d.traffic.talks), "all %s, those to pods that have left included, go on",
		plural(len(d.traffic.talks), "established connection"))
	d.noneFailed()
	return nil
}

// webSince counts the visits since t that got an answer from a pod that should
// give one, and the others.
func (d *demo) webSince(t time.Time) (ok, failed int) {
	for _, f := range d.traffic.flows {
		for _, v := range f.since(t) {
			if v.err != nil || slices.Contains(webLeaving, v.server) {
				failed++
			} else {
				ok++
			}
		}
	}
	return ok, failed
}
