// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/backend"
	"github.com/slipstream-proxy/slipstream/backend/nftables"
	"github.com/slipstream-proxy/slipstream/desired"
	"github.com/slipstream-proxy/slipstream/metrics"
	"github.com/slipstream-proxy/slipstream/proxy"
	"github.com/slipstream-proxy/slipstream/source/manifest"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
)

// runOptions are the flags of "slipstream run". Those that kube-proxy has too
// go by its names.
type runOptions struct {
	manifests     string
	hostname      string
	clusterCIDR   string
	masqueradeAll bool
	metricsBind   string
	minSync       time.Duration
	checkPeriod   time.Duration
}

func newRun() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run --manifests DIR",
		Short: "Be the Service proxy of this node",
		Long: `Run reads Services, EndpointSlices and Nodes and keeps the kernel's nftables in
line with them until it is stopped. What it has programmed stays when it stops,
and is taken over without a gap when it starts again; 'slipstream cleanup'
removes it.

Objects come from a directory of manifests (*.yaml, *.yml, *.json), as for
'kubectl apply -f DIR'. The directory is watched: a file that is saved is
programmed at once. A file or an object with a mistake in it is reported in one
line, and what it last said well stays in force.`,
		Example: `  slipstream run --manifests /etc/slipstream
  slipstream run --manifests examples/demo --cluster-cidr 10.244.0.0/16,fd00:244::/32`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.manifests, "manifests", "", "directory of manifests to take Services, EndpointSlices and Nodes from")
	f.StringVar(&o.hostname, "hostname-override", "", "name of this node, as EndpointSlices write it (default: the host's name)")
	f.StringVar(&o.clusterCIDR, "cluster-cidr", "", "range of pod addresses, or two of different families, comma-separated; traffic to ClusterIPs from elsewhere is masqueraded")
	f.BoolVar(&o.masqueradeAll, "masquerade-all", false, "masquerade all traffic to ClusterIPs")
	f.StringVar(&o.metricsBind, "metrics-bind-address", "", "address and port to serve /metrics on, e.g. 127.0.0.1:10249 (default: not served)")
	f.DurationVar(&o.minSync, "min-sync-period", 10*time.Millisecond, "least time between two updates of the kernel; the first change after a quiet time does not wait")
	f.DurationVar(&o.checkPeriod, "check-period", 500*time.Millisecond, "how often to look whether somebody else has damaged what was programmed")
	addLogFlags(cmd)
	if err := cmd.MarkFlagRequired("manifests"); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}

// addLogFlags adds klog's verbosity.
func addLogFlags(cmd *cobra.Command) {
	var all flag.FlagSet
	klog.InitFlags(&all)
	v := all.Lookup("v")
	v.Usage = "verbosity of the log: 0 for what an operator must see, 2 for every update of the kernel"
	cmd.Flags().AddGoFlag(v)
}

// backendConfig checks the flags that backends need.
func (o *runOptions) backendConfig() (backend.Config, error) {
	c := backend.Config{MasqueradeAll: o.masqueradeAll, MasqueradeBit: backend.DefaultMasqueradeBit}
	if o.clusterCIDR == "" {
		return c, nil
	}
	for _, text := range strings.Split(o.clusterCIDR, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return c, fmt.Errorf("--cluster-cidr: %q is not a range of addresses such as 10.244.0.0/16", text)
		}
		for _, q := range c.ClusterCIDRs {
			if p.Addr().Is4() == q.Addr().Is4() {
				return c, fmt.Errorf("--cluster-cidr: %s and %s are of the same family", q, p)
			}
		}
		c.ClusterCIDRs = append(c.ClusterCIDRs, p)
	}
	return c, nil
}

// nodeName is the name of this node: as overridden, or the host's in lower case,
// as kubelet registers it.
func (o *runOptions) nodeName() (string, error) {
	name := o.hostname
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("name of this node: %w", err)
		}
	}
	return strings.ToLower(strings.TrimSpace(name)), nil
}

func run(ctx context.Context, o runOptions) (err error) {
	config, err := o.backendConfig()
	if err != nil {
		return err
	}
	node, err := o.nodeName()
	if err != nil {
		return err
	}
	for name, d := range map[string]time.Duration{"min-sync-period": o.minSync, "check-period": o.checkPeriod} {
		if d <= 0 {
			return fmt.Errorf("--%s: must be more than 0", name)
		}
	}
	m := metrics.New()
	objects := manifest.New(o.manifests, manifest.OnError(func(err error) {
		klog.ErrorS(nil, err.Error())
		m.ObjectProblems.Inc()
	}))
	b, err := nftables.New(config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	if o.metricsBind != "" {
		if err := serveMetrics(ctx, o.metricsBind, m); err != nil {
			return err
		}
	}
	klog.InfoS("Starting", "version", versionText(), "node", node, "manifests", o.manifests)
	p := proxy.New(objects, desired.New(desired.Config{NodeName: node}), b, m, proxy.Options{
		MinSyncPeriod: o.minSync,
		CheckPeriod:   o.checkPeriod,
	})
	return p.Run(ctx)
}

// serveMetrics serves /metrics until ctx ends.
func serveMetrics(ctx context.Context, address string, m *metrics.Metrics) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("--metrics-bind-address: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", m.Handler())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	context.AfterFunc(ctx, func() { server.Close() })
	go func() {
		if err := server.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
			klog.ErrorS(err, "Serving metrics")
		}
	}()
	return nil
}
