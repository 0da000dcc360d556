// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// pace is the time from one connection of a flow to the next.
const pace = 2 * time.Millisecond

// The pods of web that are added and removed.
var (
	webFirst   = []string{"web-1", "web-2", "web-3"}
	webJoining = []string{"web-4", "web-5"}
	webLeaving = []string{"web-1", "web-2"}
)

// start shows nodes, pods and Services, and starts slipstream on each node.
func (d *demo) start(ctx context.Context) error {
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err != nil {
		return err
	}
	d.line(bold.Sprint("Slipstream") + " on Linux " + unix.ByteSliceToString(kernel.Release[:]) + ", " + d.version)
	d.line("Two nodes made of network namespaces, real kernel rules, real connections.")
	s := d.step("slipstream starts")
	rows := [][]string{{"SERVICE", "ADDRESSES", "PORTS", "PODS"}}
	for _, s := range d.manifests.services {
		var ports []string
		for _, p := range s.Spec.Ports {
			ports = append(ports, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
		}
		rows = append(rows, []string{s.Name, strings.Join(s.Spec.ClusterIPs, " "), strings.Join(ports, " "), strings.Join(d.manifests.podsOf(s.Name), " ")})
	}
	d.table(rows)
	d.say("\nSlipstream watches a copy of examples/demo:")
	d.command("slipstream run --manifests DIR --hostname-override NODE")
	for _, n := range d.network.nodes {
		d.proxies = append(d.proxies, &proxy{node: n})
	}
	return d.startAll(ctx, s)
}

// startAll starts slipstream on each node.
func (d *demo) startAll(ctx context.Context, s *step) error {
	for _, p := range d.proxies {
		u, err := p.start(ctx, d.binary, d.manifests)
		if err != nil {
			return err
		}
		s.programmed = append(s.programmed, u.took)
	}
	return nil
}

// reach makes connections of every kind and counts who answers them.
func (d *demo) reach(ctx context.Context) error {
	d.step("connections of every kind")
	node, client1, client2 := &d.network.nodes[0].Machine, &d.network.clients[0].Machine, &d.network.clients[1].Machine
	const each = 150
	for _, c := range []struct {
		from    *lab.Machine
		service string
		proto   lab.Protocol
		ipv6    bool
	}{
		{client1, "web", lab.TCP, false},
		{client2, "web", lab.TCP, true},
		{node, "web", lab.TCP, false},
		{client2, "dns", lab.UDP, false},
		{client1, "dns", lab.TCP, true},
	} {
		to := d.manifests.clusterIP(c.service, c.proto, c.ipv6)
		f, err := newFlow(ctx, c.from, c.proto, to, 0, each)
		if err != nil {
			return err
		}
		d.kinds = append(d.kinds, f)
		stats := f.load.Wait()
		pods := slices.Sorted(maps.Keys(stats.Servers))
		var servers []string
		for _, pod := range pods {
			servers = append(servers, fmt.Sprintf("%s %d", pod, stats.Servers[pod]))
		}
		d.claim(stats.OK == each && slices.Equal(pods, d.manifests.podsOf(c.service)),
			"%-8s -> %-20s %d of %d: %s%s", c.from.Name(), fmt.Sprintf("%v/%v", to, c.proto),
			stats.OK, each, strings.Join(servers, ", "), because(stats.First))
	}
	return nil
}

// change is one version of the manifests that is in force.
type change struct {
	renamed time.Time // when its file was put in place
	nodes   []update  // what each node's slipstream did
}

// done is when all kernels had been programmed.
func (c change) done() time.Time {
	return slices.MaxFunc(c.nodes, func(a, b update) int { return a.done.Compare(b.done) }).done
}

// apply copies the next version of a manifest and waits until both kernels have it.
func (d *demo) apply(ctx context.Context, s *step, dir string) (c change, err error) {
	d.command("cp examples/%s/%s/* DIR", stepsDir, dir)
	if c.renamed, err = d.manifests.copy(stepsDir + "/" + dir); err != nil {
		return c, err
	}
	for _, p := range d.proxies {
		u, err := p.updateSince(ctx, c.renamed)
		if err != nil {
			return c, err
		}
		c.nodes = append(c.nodes, u)
		s.programmed = append(s.programmed, u.took)
	}
	return c, nil
}

// scaleUp starts the connections to web, which go on until the end, and adds pods.
func (d *demo) scaleUp(ctx context.Context) error {
	s := d.step("two pods are added")
	for i, client := range d.network.clients {
		to := d.manifests.clusterIP("web", lab.TCP, i%2 == 1)
		streams, err := streamsTo(client, to, webFirst, 2)
		d.streams = append(d.streams, streams...)
		if err != nil {
			return err
		}
		f, err := newFlow(ctx, &client.Machine, lab.TCP, to, pace, 0)
		if err != nil {
			return err
		}
		d.web = append(d.web, f)
	}
	d.say("From here to the end each client makes a connection to web every %v, and\nkeeps %d connections open on which messages go back and forth.",
		pace, len(d.streams)/len(d.network.clients))
	pause(ctx, 500*time.Millisecond)
	c, err := d.apply(ctx, s, "1-scale-up")
	if err != nil {
		return err
	}
	all := true
	for _, f := range d.web {
		for _, server := range webJoining {
			answered := await(ctx, func() bool { return len(f.answers(c.renamed, server)) > 0 })
			all = all && answered
			if answered {
				s.seen = append(s.seen, f.answers(c.renamed, server)[0].end.Sub(c.renamed))
			}
		}
	}
	d.claim(all, "both new pods answer both clients")
	return nil
}

// scaleDown removes pods as a cluster does: first they are terminating.
func (d *demo) scaleDown(ctx context.Context) error {
	s := d.step("two pods terminate")
	c, err := d.apply(ctx, s, "2-web-terminating")
	if err != nil {
		return err
	}
	pause(ctx, 500*time.Millisecond)
	flowed(ctx, d.web, c.done())
	late := 0
	for i, f := range d.web {
		for _, server := range webLeaving {
			late += len(f.answers(c.nodes[i].done, server))
			if a := f.answers(c.renamed, server); len(a) > 0 {
				s.seen = append(s.seen, a[len(a)-1].begin.Sub(c.renamed))
			}
		}
	}
	d.claim(late == 0, "%d new connections to them once the kernel was programmed", late)
	for _, name := range webLeaving {
		d.network.drain(name)
	}
	before := d.updates()
	d.command("cp examples/%s/3-web-terminated/* DIR", stepsDir)
	if _, err := d.manifests.copy(stepsDir + "/3-web-terminated"); err != nil {
		return err
	}
	pause(ctx, time.Second)
	d.claim(d.updates() == before, "that they leave the EndpointSlices does not change the kernel")
	leaving := slices.DeleteFunc(slices.Clone(d.streams), func(s *lab.Stream) bool {
		return !slices.Contains(webLeaving, s.Stats().Server)
	})
	d.claim(alive(ctx, leaving), "the %d established connections to them go on", len(leaving))
	return nil
}

// updates returns how often slipstream has programmed the kernels of all nodes.
func (d *demo) updates() (n int) {
	for _, p := range d.proxies {
		n += len(p.log().updates())
	}
	return n
}

// noEndpoints removes the only pod of a Service.
func (d *demo) noEndpoints(ctx context.Context) error {
	s := d.step("the last endpoint is removed")
	for _, client := range d.network.clients {
		f, err := newFlow(ctx, &client.Machine, lab.TCP, d.manifests.clusterIP("orders", lab.TCP, false), pace, 0)
		if err != nil {
			return err
		}
		d.orders = append(d.orders, f)
	}
	flowed(ctx, d.orders, time.Now())
	c, err := d.apply(ctx, s, "4-orders-gone")
	if err != nil {
		return err
	}
	flowed(ctx, d.orders, c.done())
	d.network.drain("orders-1")
	pause(ctx, 500*time.Millisecond)
	early, other := 0, 0
	var waits []time.Duration
	for i, f := range d.orders {
		seen := false
		for _, a := range f.since(time.Time{}) {
			refused := errors.Is(a.err, lab.ErrRefused)
			switch {
			case a.end.Before(c.renamed) && a.err != nil:
				early++
			case !a.begin.Before(c.nodes[i].done) && !refused:
				other++
			case !a.begin.Before(c.nodes[i].done):
				waits = append(waits, a.end.Sub(a.begin))
			}
			if refused && !seen {
				seen = true
				s.seen = append(s.seen, a.end.Sub(c.renamed))
			}
		}
	}
	slices.Sort(waits)
	if len(waits) == 0 {
		waits = []time.Duration{0}
		other++
	}
	d.claim(early == 0, "%d connections to orders failed before", early)
	d.claim(other == 0, "every one since was refused at once, in %s (median) and %s at most", short(waits[len(waits)/2]), short(waits[len(waits)-1]))
	return nil
}

// newEndpoint gives that Service another pod.
func (d *demo) newEndpoint(ctx context.Context) error {
	s := d.step("a new endpoint is added")
	c, err := d.apply(ctx, s, "5-orders-back")
	if err != nil {
		return err
	}
	pause(ctx, 200*time.Millisecond)
	flowed(ctx, d.orders, c.done())
	answered, failed := 0, 0
	for i, f := range d.orders {
		f.load.Stop()
		for _, a := range f.since(c.nodes[i].done) {
			if a.err != nil {
				failed++
			} else {
				answered++
			}
		}
		if a := f.answers(c.renamed, "orders-2"); len(a) > 0 {
			s.seen = append(s.seen, a[0].end.Sub(c.renamed))
		}
	}
	d.claim(failed == 0 && answered > 0, "%d connections once the kernel was programmed, %d failed", answered+failed, failed)
	return nil
}

// restart kills slipstream on all nodes and starts it again.
func (d *demo) restart(ctx context.Context) error {
	s := d.step("kill -9 and restart")
	for _, p := range d.proxies {
		d.command("kill -9 %d    # slipstream on %s", p.PID(), p.node.Name())
		if err := p.Kill(); err != nil {
			return err
		}
		<-p.Done()
	}
	dead := time.Now()
	pause(ctx, time.Second)
	flowed(ctx, d.web, dead)
	ok, failed := d.webSince(dead)
	d.claim(ok > 0 && failed == 0, "%d new connections in %s without slipstream, %d failed", ok+failed, short(time.Since(dead)), failed)
	again := time.Now()
	if err := d.startAll(ctx, s); err != nil {
		return err
	}
	flowed(ctx, d.web, time.Now())
	ok, failed = d.webSince(again)
	d.claim(ok > 0 && failed == 0, "%d new connections while it took over, %d failed", ok+failed, failed)
	d.claim(alive(ctx, d.streams), "all %d established connections go on, those to removed pods included", len(d.streams))
	return nil
}

// cleanup stops slipstream and removes its rules.
func (d *demo) cleanup(ctx context.Context) error {
	d.step("cleanup")
	for _, p := range d.proxies {
		ctx, cancel := context.WithTimeout(ctx, patience)
		err := p.Terminate(ctx)
		cancel()
		if err == nil {
			err = p.Wait()
		}
		d.claim(err == nil, "slipstream on %s ends after SIGTERM%s", p.node.Name(), because(err))
	}
	stopped := time.Now()
	pause(ctx, 300*time.Millisecond)
	flowed(ctx, d.web, stopped)
	ok, failed := d.webSince(stopped)
	d.claim(ok > 0 && failed == 0, "%d new connections since, %d failed: its rules stay", ok+failed, failed)
	d.claim(alive(ctx, d.streams), "all %d established connections go on", len(d.streams))
	// The clients stop first: without any NAT rule in the namespace the kernel no longer
	// translates the packets of established connections.
	for _, f := range d.web {
		f.load.Stop()
	}
	for _, s := range d.streams {
		_ = s.Close()
	}
	d.say("The clients stop.")
	d.command("slipstream cleanup")
	for _, p := range d.proxies {
		before, err := tables(p.node)
		if err != nil {
			return err
		}
		if _, err := p.node.Run(ctx, d.binary, "cleanup"); err != nil {
			return err
		}
		after, err := tables(p.node)
		if err != nil {
			return err
		}
		d.claim(len(before) > 0 && len(after) == 0, "nftables of %s: %v before, %v after", p.node.Name(), before, after)
	}
	return nil
}
