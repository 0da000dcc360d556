// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/slipstream-proxy/slipstream/test/cluster/control"
	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/lab"
	"github.com/slipstream-proxy/slipstream/test/oracle/upstream"
)

// world is the cluster: a control plane that is filled once, and the pods of all Services.
type world struct {
	*content
	site  *site.Site
	plane *control.Plane
	pods  *pods
	dir   string
	nodes []*site.Node // not used yet
}

// planeAddress is the control plane's, on the fabric.
var planeAddress = netip.MustParsePrefix("192.168.100.2/24")

// newWorld starts everything but the subjects, for so many times that one is run. The
// caller closes it.
func newWorld(ctx context.Context, c *content, times int, dir string, log upstream.Log) (_ *world, err error) {
	// Filling waits for etcd's every write to be on the disk otherwise. Nothing that is
	// measured does.
	if err := os.Setenv("ETCD_UNSAFE_NO_FSYNC", "true"); err != nil {
		return nil, err
	}
	w := &world{content: c, dir: dir}
	l, err := lab.New()
	if err != nil {
		return nil, err
	}
	w.site = &site.Site{Lab: l}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	w.plane, err = control.Start(ctx, l, control.Options{
		Dir: dir, Addresses: []netip.Prefix{planeAddress}, ServiceCIDRs: []netip.Prefix{serviceCIDR}, Log: log,
	})
	if err != nil {
		return nil, err
	}
	w.site.Plane = w.plane
	if w.pods, err = newPods(ctx, l); err != nil {
		return nil, err
	}
	// All nodes at the start: a lab does not know that a node has gone, and connects new
	// ones with it.
	for i := range times {
		n, err := w.site.Machine(i + 1)
		if err != nil {
			return nil, err
		}
		w.nodes = append(w.nodes, n)
	}
	return w, nil
}

// node is where one subject runs once.
type node struct {
	*site.Node
	client *lab.Pod
}

// newNode is a node that was not used before, with nothing on it but a client's pod, and
// for an iptables mode the sign of which variant the node uses.
func (w *world) newNode(ctx context.Context, mode string) (*node, error) {
	n := w.nodes[0]
	w.nodes = w.nodes[1:]
	if err := n.AddRoute(podRange, podsAddress.Addr()); err != nil {
		return nil, err
	}
	if err := n.Register(ctx); err != nil {
		return nil, fmt.Errorf("register node %s: %w", n.Name(), err)
	}
	if mode == iptablesMode {
		if err := hint(ctx, n); err != nil {
			return nil, err
		}
	}
	client, err := n.Idle("client-" + n.Name())
	return &node{n, client}, err
}

// remove takes the node away, with all that runs on it and the rules it has.
func (n *node) remove(ctx context.Context) error {
	return errors.Join(n.client.Delete(), n.Namespace().Close(), n.Unregister(ctx))
}

func (w *world) close() error {
	var errs []error
	if w.pods != nil {
		w.pods.close()
	}
	if w.plane != nil {
		errs = append(errs, w.plane.Close())
	}
	return errors.Join(append(errs, w.site.Lab.Close())...)
}
