// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath"
	"github.com/slipstream-proxy/slipstream/internal/node/loopback"
	"github.com/slipstream-proxy/slipstream/internal/node/netif"
	"github.com/slipstream-proxy/slipstream/internal/node/sysctl"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/plain"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"github.com/slipstream-proxy/slipstream/internal/socket"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

const (
	// verifyTries is the number of comparisons before differences are reported, as
	// the proxy may be applying a change.
	verifyTries = 3

	// deliveryTimeout bounds how long the objects may take to be delivered.
	deliveryTimeout = 2 * time.Minute
)

func newVerify() *cobra.Command {
	var o runFlags
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compare what the kernel has with what Services require",
		Long: `Verify reads Services, EndpointSlices, ServiceCIDRs and this node's Node, as 'run' with
the same flags does, computes the desired state, and compares it with what the kernel
has, in any mode: frontends and endpoints, slipstream's tables, chains, sets and rules, also
those of limits and of the fast path, programs and maps of BPF, their connections with
conntrack, and parameters of the kernel that 'run' sets. It changes nothing, and works without
a running proxy, except that NodePorts on loopback addresses lack their listeners then, and BPF
programs of sockets do nothing. Give it the flags and the version of the proxy: other ones make
other rules. It takes flags of 'run' that it does not list, and ignores them.

Each difference is a line: "-" is missing in the kernel, "+" is unexpected, and "+ fault:"
is what should not be as it is, such as a chain with other rules. The last line says which node
this is, and what was compared. A difference that disappears within a few seconds is not reported, as the
proxy may be applying a change.

Exit status: 0 if all is the same, 2 if there are differences, 1 if they could not be looked for.

'slipstream run' does the same periodically with --verify-period, and repairs
differences.`,
		Example: `  slipstream verify --config /var/lib/kube-proxy/config.conf --hostname-override node-1
  slipstream verify --manifests /etc/slipstream`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := o.complete(cmd.Flags())
			if err != nil {
				return err
			}
			what, lines, err := verify(cmd.Context(), c, o.master)
			if err != nil {
				return err
			}
			for _, line := range lines {
				fmt.Fprintln(cmd.OutOrStdout(), line)
			}
			if len(lines) > 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", what, plain.Number(len(lines), "difference"))
				return errChanges
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: the same\n", what)
			return nil
		},
	}
	all := o.add(cmd)
	for _, section := range ofProcess { // it takes all flags of a proxy
		all.FlagSet(section).VisitAll(func(f *pflag.Flag) { f.Hidden = true })
	}
	return cmd
}

// verify compares, and returns what, and all differences, one per line.
func verify(ctx context.Context, c *config.Config, master string) (what string, lines []string, err error) {
	node, err := nodeName(c.KubeProxy.HostnameOverride)
	if err != nil {
		return "", nil, err
	}
	// Invalid objects are left out, as by the proxy.
	objects, client, err := newSource(c, master, node, logProblems(klog.FromContext(ctx)))
	if err != nil {
		return "", nil, err
	}
	reader, without, err := openMode(ctx, c, instance.probeToVerify, metrics.New(), func(string) {})
	if err != nil {
		return "", nil, err
	}
	defer func() { err = errors.Join(err, reader.Close()) }()
	want, _ := desiredOn(reader, c, node, without) // an algorithm that the kernel lacks is no difference
	w := watched{
		Inputs: proxy.Listen(ctx, objects, netif.Namespace(0).WatchAddresses),
		state:  desired.New(want),
		node:   node,
	}
	defer w.Stop()
	lines, err = agreed(func() ([]string, error) {
		if err := w.untilReady(ctx); err != nil {
			return nil, err
		}
		full := w.state.Full()
		v, err := dataplane.Verify(ctx, reader, &full.Change)
		if err != nil {
			return nil, err
		}
		found := collect.From(v.Differences, dataplane.Differing.String)
		beside, faults, err := verifyBeside(ctx, c, want, &full.Change)
		if err != nil {
			return nil, err
		}
		found = append(found, collect.From(faults, func(f string) string { return "+ fault: " + f })...)
		what = fmt.Sprintf("%s, %s, %s, %s", plain.Number(v.Frontends, "frontend"), plain.Number(v.Endpoints, "endpoint"), plain.Number(v.Rules, "rule"), beside)
		unserved, err := loopback.Unserved(full.Relays)
		if err != nil {
			return nil, err
		}
		return append(found, collect.From(unserved, func(r desired.Relay) string {
			return fmt.Sprintf("- Service %s: listener on %s", r.Service, r.FrontendKey)
		})...), nil
	})
	if w.hasNode {
		return fmt.Sprintf("Node %s, %s", node, what), lines, err
	}
	if err == nil && (client != nil || w.others) {
		lines = append(lines, fmt.Sprintf("- Node %s, which is the name of this node (--hostname-override, or the host's name)", node))
	}
	return fmt.Sprintf("Node %s (there is no such object; see --hostname-override), %s", node, what), lines, err
}

