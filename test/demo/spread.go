// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/test/lab"
)

// spread makes connections of every kind and shows who answered them.
func (d *demo) spread(ctx context.Context) error {
	d.section("Connections go to pods of both nodes")
	node, client1, client2 := d.world.nodes[0], d.world.clients[0], d.world.clients[1]
	for _, c := range []struct {
		from    *lab.Machine
		place   string
		service string
		proto   lab.Protocol
		ipv6    bool
	}{
		{&client1.Machine, "pod client-1 on node-1", "web", lab.TCP, false},
		{&client2.Machine, "pod client-2 on node-2", "web", lab.TCP, true},
		{&node.Machine, "node-1 itself", "web", lab.TCP, false},
		{&client2.Machine, "pod client-2 on node-2", "dns", lab.UDP, false},
		{&client1.Machine, "pod client-1 on node-1", "dns", lab.TCP, true},
	} {
		to, err := d.cast.frontend(c.service, c.proto, c.ipv6)
		if err != nil {
			return err
		}
		if err := d.visitAll(ctx, c.from, c.place, to); err != nil {
			return err
		}
		d.hold(ctx, 300*time.Millisecond)
	}
	return nil
}

// visitAll connects to a Service until every pod of it must have answered.
func (d *demo) visitAll(ctx context.Context, from *lab.Machine, place string, to frontend) error {
	pods := d.podsOf(to.service)
	n := int64(300)
	if d.fast {
		n = 100
	}
	stats, err := from.Load(ctx, to.proto, to.addr, lab.LoadOptions{
		Count: n, Workers: 2, Connect: []lab.ConnectOption{lab.Timeout(flowTimeout)},
	})
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	d.traffic.loads = append(d.traffic.loads, stats)
	most := int64(0)
	for _, n := range stats.Servers {
		most = max(most, n)
	}
	d.line()
	d.line("  ", bold.Sprint(left(place+" -> "+to.service, 34)), to.String())
	for _, p := range pods {
		got := stats.Servers[p]
		d.line("    ", left(p, 8), left("on "+d.world.pods[p].Node().Name(), 12),
			right(count(got), 5), "  ", filled.Sprint(bar(int(got), int(most), 45)))
	}
	reached := slices.Sorted(maps.Keys(stats.Servers))
	d.claim(stats.OK == n && slices.Equal(reached, pods), "%s connections, %d failed; answered by %s%s",
		count(stats.OK+stats.Failed), stats.Failed, and(reached), because(stats.First))
	return nil
}

// podsOf returns the names of a Service's first pods, sorted.
func (d *demo) podsOf(service string) (names []string) {
	for _, p := range d.cast.pods {
		if !p.later && strings.HasPrefix(p.name, service+"-") {
			names = append(names, p.name)
		}
	}
	slices.Sort(names)
	return names
}

// because adds an error to a text, if there is one.
func because(err error) string {
	if err == nil {
		return ""
	}
	return fmt.Sprintf(" (%v)", err)
}
