// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Patience bounds each step of a benchmark in a lab, and each request.
const Patience = 2 * time.Minute

// Nodes are the nodes of a lab, with a client's pod on each. Node i, from 1, has the pods in 10.244.i.0/24.
type Nodes struct {
	Lab     *lab.Lab
	All     []*lab.Node
	Clients []*lab.Pod

	slipstream string // path of the command
	dir        string // of logs and manifests
}

// NewNodes makes nodes that run a slipstream command. The caller closes them.
func NewNodes(n int, slipstream string) (_ *Nodes, err error) {
	c := &Nodes{slipstream: slipstream}
	if c.dir, err = os.MkdirTemp("", "bench-"); err != nil {
		return nil, err
	}
	if c.Lab, err = lab.New(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(c.dir))
	}
	for i := 1; i <= n && err == nil; i++ {
		var node *lab.Node
		node, err = c.Lab.Node(fmt.Sprintf("node-%d", i), lab.NodeOptions{
			Addresses: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("192.168.100.1%d/24", i))},
			PodCIDRs:  []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", i))},
		})
		if err == nil {
			c.All = append(c.All, node)
			var client *lab.Pod
			client, err = c.Pod(i, fmt.Sprintf("client-%d", i), 2)
			c.Clients = append(c.Clients, client)
		}
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Pod makes a pod on a node, with the n-th address there.
func (c *Nodes) Pod(node int, name string, n int) (*lab.Pod, error) {
	return c.All[node-1].Pod(name, netip.MustParseAddr(fmt.Sprintf("10.244.%d.%d", node, n)))
}

// Write writes the manifests of the proxies, with the objects of events.
func (c *Nodes) Write(events iter.Seq[source.Event]) (err error) {
	if err := os.Mkdir(c.manifests(), 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(c.manifests(), "services.yaml"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriter(f)
	for e := range events {
		switch o := e.Object.(type) {
		case *corev1.Service:
			o.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
		case *discoveryv1.EndpointSlice:
			o.TypeMeta = metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}
		}
		b, err := json.Marshal(e.Object)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "---\n%s\n", b)
	}
	return w.Flush()
}

func (c *Nodes) manifests() string { return filepath.Join(c.dir, "manifests") }

// Start starts a proxy on each node, and returns when all have programmed the kernel.
func (c *Nodes) Start(ctx context.Context, args ...string) (all []*lab.Program, err error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	for _, n := range c.All {
		p, err := n.StartSlipstream(ctx, c.dir, c.slipstream, c.manifests(), append([]string{"--cluster-cidr", "10.244.0.0/16"}, args...)...)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// Close ends everything.
func (c *Nodes) Close() error { return errors.Join(c.Lab.Close(), os.RemoveAll(c.dir)) }
