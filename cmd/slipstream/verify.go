// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/iptables"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/ipvs"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/node/loopback"
	"github.com/slipstream-proxy/slipstream/internal/node/netif"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/spf13/cobra"
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
		Short: "Compare the kernel's content with what Services require",
		Long: `Verify reads Services, EndpointSlices, ServiceCIDRs and this node's Node, as 'run' with
the same flags does, computes the desired state, and compares it with the kernel's
content, in any mode. It changes nothing, and works without a running proxy, except that
NodePorts on loopback addresses lack their listeners then.

Each difference is a line: "-" is missing in the kernel, "+" is unexpected. The exit
code is 1 if there are differences. A difference that disappears within a few seconds
is not reported, as the proxy may be applying a change.

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
			lines, err := verify(cmd.Context(), c, o.master)
			for _, line := range lines {
				fmt.Fprintln(cmd.OutOrStdout(), line)
			}
			if err == nil && len(lines) > 0 {
				err = fmt.Errorf("verify: %d differences", len(lines))
			}
			return err
		},
	}
	o.add(cmd.Flags())
	return cmd
}

// verify returns the differences, one per line.
func verify(ctx context.Context, c *config.Config, master string) (lines []string, err error) {
	node, err := nodeName(c.KubeProxy.HostnameOverride)
	if err != nil {
		return nil, err
	}
	// Invalid objects are left out, as by the proxy.
	objects, _, err := newSource(c, master, node, logProblems(klog.FromContext(ctx)))
	if err != nil {
		return nil, err
	}
	reader, without, err := openMode(ctx, c, probeToVerify, metrics.New(), func(string) {})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, reader.Close()) }()
	want, _ := desiredOn(reader, c, node, without) // an algorithm that the kernel lacks is no difference
	w := watched{
		Inputs: proxy.Listen(ctx, objects, netif.Namespace(0).WatchAddresses),
		state:  desired.New(want),
	}
	defer w.Stop()
	for range verifyTries {
		if err := w.untilReady(ctx); err != nil {
			return nil, err
		}
		full := w.state.Full()
		diff, err := dataplane.Compare(ctx, reader, dataplane.ContentOf(&full.Change))
		if err != nil {
			return nil, err
		}
		lines = nil
		for _, d := range dataplane.Differings(diff, &full.Change) {
			lines = append(lines, d.String())
		}
		unserved, err := loopback.Unserved(full.Relays)
		if err != nil {
			return nil, err
		}
		for _, r := range unserved {
			lines = append(lines, fmt.Sprintf("- Service %s: listener on %s", r.Service, r.FrontendKey))
		}
		if len(lines) == 0 {
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
}

// untilReady waits until all objects and addresses are known and applies them.
func (w *watched) untilReady(ctx context.Context) error {
	patience := time.NewTimer(deliveryTimeout)
	defer patience.Stop()
	for {
		quiet := time.NewTimer(100 * time.Millisecond)
		select {
		case batch := <-w.Events:
			for _, e := range batch {
				w.synced = w.synced || e.Type == source.Synced
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

// probeToVerify is a probe that changes nothing. That of iptables mode creates a chain, so a
// family counts as not served there if its commands do not work.
func probeToVerify(b programmer, ctx context.Context) ([]dataplane.Missing, error) {
	if b, ok := b.(*ipvs.Backend); ok {
		return b.ProbeWith(ctx, func(ctx context.Context) ([]dataplane.Missing, error) { return probeTableToVerify(b.Table(), ctx) })
	}
	return probeTableToVerify(b, ctx)
}

func probeTableToVerify(b dataplane.Prober, ctx context.Context) (missing []dataplane.Missing, err error) {
	rules, ok := b.(*iptables.Backend)
	if !ok {
		return b.Probe(ctx)
	}
	for f, without := range rules.Without() {
		if without {
			missing = append(missing, dataplane.Missing{Family: desired.Family(f)})
		}
	}
	return missing, nil
}

// openReader opens a second dataplane to read the ruleset of the running one. It uses the
// same table in IPVS mode, and the same variant of iptables: detection is as expensive as
// reading, and its result may have changed.
func openReader(ctx context.Context, c *config.Config, running programmer) (proxy.Reader, error) {
	again := openNFTables
	if b := rulesOf(running); b != nil {
		again = func(d dataplane.Config) (programmer, error) {
			return iptables.New(ctx, d, iptables.Options{Variant: b.Variant()})
		}
	}
	if c.Mode() == config.IPVS {
		return openIPVS(c, again)
	}
	return again(backendConfig(c))
}

// verifyInBackground configures verification if verifyPeriod is set.
func verifyInBackground(o *proxy.Options, c *config.Config, m *metrics.Metrics, b programmer) {
	o.VerifyPeriod = c.Slipstream.VerifyPeriod.Duration
	if o.VerifyPeriod == 0 {
		return
	}
	m.OnVerify()
	o.OpenReader = func(ctx context.Context) (proxy.Reader, error) { return openReader(ctx, c, b) }
}
