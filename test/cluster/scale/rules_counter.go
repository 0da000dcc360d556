// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/slipstream-proxy/slipstream/test/rulewalk"
)

// counter counts rules on a node where nothing else happens.
type counter struct {
	*world
	node *node
	now  rulewalk.Dump
}

func newCounter(ctx context.Context, w *world, n *node) (*counter, error) {
	c := &counter{world: w, node: n}
	var err error
	c.now, err = c.dump(ctx)
	return c, err
}

// dump reads all rules of IPv4, with their counters.
func (c *counter) dump(ctx context.Context) (rulewalk.Dump, error) {
	text, err := c.node.Run(ctx, "iptables-save", "-c")
	if err != nil {
		return nil, err
	}
	return rulewalk.Parse(string(text))
}

// connect sends the first packet of a connection from a pod on the node to a Service, and
// returns how many rules the node has executed for it.
func (c *counter) connect(ctx context.Context, i int) (rules int, err error) {
	landed, err := c.pods.first(c.node.client, frontend(i))
	if err != nil {
		return 0, fmt.Errorf("to Service %s: %w", name(i), err)
	}
	before := c.now
	if c.now, err = c.dump(ctx); err != nil {
		return 0, err
	}
	walk, err := rulewalk.Follow(before, c.now, "PREROUTING", "FORWARD", "POSTROUTING")
	if err != nil {
		return 0, fmt.Errorf("to Service %s: %w", name(i), err)
	}
	if walk.Destination != landed.String() {
		return 0, fmt.Errorf("to Service %s: the rules say %q, but the packet came to %v", name(i), walk.Destination, landed)
	}
	return walk.Rules, nil
}

// list are those of n Services that are in kube-proxy's list, as it has them.
func (c *counter) list(n int) (all []int) {
	numbers := map[netip.Addr]int{}
	for i := range n {
		numbers[frontend(i).Addr()] = i
	}
	for _, r := range c.now["nat"]["KUBE-SERVICES"] {
		to, err := netip.ParsePrefix(r.Option("-d"))
		if i, ours := numbers[to.Addr()]; ours && err == nil {
			all = append(all, i)
		}
	}
	return all
}
