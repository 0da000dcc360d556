// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/expression"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/flows"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/iface"
	"github.com/slipstream-proxy/slipstream/internal/logonce"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/node/netif"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/internal/source/api"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// fastPathThreshold is kindnet's name for the flag.
const fastPathThreshold = "fastpath-threshold"

type agentOptions struct {
	fastPath    config.FastPathConfiguration
	objects     config.Config // only the source of objects
	master      string
	hostname    string
	nodePorts   []string
	metricsBind string
}

func newFastPathAgent() *cobra.Command {
	o := agentOptions{fastPath: config.New().Slipstream.FastPath}
	cmd := &cobra.Command{
		Use:   "fastpath",
		Short: "Run only the fast path, together with any Service proxy",
		Long: `Fastpath offloads established connections to the kernel's flowtable. It works with
kube-proxy in any mode and with other Service proxies, and does not change their
rules. It needs a kernel with flowtables (CONFIG_NF_FLOW_TABLE_INET,
CONFIG_NFT_FLOW_OFFLOAD) or, with --fast-path-engine=ebpf, one that can do the same by a BPF
program (Linux 6.1, CONFIG_DEBUG_INFO_BTF).

With --scope=all, every connection that the node forwards may take the fast path.
With --scope=services, only connections to Services may; it then reads Services from the
Kubernetes API or from --manifests, as 'slipstream run' does. With --scope=all, it reads them
only if --kubeconfig, --master or --manifests is set, to exclude Services, Namespaces and pods
with the annotation slipstream.io/fast-path: "off". Pods are read from the Kubernetes API only.

When it stops, all connections return to the slow path; none is interrupted.`,
		Example: `  slipstream fastpath --fastpath-threshold=20 --scope=all
  slipstream fastpath --kubeconfig /var/lib/kube-proxy/kubeconfig.conf`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runAgent(cmd.Context(), o, cmd.Flags()) },
	}
	f := cmd.Flags()
	addFastPath(f, &o.fastPath, fastPathThreshold)
	addNodePorts(f, &o.nodePorts, config.Primary)
	f.StringVar(&o.objects.Slipstream.Manifests, "manifests", "", "directory of manifests to read Services from, instead of the Kubernetes API")
	f.StringVar(&o.objects.KubeProxy.ClientConnection.Kubeconfig, "kubeconfig", "", "kubeconfig file for the Kubernetes API")
	f.StringVar(&o.master, "master", "", "URL of the Kubernetes API, instead of the kubeconfig's")
	cmd.MarkFlagsMutuallyExclusive("manifests", "kubeconfig")
	cmd.MarkFlagsMutuallyExclusive("manifests", "master")
	f.StringVar(&o.hostname, "hostname-override", "", "name of this node (default: the host's name)")
	f.StringVar(&o.metricsBind, "metrics-bind-address", "", "address and port to serve /metrics on, such as 127.0.0.1:10249 (default: not served)")
	addLogFlags(cmd)
	return cmd
}

func (o *agentOptions) configs(fs *pflag.FlagSet) (c fastpath.Config, want desired.Config, err error) {
	c, errs := parseFastPath(&o.fastPath, field.NewPath("fastPath"))
	ranges := config.Config{}
	ranges.KubeProxy.NodePortAddresses = o.nodePorts
	errs = append(errs, ranges.ValidateNodePortAddresses()...)
	for _, e := range errs {
		e.Field = flagFor(fs, &pflag.FlagSet{}, e.Field)
	}
	if len(errs) > 0 {
		return c, want, errs.ToAggregate()
	}
	want.NodePorts = nodePorts(&ranges)
	want.NodePorts.Primary = want.NodePorts.Primary || len(want.NodePorts.CIDRs) == 0
	want.SlowPathPod, _ = expression.Pods(o.fastPath.ExcludePods) // valid
	want.NodeName, err = nodeName(o.hostname)
	return c, want, err
}