// verifyBeside compares what is beside the dataplane: the fast path, sockets, and parameters of the kernel.
func verifyBeside(ctx context.Context, c *config.Config, want desired.Config, full *desired.Change) (what string, faults []string, err error) {
	settings := c.FastPath()
	fast, _ := parseFastPath(&settings, nil) // valid
	rules, faults, err := fastpath.Verify(ctx, fast, full)
	if err != nil {
		return "", nil, err
	}
	bySockets := full
	if c.Slipstream.SocketLoadBalancing == config.SocketsOff {
		bySockets = nil
	}
	frontends, more, err := socket.Verify(socket.Options{Selected: want.DirectPod != nil}, bySockets)
	if err != nil {
		return "", nil, err
	}
	parameters, differ := c.Conntrack(sysctl.CPUs()).Verify()
	faults = slices.Concat(faults, more, differ)
	if want.NodePorts.OnLoopback() {
		has, err := sysctl.HasRouteLocalnet()
		if parameters++; err != nil || !has {
			faults = append(faults, "net.ipv4.conf.all.route_localnet is not 1, so NodePorts do not answer on loopback addresses")
		}
	}
	return fmt.Sprintf("%s of the fast path, %s of sockets, %s", plain.Number(rules, "rule"), plain.Number(frontends, "frontend"), plain.Number(parameters, "kernel parameter")), faults, nil
}

// agreed returns the differences that all of some comparisons have found. While Services keep changing,
// each comparison finds others.
func agreed(compare func() ([]string, error)) (lines []string, err error) {
	for try := range verifyTries {
		found, err := compare()
		if err != nil {
			return nil, err
		}
		if has := collect.Set(found); try > 0 {
			found = slices.DeleteFunc(lines, func(line string) bool { return !has[line] })
		}
		if lines = found; len(lines) == 0 {
			break
		}
	}
	return lines, nil
}

// watched keeps a desired state up to date with objects and the node's addresses.
type watched struct {
	*proxy.Inputs
	state             *desired.State
	synced, addressed bool

	node            string // the name of this node
	hasNode, others bool   // the Node has been delivered; those of others
}

// untilReady waits until all objects and addresses are known and applies them.
func (w *watched) untilReady(ctx context.Context) error {
	patience := time.NewTimer(deliveryTimeout)
	defer patience.Stop()
	for {
		quiet := time.NewTimer(100 * time.Millisecond)
		select {
		case <-w.Events.Ready:
			for _, e := range w.Events.Take() {
				w.synced = w.synced || e.Type == source.Synced
				if n, ok := e.Object.(*corev1.Node); ok {
					w.hasNode = w.hasNode || n.Name == w.node
					w.others = w.others || n.Name != w.node
				}
				proxy.ApplyEvent(w.state, e)
			}
		case all := <-w.Addresses:
			w.state.SetNodeAddresses(all)
			w.addressed = true
		case err := <-w.Failed:
			return errors.Join(errors.New("verify: the desired state is not known"), err)
		case <-ctx.Done():
			return errors.Join(errors.New("verify: the desired state is not known"), ctx.Err())
		case <-patience.C:
			return errors.New("verify: the objects were not delivered in time")
		case <-quiet.C:
			if w.synced && w.addressed {
				return nil
			}
		}
		quiet.Stop()
	}
}
