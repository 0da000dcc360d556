// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"time"

	"github.com/fatih/color"
	"github.com/slipstream-proxy/slipstream/test/lab"
)

// Rates of the connections that flow while things change.
const (
	webPace     = 500 * time.Microsecond
	webPaceFast = 2 * time.Millisecond
	ordersPace  = 2 * time.Millisecond
)

// Who comes and who goes, in the steps.
var (
	webBefore  = []string{"web-1", "web-2", "web-3"}
	webJoining = []string{"web-4", "web-5"}
	webLeaving = []string{"web-1", "web-2"}
)

// scaleUp starts connections that go on until the end, and adds pods.
func (d *demo) scaleUp(ctx context.Context) error {
	d.section("Scale-up while connections flow")
	if err := d.startTraffic(); err != nil {
		return err
	}
	n := d.traffic.totals()
	d.say("From now on both clients connect to web over and over, client-1 over IPv4 and client-2 over IPv6, "+
		"and keep %s open on which messages go to and fro.", plural(n.open, "established connection"))
	d.hold(ctx, 1200*time.Millisecond)
	d.line()
	d.say("Two more pods are ready:")
	for _, name := range webJoining {
		if err := d.world.add(d.cast.pod(name)); err != nil {
			return err
		}
	}
	d.copies("1-scale-up")
	s, err := d.apply(ctx, "1-scale-up", "web: scale-up")
	if err != nil {
		return err
	}
	came := await(ctx, func() bool {
		for _, f := range d.traffic.flows {
			for _, server := range webJoining {
				if len(answered(f.since(s.renamed), server)) == 0 {
					return false
				}
			}
		}
		return true
	})
	t := timeline{flows: d.traffic.flows, renamed: s.renamed, window: d.window(), settled: time.Now()}
	d.until(ctx, t.needs())
	t.show(d.screen, append(slices.Clone(webBefore), webJoining...), paint(comes, webJoining))
	d.times(s, d.traffic.flows, "first answer by", webJoining, func(f *flow, server string) (time.Duration, bool) {
		visits := answered(f.since(s.renamed), server)
		if len(visits) == 0 {
			return 0, false
		}
		return visits[0].end.Sub(s.renamed), true
	})
	d.claim(came, "both new pods get connections from both clients")
	d.noneFailed()
	return nil
}

// scaleDown takes pods away the way a cluster does.
func (d *demo) scaleDown(ctx context.Context) error {
	d.section("Scale-down, the graceful way")
	d.say("web-1 and web-2 are deleted. As in a cluster, they first become 'terminating' in the EndpointSlices: " +
		"no new connections, but their servers go on with the established ones.")
	d.hold(ctx, time.Second)
	d.copies("2-web-terminating")
	s, err := d.apply(ctx, "2-web-terminating", "web: scale-down")
	if err != nil {
		return err
	}
	t := timeline{flows: d.traffic.flows, renamed: s.renamed, window: d.window(), settled: s.inForce()}
	d.until(ctx, t.needs())
	all := append(slices.Clone(webBefore), webJoining...)
	t.show(d.screen, all, paint(goes, webLeaving))
	d.times(s, d.traffic.flows, "last one to", webLeaving, func(f *flow, server string) (time.Duration, bool) {
		visits := answered(f.since(s.renamed), server)
		if len(visits) == 0 {
			return 0, false // none came to it between rename and update, by chance
		}
		return visits[len(visits)-1].begin.Sub(s.renamed), true
	})
	late := 0
	for i, f := range d.traffic.flows {
		for _, server := range webLeaving {
			late += len(answered(f.since(s.nodes[i].read), server))
		}
	}
	d.claim(late == 0, "once the kernel was programmed, not one new connection went to %s", and(webLeaving))
	d.line()

	d.say("Now their servers stop to listen, and then the endpoints leave the slices.")
	staying := d.talksOn(webLeaving)
	flowed(ctx, d.traffic.flows, s.inForce(), 1)
	for _, name := range webLeaving {
		d.world.pods[name].drain()
	}
	d.hold(ctx, 600*time.Millisecond)
	d.copies("3-web-terminated")
	before := d.kernelUpdates()
	if _, err := d.manifests.copy(stepsDir + "/3-web-terminated"); err != nil {
		return err
	}
	d.hold(ctx, 1200*time.Millisecond)
	d.claim(d.kernelUpdates() == before, "that they leave the slices needs no change in the kernel")
	d.claim(d.talking(ctx, staying), "all %s to %s go on", plural(len(staying), "established connection"), and(webLeaving))
	d.noneFailed()
	return nil
}

// startTraffic starts the connections that go on until the end.
func (d *demo) startTraffic() error {
	pace := webPace
	if d.fast { // for machines that are slow
		pace = webPaceFast
	}
	for i, client := range d.world.clients {
		to, err := d.cast.frontend("web", lab.TCP, i%2 == 1)
		if err != nil {
			return err
		}
		talks, err := talks(client, to, webBefore, 2)
		d.traffic.talks = append(d.traffic.talks, talks...)
		if err != nil {
			return err
		}
		d.traffic.flows = append(d.traffic.flows, newFlow(client, to, pace))
	}
	return nil
}

// noneFailed checks all connections so far.
func (d *demo) noneFailed() {
	n := d.traffic.totals()
	d.claim(n.failed == 0 && n.cut == 0 && n.lost == 0,
		"%s connections so far, %d failed%s; %d established, %d cut, %s lost",
		count(n.made), n.failed, n.reasons(), n.open, n.cut, plural(int(n.lost), "message"))
}

// talksOn returns the established connections to some pods.
func (d *demo) talksOn(servers []string) (some []*lab.Stream) {
	for _, s := range d.traffic.talks {
		if slices.Contains(servers, s.Stats().Server) {
			some = append(some, s)
		}
	}
	return some
}

// talking tells whether messages still go to and fro on each of the connections.
func (d *demo) talking(ctx context.Context, talks []*lab.Stream) bool {
	before := make([]int64, len(talks))
	for i, s := range talks {
		before[i] = s.Stats().Received
	}
	return len(talks) > 0 && await(ctx, func() bool {
		for i, s := range talks {
			if s.Stats().Received < before[i]+3 {
				return false
			}
		}
		return true
	})
}

// kernelUpdates returns how often slipstream has programmed the kernel, on all
// nodes together.
func (d *demo) kernelUpdates() (n int) {
	for _, a := range d.agents {
		n += a.log.updates()
	}
	return n
}

// window is over how long connections are counted.
func (d *demo) window() time.Duration {
	if d.fast {
		return 200 * time.Millisecond
	}
	return 500 * time.Millisecond
}

// until lets connections flow until t, whatever the speed.
func (d *demo) until(ctx context.Context, t time.Time) {
	select {
	case <-time.After(time.Until(t)):
	case <-ctx.Done():
	}
}

// paint gives servers a style.
func paint(style *color.Color, servers []string) map[string]*color.Color {
	styles := map[string]*color.Color{}
	for _, s := range servers {
		styles[s] = style
	}
	return styles
}