// parseFastPath converts the settings to those of package fastpath, and returns the
// errors in them.
func parseFastPath(f *config.FastPathConfiguration, path *field.Path) (c fastpath.Config, errs field.ErrorList) {
	invalid := func(name string, value any, err error) {
		if err != nil {
			errs = append(errs, field.Invalid(path.Child(name), value, err.Error()))
		}
	}
	if n := *f.OffloadPacketThreshold; n < 0 || n > math.MaxInt32 {
		invalid("offloadPacketThreshold", n, fmt.Errorf("must be a number of packets from 0 to %d", math.MaxInt32))
	} else {
		c.Threshold = uint32(n)
	}
	invalid("scope", f.Scope, choose(&c.Scope, f.Scope, "scope %q: is neither services nor all", fastpath.Services, fastpath.All))
	invalid("engine", f.Engine, choose(&c.Engine, f.Engine, "engine %q: is none of flowtable, ebpf and auto", fastpath.Flowtable, fastpath.EBPF, fastpath.AutoEngine))
	invalid("bypass", f.Bypass, choose(&c.Bypass, f.Bypass, "bypass %q: is neither none nor all", fastpath.BypassNone, fastpath.BypassAll))
	invalid("hardwareOffload", f.HardwareOffload, choose(&c.Hardware, string(f.HardwareOffload), "hardware offload %q: is none of auto, on and off", fastpath.Auto, fastpath.On, fastpath.Off))
	c.GRO = f.GRO
	for _, text := range f.ExcludeAddresses {
		p, err := fastpath.ParsePrefix(text)
		invalid("excludeAddresses", text, err)
		c.Exclude.Addresses = append(c.Exclude.Addresses, p)
	}
	for _, text := range f.ExcludeMarks {
		m, err := fastpath.ParseMark(text)
		invalid("excludeMarks", text, err)
		c.Exclude.Marks = append(c.Exclude.Marks, m)
	}
	for _, n := range f.ExcludeDSCP {
		if n < 0 || n > 63 {
			invalid("excludeDSCP", n, errors.New("must be from 0 to 63"))
		}
		c.Exclude.DSCP = append(c.Exclude.DSCP, uint8(n))
	}
	_, err := expression.Pods(f.ExcludePods)
	invalid("excludePods", f.ExcludePods, err)
	if f.Interfaces != "" {
		c.Interfaces, err = iface.Compile(f.Interfaces)
		invalid("interfaces", f.Interfaces, err)
	}
	return c, errs
}

// choose sets a setting to the choice of that name, or returns an error with the message.
func choose[T ~string](to *T, name, message string, choices ...T) error {
	if *to = T(name); !slices.Contains(choices, *to) {
		return fmt.Errorf(message, name)
	}
	return nil
}

const needPodsOfAPI = " needs the Kubernetes API as the source of objects, as pods are read from there only"

var errPodsOfAPI = errors.New("--exclude-pods (fastPath.excludePods)" + needPodsOfAPI)

func runAgent(ctx context.Context, o agentOptions, fs *pflag.FlagSet) (err error) {
	c, want, err := o.configs(fs)
	if err != nil {
		return err
	}
	log, m := klog.FromContext(ctx), metrics.New()
	problem := func(err error) {
		logProblems(log)(err)
		m.ObjectProblems.Inc()
	}
	var services source.Source
	sourceSet := o.master+o.objects.Slipstream.Manifests+o.objects.KubeProxy.ClientConnection.Kubeconfig != ""
	if c.Scope == fastpath.Services || sourceSet {
		if services, _, err = newSource(&o.objects, o.master, want.NodeName, problem); err != nil {
			return fmt.Errorf("--scope=%s: %w", c.Scope, err)
		}
	}
	if _, isAPI := services.(*api.Source); want.SlowPathPod != nil && !isAPI {
		return errPodsOfAPI
	}
	ctl, err := fastpath.New(c)
	if err != nil {
		return err
	}
	stop := runFastPath(ctx, ctl)
	defer func() { err = errors.Join(err, stop()) }()
	m.OnFastPath(fastPathMetrics(ctl))
	if o.metricsBind != "" {
		stop, err := serveMetrics(ctx, o.metricsBind, m)
		if err != nil {
			return err
		}
		defer stop()
	}
	log.Info("Starting the fast path", "version", versionText(), "threshold", c.Threshold, "scope", c.Scope)
	if services == nil {
		return followAll(ctx, ctl)
	}
	readers := nfnl.OpenReaders()
	defer func() { _ = readers.Close() }()
	return proxy.New(services, desired.New(want), ctl, m, proxy.Options{
		MinSyncPeriod: config.DefaultMinSyncPeriod,
		Readers:       readers.Look,
		CheckPeriod:   config.DefaultCheckPeriod,
		NodeAddresses: netif.Namespace(0).WatchAddresses,
		PolicyChanged: watchForFastPath(services, ctl),
	}).Run(ctx)
}

// watchForFastPath has a source deliver NetworkPolicies, Namespaces and pods if connections can be
// on the fast path. It returns the function to call when a NetworkPolicy has changed.
func watchForFastPath(objects source.Source, fast *fastpath.Controller) func(context.Context) error {
	if s, isAPI := objects.(*api.Source); isAPI && !fast.Off() {
		s.Options.FastPath = true
	}
	return fast.PolicyChanged
}

// followAll runs a fast path for all connections, without Services.
func followAll(ctx context.Context, ctl *fastpath.Controller) error {
	if _, err := ctl.Reconcile(ctx, &desired.Change{}); err != nil {
		return fmt.Errorf("fast path: %w", err)
	}
	var errs logonce.Errors
	wait.NonSlidingUntilWithContext(ctx, func(context.Context) {
		if ctl.Check(ctx) == nil {
			return
		}
		_, err := ctl.Reconcile(ctx, &desired.Change{})
		errs.Log(klog.FromContext(ctx), err, "Could not program the fast path, will try again")
	}, config.DefaultCheckPeriod)
	return nil
}

