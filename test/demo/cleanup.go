// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"
)

// cleanup stops slipstream and removes what it has programmed.
func (d *demo) cleanup(ctx context.Context) error {
	d.section("slipstream cleanup leaves nothing behind")
	for _, a := range d.agents {
		err := a.stop()
		d.claim(err == nil, "slipstream on %s ends when told to%s", a.node.Name(), because(err))
	}
	stopped := time.Now()
	d.hold(ctx, 600*time.Millisecond)
	flowed(ctx, d.traffic.flows, stopped, 5)
	ok, failed := d.webSince(stopped)
	d.claim(ok > 0 && failed == 0, "%s since, %d failed: Services work until the clean-up", plural(ok, "new connection"), failed)
	d.claim(d.talking(ctx, d.traffic.talks), "so do all %s", plural(len(d.traffic.talks), "established connection"))
	// The clients stop first. The kernel translates addresses, those of established
	// connections included, only as long as some rule in the namespace needs it.
	d.traffic.end()
	d.noneFailed()
	d.line()
	d.say("The clients stop, and then what slipstream has programmed is removed:")
	d.command("slipstream cleanup")
	for _, a := range d.agents {
		before, err := tables(a.node)
		if err != nil {
			return err
		}
		if _, err := a.node.Run(ctx, d.binary.path, "cleanup"); err != nil {
			return err
		}
		after, err := tables(a.node)
		if err != nil {
			return err
		}
		left := "none"
		if len(after) > 0 {
			left = and(after)
		}
		d.claim(len(before) > 0 && len(after) == 0, "nftables of %s before: %s; after: %s", a.node.Name(), and(before), left)
	}
	return nil
}
