// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/slipstream-proxy/slipstream/desired"
	"github.com/slipstream-proxy/slipstream/fastpath"
	"github.com/slipstream-proxy/slipstream/metrics"
	"github.com/slipstream-proxy/slipstream/nodeaddr"
	"github.com/slipstream-proxy/slipstream/proxy"
	"github.com/slipstream-proxy/slipstream/source/manifest"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
)

// fastPathThreshold is kindnet's name for the flag.
const fastPathThreshold = "fastpath-threshold"

// agentOptions are the flags of "slipstream fastpath".
type agentOptions struct {
	fastPathFlags
	services    runOptions // of which only some are flags here
	metricsBind string
}

func newFastPathAgent() *cobra.Command {
	var o agentOptions
	cmd := &cobra.Command{
		Use:   "fastpath",
		Short: "Be the fast path of this node, beside any Service proxy",
		Long: `Fastpath offloads established connections to the kernel's flowtable, whoever made
them: it works beside kube-proxy in any mode and beside other Service proxies, and
touches nothing of theirs. It needs a kernel with flowtables (CONFIG_NF_FLOW_TABLE_INET,
CONFIG_NFT_FLOW_OFFLOAD).

With --scope=all, every connection that the node forwards may take the fast path.
With --scope=services, only those to Services; it reads these from --manifests then,
as 'slipstream run' does.

All connections are back on the slow path when it has stopped; none is cut.`,
		Example: `  slipstream fastpath --fastpath-threshold=20 --scope=all
  slipstream fastpath --manifests /etc/slipstream`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runAgent(cmd.Context(), o) },
	}
	o.fastPathFlags.add(cmd, fastPathThreshold)
	f := cmd.Flags()
	f.StringVar(&o.services.manifests, "manifests", "", "directory of manifests to take Services from, for --scope=services")
	f.StringVar(&o.services.hostname, "hostname-override", "", "name of this node (default: the host's name)")
	o.services.nodePorts.add(cmd)
	f.StringVar(&o.metricsBind, "metrics-bind-address", "", "address and port to serve /metrics on, such as 127.0.0.1:10249 (default: not served)")
	addLogFlags(cmd)
	return cmd
}

func runAgent(ctx context.Context, o agentOptions) (err error) {
	config, err := o.config(fastPathThreshold)
	if err != nil {
		return err
	}
	if config.Scope == fastpath.Services && o.services.manifests == "" {
		return errors.New("--manifests: needed for --scope=services")
	}
	var want desired.Config
	if want.NodeName, err = o.services.nodeName(); err != nil {
		return err
	}
	if want.NodePorts, err = o.services.nodePorts.config(); err != nil {
		return err
	}
	ctl, err := fastpath.New(config)
	if err != nil {
		return err
	}
	stop := runFastPath(ctx, ctl)
	defer func() { err = errors.Join(err, stop()) }()
	m := metrics.New()
	m.OnFastPath(fastPathMetrics(ctl))
	if o.metricsBind != "" {
		if err := serveMetrics(ctx, o.metricsBind, m); err != nil {
			return err
		}
	}
	klog.InfoS("Starting the fast path", "version", versionText(), "threshold", config.Threshold, "scope", config.Scope)
	if config.Scope == fastpath.All {
		return followAll(ctx, ctl)
	}
	problem := func(err error) {
		klog.ErrorS(nil, err.Error())
		m.ObjectProblems.Inc()
	}
	return proxy.New(manifest.New(o.services.manifests, manifest.OnError(problem)), desired.New(want), ctl, m, proxy.Options{
		MinSyncPeriod: minSyncPeriod,
		CheckPeriod:   checkPeriod,
		NodeAddresses: nodeaddr.New(0).Run,
	}).Run(ctx)
}

// followAll keeps a fast path that needs to know nothing of Services.
func followAll(ctx context.Context, ctl *fastpath.Controller) error {
	if _, err := ctl.Reconcile(&desired.Change{}); err != nil {
		return fmt.Errorf("fast path: %w", err)
	}
	return repeatUntil(ctx, checkPeriod, func() {
		if ctl.Check() == nil {
			return
		}
		if _, err := ctl.Reconcile(&desired.Change{}); err != nil {
			klog.ErrorS(err, "Could not program the fast path, will try again")
		}
	})
}