func addLogFlags(cmd *cobra.Command) {
	var all flag.FlagSet
	klog.InitFlags(&all)
	v := all.Lookup("v")
	v.Usage = "log verbosity: 0 for what an operator must see, 2 for every update of the kernel"
	cmd.Flags().AddGoFlag(v)
}

func serveMetrics(ctx context.Context, address string, m *metrics.Metrics) (stop func(), err error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--metrics-bind-address: %w", err)
	}
	log, mux := klog.FromContext(ctx), http.NewServeMux()
	mux.Handle("GET /metrics", m.Handler(log))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute}
	return inBackground(ctx, func(ctx context.Context) {
		defer context.AfterFunc(ctx, func() { server.Close() })()
		if err := server.Serve(l); ctx.Err() == nil {
			log.Error(err, "Could not serve metrics")
		}
	}), nil
}

// addFastPath defines the flags that "slipstream run" and "slipstream fastpath" have
// in common; the threshold goes by the name that KEP-4963 or kindnet has for it.
func addFastPath(fs *pflag.FlagSet, c *config.FastPathConfiguration, threshold string) {
	fs.Int64Var(c.OffloadPacketThreshold, threshold, *c.OffloadPacketThreshold, "number of packets, of both directions together, after which a connection takes the fast path; 0 disables the fast path")
	fs.StringVar(&c.Engine, "fast-path-engine", c.Engine, "what forwards packets on the fast path: flowtable, ebpf, or auto (the flowtable if the kernel has it, else eBPF)")
	fs.StringVar(&c.Bypass, "fast-path-bypass", c.Bypass, "which rules of other programs connections on the fast path may bypass: none that limit, mark, change or log packets or drop some of a connection, or all")
	fs.StringVar(&c.Scope, "scope", c.Scope, "which connections may take the fast path: services, or all that the node forwards")
	fs.StringVar(&c.Interfaces, "interfaces", c.Interfaces, `interfaces between which connections may take the fast path, as a CEL expression over interface.name, .type, .addresses, .mtu, .up and .portOf, such as 'interface.name.startsWith("veth")' (default: all that are up, except loopback, WireGuard, and ports of bridges and bonds)`)
	fs.StringVar((*string)(&c.HardwareOffload), "hardware-offload", string(c.HardwareOffload), "whether to hand connections to network hardware: auto, on, off")
	fs.BoolVar(&c.GRO, "fast-path-gro", c.GRO, "switch GRO on at the node's ends of the veths between which connections may take the fast path, for pods that send no segments to be split (GSO, TSO off)")
	fs.StringSliceVar(&c.ExcludeAddresses, "exclude-addresses", c.ExcludeAddresses, "addresses and ranges of clients and backends whose connections do not take the fast path, comma-separated")
	fs.StringVar(&c.ExcludePods, "exclude-pods", c.ExcludePods, `pods of this node whose connections do not take the fast path, as a CEL expression over pod.namespace, .name, .labels and .annotations, such as 'pod.namespace == "voip"'`)
	fs.StringSliceVar(&c.ExcludeMarks, "exclude-marks", c.ExcludeMarks, "packet marks and connection marks, as value or value/mask, with which connections do not take the fast path, comma-separated")
	fs.IntSliceVar(&c.ExcludeDSCP, "exclude-dscp", c.ExcludeDSCP, "DSCP values, 0 to 63, with which connections do not take the fast path, comma-separated")
}

// runFastPath runs a controller until stop is called, which removes its table from the
// kernel.
func runFastPath(ctx context.Context, ctl *fastpath.Controller) (stop func() error) {
	end := inBackground(ctx, func(ctx context.Context) {
		if err := ctl.Run(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Fast path: could not watch interfaces")
		}
	})
	return func() error {
		end()
		return ctl.Stop()
	}
}

// inBackground calls run in a goroutine. Stop ends run's context and waits for it.
func inBackground(ctx context.Context, run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); run(ctx) }()
	return func() { cancel(); <-done }
}

// fastPathMetrics returns a function that reads a controller's metrics. ctl is nil if the
// kernel does not support the fast path.
func fastPathMetrics(ctl *fastpath.Controller) func() (metrics.FastPath, error) {
	return func() (metrics.FastPath, error) {
		if ctl == nil {
			return metrics.FastPath{}, nil
		}
		s, err := ctl.Stats()
		return metrics.FastPath{
			Supported: true, Offloaded: s.Offloaded, Refused: s.Refused, Interfaces: s.Interfaces,
			Hardware: s.Hardware, Flushes: s.Flushes, Errors: s.Errors,
		}, err
	}
}

// offloadMetrics publishes the number of offloaded connections by Service. The caller
// closes the returned connection when metrics are no longer served.
func offloadMetrics(ctx context.Context, m *metrics.Metrics, ctl *fastpath.Controller) (*flows.Conn, error) {
	conn, err := flows.New(0)
	if err == nil {
		m.OnFlows(func() (map[types.NamespacedName]int, error) {
			return ctl.CountFlows(func(visit func(*flows.Flow)) error { return conn.Each(ctx, visit) })
		})
	}
	return conn, err
}
