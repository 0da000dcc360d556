// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/backend"
	"github.com/slipstream-proxy/slipstream/backend/nftables"
	"github.com/slipstream-proxy/slipstream/conntrack"
	"github.com/slipstream-proxy/slipstream/desired"
	"github.com/slipstream-proxy/slipstream/fastpath"
	"github.com/slipstream-proxy/slipstream/health"
	"github.com/slipstream-proxy/slipstream/metrics"
	"github.com/slipstream-proxy/slipstream/nodeaddr"
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
	detectLocal   detectLocalFlags
	nodePorts     nodePortFlags
	masqueradeAll bool
	masqueradeBit int
	metricsBind   string
	minSync       time.Duration
	checkPeriod   time.Duration
	fastPath      fastPathFlags
}

func newRun() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run --manifests DIR",
		Short: "Be the Service proxy of this node",
		Long: `Run reads Services, EndpointSlices, Nodes and ServiceCIDRs and keeps the kernel's
nftables in line with them until it is stopped. What it has programmed stays when
it stops, and is taken over without a gap when it starts again; 'slipstream
cleanup' removes it.

Objects come from a directory of manifests (*.yaml, *.yml, *.json), as for
'kubectl apply -f DIR'. The directory is watched: a file that is saved is
programmed at once. A file or an object with a mistake in it is reported in one
line, and what it last said well stays in force.

NodePorts, and the ports for health checks of load balancers, answer on the
addresses of this node that --nodeport-addresses selects:
  primary  the first address of each family in the status of the Node object that
           is named as this node, an InternalIP if there is one; without that
           Node object, they answer nowhere
  ranges   the addresses on this node's interfaces that are in one of them; of a
           family without a range, all
NodePorts never answer on loopback addresses. Addresses that come and go are
followed.

Traffic to ClusterIPs is masqueraded unless it comes from a pod of this node. How
to tell is what --detect-local-mode says:
  ClusterCIDR          its source is in --cluster-cidr; in a family without such a
                       range, nothing is masqueraded
  NodeCIDR             its source is in spec.podCIDRs of the Node object that is
                       named as this node
  BridgeInterface      it arrives on the bridge --pod-bridge-interface
  InterfaceNamePrefix  it arrives on an interface whose name starts with
                       --pod-interface-name-prefix`,
		Example: `  slipstream run --manifests /etc/slipstream
  slipstream run --manifests examples/demo --cluster-cidr 10.244.0.0/16,fd00:244::/32`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.manifests, "manifests", "", "directory of manifests to take objects from")
	f.StringVar(&o.hostname, "hostname-override", "", "name of this node, as EndpointSlices write it (default: the host's name)")
	o.nodePorts.add(cmd)
	o.detectLocal.add(cmd)
	f.BoolVar(&o.masqueradeAll, "masquerade-all", false, "masquerade all traffic to ClusterIPs")
	f.IntVar(&o.masqueradeBit, "nftables-masquerade-bit", backend.DefaultMasqueradeBit, "bit of the packet mark, 0 to 31, that is set on what is to be masqueraded (kube-proxy's nftables.masqueradeBit)")
	f.StringVar(&o.metricsBind, "metrics-bind-address", "", "address and port to serve /metrics on, such as 127.0.0.1:10249 (default: not served)")
	o.fastPath.add(cmd, offloadThreshold)
	o.fastPath.addGates(cmd)
	f.DurationVar(&o.minSync, "min-sync-period", minSyncPeriod, "least time between two updates of the kernel; the first change after a quiet time does not wait")
	f.DurationVar(&o.checkPeriod, "check-period", checkPeriod, "how often to look whether somebody else has damaged what was programmed")
	addLogFlags(cmd)
	if err := cmd.MarkFlagRequired("manifests"); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}

// offloadThreshold is KEP-4963's name for the flag.
const offloadThreshold = "offload-packet-threshold"

// Defaults of periods.
const (
	minSyncPeriod = 10 * time.Millisecond
	checkPeriod   = 500 * time.Millisecond
)

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
	if o.masqueradeBit < 0 || o.masqueradeBit > 31 {
		return backend.Config{}, fmt.Errorf("--nftables-masquerade-bit: %d is not one of the bits 0 to 31", o.masqueradeBit)
	}
	return backend.Config{MasqueradeAll: o.masqueradeAll, MasqueradeBit: o.masqueradeBit}, nil
}

// desiredConfig checks the flags that the desired state needs.
func (o *runOptions) desiredConfig() (c desired.Config, err error) {
	if c.NodeName, err = o.nodeName(); err != nil {
		return c, err
	}
	if c.NodePorts, err = o.nodePorts.config(); err != nil {
		return c, err
	}
	c.DetectLocal, err = o.detectLocal.config()
	return c, err
}

// checkPeriods checks the flags that are periods.
func (o *runOptions) checkPeriods() error {
	switch {
	case o.minSync <= 0:
		return errors.New("--min-sync-period: must be more than 0")
	case o.checkPeriod <= 0:
		return errors.New("--check-period: must be more than 0")
	}
	return nil
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
	want, err := o.desiredConfig()
	if err != nil {
		return err
	}
	if err := o.checkPeriods(); err != nil {
		return err
	}
	accelerate, err := o.fastPath.config(offloadThreshold)
	if err != nil {
		return err
	}
	m := metrics.New()
	problem := func(err error) {
		klog.ErrorS(nil, err.Error())
		m.ObjectProblems.Inc()
	}
	b, err := nftables.New(config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	fast, err := newFastPath(accelerate)
	if err != nil {
		return err
	}
	m.OnFastPath(fastPathMetrics(fast))
	flows, closeFlows, err := cleanFlows(m, fast)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeFlows()) }()
	if o.metricsBind != "" {
		if err := serveMetrics(ctx, o.metricsBind, m); err != nil {
			return err
		}
	}
	klog.InfoS("Starting", "version", versionText(), "node", want.NodeName, "manifests", o.manifests)
	var p *proxy.Proxy
	checks := health.New(health.Options{
		Healthy: func() bool { return p.Healthy() },
		Report:  problem,
	})
	defer checks.Close()
	options := proxy.Options{
		MinSyncPeriod: o.minSync,
		CheckPeriod:   o.checkPeriod,
		NodeAddresses: nodeaddr.New(0).Run,
		HealthChecks:  checks,
		StaleFlows:    flows,
	}
	if fast != nil {
		options.FastPath = fast
		stop := runFastPath(ctx, fast)
		defer func() { err = errors.Join(err, stop()) }()
	}
	p = proxy.New(manifest.New(o.manifests, manifest.OnError(problem)), desired.New(want), b, m, options)
	return p.Run(ctx)
}

// cleanFlows makes the one that deletes stale entries of conntrack, also those of
// connections on the fast path, if there is one.
func cleanFlows(m *metrics.Metrics, fast *fastpath.Controller) (flows *conntrack.Cleaner, closeAll func() error, err error) {
	conn, err := conntrack.New(0)
	if err != nil {
		return nil, nil, err
	}
	clean := conn.Clean
	if fast != nil {
		clean = fast.Cleaning(clean)
	}
	flows = conntrack.NewCleaner(clean, func(stats conntrack.Stats, err error) {
		m.ConntrackDeleted.Add(float64(stats.Deleted))
		if err != nil {
			m.ConntrackFailures.Inc()
			klog.ErrorS(err, "Could not delete all stale entries of conntrack")
		}
		if stats.Deleted > 0 {
			klog.V(2).InfoS("Deleted stale entries of conntrack", "entries", stats.Deleted)
		}
	})
	return flows, func() error { flows.Close(); return conn.Close() }, nil
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
