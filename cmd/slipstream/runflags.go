// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/expression"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
)

// runFlags are the flags of "slipstream run". Flags that kube-proxy also has use its names.
// Most set a field of the configuration; see sets.
type runFlags struct {
	config   *config.Config // the fields that flags set directly
	upstream pflag.FlagSet  // for fields of KubeProxyConfiguration; ignored with --config, as in kube-proxy

	file, writeTo     string
	master            string
	hostname          string
	cleanup, initOnly bool
	version           string
	healthz, metrics  string
	healthzPort       int32
	metricsPort       int32
	syncPeriod        time.Duration // of iptables and nftables mode
	minSyncPeriod     time.Duration
}

// The sections of flags in the help. Those of ofProcess mean nothing to verify.
const (
	inGeneral    = "General"
	inObjects    = "Where objects are read from"
	inServices   = "Services"
	inMasquerade = "Pods and masquerading"
	inPaths      = "Fast path and sockets"
	inConntrack  = "Connections (conntrack)"
	inIPVS       = "IPVS mode"
	inTiming     = "Timing"
	inServing    = "What is served: health, metrics, the page, the commands"
	inLogs       = "Logs"
	inProcess    = "Other actions, the process, and what has no effect"
)

var ofProcess = []string{inTiming, inServing, inLogs, inProcess}

// offloadThreshold is KEP-4963's name for the flag.
const offloadThreshold = "offload-packet-threshold"

// add adds the flags to a command, whose help has them in sections.
func (o *runFlags) add(cmd *cobra.Command) *cliflag.NamedFlagSets {
	o.config = config.New()
	k, fs, all := &o.config.KubeProxy, cmd.Flags(), &cliflag.NamedFlagSets{}
	for _, section := range append([]string{inGeneral, inObjects, inServices, inMasquerade, inPaths, inConntrack, inIPVS}, ofProcess...) {
		all.FlagSet(section)
	}
	fs.SetNormalizeFunc(cliflag.WordSepNormalizeFunc) // kube-proxy takes _ for -
	addAPI(all, k)
	o.addServing(all, k)
	o.addMode(all, k)
	o.addTiming(all.FlagSet(inTiming), k)
	addIPVS(all.FlagSet(inIPVS), &k.IPVS)
	addTraffic(all, k)
	addConntrack(all.FlagSet(inConntrack), &k.Conntrack)
	for _, set := range all.FlagSets {
		o.upstream.AddFlagSet(set)
	}
	general, process := all.FlagSet(inGeneral), all.FlagSet(inProcess)
	general.StringVar(&o.file, "config", "", "configuration file (KubeProxyConfiguration, and SlipstreamConfiguration in a second document); flags for fields of KubeProxyConfiguration are then ignored")
	general.StringVar(&o.hostname, "hostname-override", "", "name of this node's Node object (default: the host name); overrides --config")
	all.FlagSet(inObjects).StringVar(&o.master, "master", "", "URL of the Kubernetes API, instead of the kubeconfig's; overrides --config")
	process.StringVar(&o.writeTo, "write-config-to", "", "write the configuration with all its defaults to this file, and exit")
	process.BoolVar(&o.cleanup, "cleanup", false, "remove everything that slipstream and kube-proxy have programmed, as 'slipstream cleanup --kube-proxy --force' does, and exit")
	process.BoolVar(&o.initOnly, "init-only", false, "set the kernel parameters that need full privileges, and exit")
	process.StringVar(&o.version, "version", "false", "true or raw: print the version and exit")
	process.Lookup("version").NoOptDefVal = "true"
	// Flags of cAdvisor that kube-proxy registers by accident.
	process.String("boot-id-file", "", "no effect")
	process.String("machine-id-file", "", "no effect")
	addOwn(all, &o.config.Slipstream)
	logsapi.AddFlags(&k.Logging, all.FlagSet(inLogs))
	for _, set := range all.FlagSets {
		fs.AddFlagSet(set)
	}
	_ = cmd.RegisterFlagCompletionFunc("proxy-mode", cobra.FixedCompletions(modeNames(), cobra.ShellCompDirectiveNoFileComp))
	cmd.SetUsageFunc(func(cmd *cobra.Command) error {
		out := cmd.OutOrStderr()
		fmt.Fprintf(out, "Usage:\n  %s\n", cmd.UseLine())
		if cmd.HasExample() {
			fmt.Fprintf(out, "\nExamples:\n%s\n", cmd.Example)
		}
		for _, section := range all.Order {
			if set := all.FlagSets[section]; set.HasAvailableFlags() {
				fmt.Fprintf(out, "\n%s:\n%s", section, set.FlagUsagesWrapped(120))
			}
		}
		return nil
	})
	return all
}

func addOwn(all *cliflag.NamedFlagSets, c *config.SlipstreamConfiguration) {
	fs := all.FlagSet(inObjects)
	fs.StringVar(&c.Manifests, "manifests", c.Manifests, "directory of manifests to read objects from, instead of the Kubernetes API")
	fs = all.FlagSet(inServices)
	fs.StringVar(&c.Scheduler, "scheduler", c.Scheduler, "how endpoints are chosen where the annotation slipstream.io/scheduler of a Service does not say: random (the default), rr, maglev, nearest and others, in nftables mode")
	fs.StringVar(&c.ServiceAnnotations, "service-annotations", c.ServiceAnnotations, "in which Namespaces slipstream.io/* annotations of Services, EndpointSlices and pods count: all (the default), none, or a selector of the Namespaces' labels")
	fs.StringSliceVar(&c.ExternalIPRanges, "external-ip-ranges", c.ExternalIPRanges, "ranges of addresses in which spec.externalIPs of Services count, such as 192.0.2.0/24,2001:db8::/64; all by default")
	fs.IntVar(&c.NamespaceSlots, "namespace-slots", c.NamespaceSlots, "slots of Maglev tables and weights that annotations may give the Services of a namespace (default 524288)")
	fs.IntVar(&c.NamespaceElements, "namespace-elements", c.NamespaceElements, "frontends, source ranges of frontends and endpoints that the Services of a namespace may have, besides a 256th for each (default 65536)")
	fs.IntVar(&c.MaglevTableSize, "maglev-table-size", c.MaglevTableSize, "largest number of slots of a Maglev table: 251, 1021, 4093, 16381 (the default) or 65521")
	fs = all.FlagSet(inPaths)
	fs.StringVar(&c.SocketLoadBalancing, "socket-load-balancing", c.SocketLoadBalancing, "which connections of pods and processes of this node are connected straight to an endpoint, so that no packet is translated: off, or tcp (needs cgroup v2)")
	fs.StringVar(&c.SocketExcludePods, "socket-exclude-pods", c.SocketExcludePods, `pods of this node whose connections --socket-load-balancing leaves alone, as a CEL expression over pod.namespace, .name, .labels and .annotations, such as 'pod.namespace == "mesh"'`)
	addFastPath(fs, &c.FastPath, offloadThreshold)
	fs = all.FlagSet(inTiming)
	fs.Var(period{&c.MinSyncPeriod}, "min-sync-period", "least time between two updates of the kernel; the first change after a quiet time does not wait (default "+config.DefaultMinSyncPeriod.String()+")")
	fs.Var(period{&c.CheckPeriod}, "check-period", "how often to check whether the ruleset was modified externally")
	fs.Var(period{&c.VerifyPeriod}, "verify-period", "how often to compare the frontends, endpoints, chains and rules in the kernel with the desired ones in the background, as 'slipstream verify' does, and repair differences; 0 to disable")
	fs.BoolVar(&c.ResetDeletedNodes, "reset-deleted-nodes", c.ResetDeletedNodes, "reset TCP connections to endpoints of Nodes that were deleted, instead of letting them time out; all Nodes are watched for it")
	fs = all.FlagSet(inServing)
	fs.StringVar(&c.StatusSocket, "status-socket", c.StatusSocket, "path of the Unix socket for 'slipstream status', 'services', 'top' and 'explain', which only root can use")
	fs.StringVar(&c.PodSocket, "pod-socket", c.PodSocket, "path of the Unix socket for 'slipstream drained' in pods, such as "+config.PodSocket+"; empty to disable")
	fs.StringVar(&c.UIBindAddress, "ui-bind-address", c.UIBindAddress, "IP address and port of a web page with status, Services and explanations, which all that can connect may read unless --http-authorization is api, such as 127.0.0.1:10280; empty to disable")
	fs.StringVar(&c.TLSCertFile, "tls-cert-file", c.TLSCertFile, "certificate for TLS on --metrics-bind-address and --ui-bind-address; empty for plain HTTP")
	fs.StringVar(&c.TLSPrivateKeyFile, "tls-private-key-file", c.TLSPrivateKeyFile, "private key of --tls-cert-file")
	fs.StringVar(&c.HTTPAuthorization, "http-authorization", c.HTTPAuthorization, "who may read --metrics-bind-address and --ui-bind-address: none, all that can connect (the default), or api, those to whose token the API server allows it (needs --tls-cert-file)")
	fs.BoolVar(&c.ServiceMetrics, "service-metrics", c.ServiceMetrics, "count connections and bytes by Service for the metrics slipstream_service_*; costs an event of the kernel for each connection that ends")
}

// period is a flag for an optional period.
type period struct{ to **metav1.Duration }

func (p period) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err == nil {
		*p.to = &metav1.Duration{Duration: d}
	}
	return err
}

func (p period) String() string {
	if p.to == nil || *p.to == nil {
		return ""
	}
	return (*p.to).Duration.String()
}

func (p period) Type() string { return "duration" }

func addAPI(all *cliflag.NamedFlagSets, k *kubeproxy.KubeProxyConfiguration) {
	c, fs := &k.ClientConnection, all.FlagSet(inObjects)
	fs.StringVar(&c.Kubeconfig, "kubeconfig", "", "kubeconfig file for the Kubernetes API")
	fs.StringVar(&c.ContentType, "kube-api-content-type", c.ContentType, "media type of requests to the Kubernetes API")
	fs.Float32Var(&c.QPS, "kube-api-qps", c.QPS, "requests per second to the Kubernetes API, on average")
	fs.Int32Var(&c.Burst, "kube-api-burst", c.Burst, "burst of requests to the Kubernetes API")
	all.FlagSet(inProcess).DurationVar(&k.ConfigSyncPeriod.Duration, "config-sync-period", k.ConfigSyncPeriod.Duration, "no effect: watched objects are not delivered again periodically")
	all.FlagSet(inGeneral).Var(cliflag.NewMapStringBool(&k.FeatureGates), "feature-gates", "feature gates, comma-separated, such as "+config.Acceleration+"=false, which disables the fast path (default: true); docs/configuration.md lists kube-proxy's gates that have an effect")
}

func (o *runFlags) addServing(all *cliflag.NamedFlagSets, k *kubeproxy.KubeProxyConfiguration) {
	fs := all.FlagSet(inServing)
	fs.StringVar(&o.healthz, "healthz-bind-address", k.HealthzBindAddress, "address and port to serve /healthz and /livez on")
	fs.StringVar(&o.metrics, "metrics-bind-address", k.MetricsBindAddress, "address and port to serve /metrics on; empty to disable")
	fs.Int32Var(&o.healthzPort, "healthz-port", 10256, "port of --healthz-bind-address if that has none; 0 to disable")
	fs.Int32Var(&o.metricsPort, "metrics-port", 10249, "port of --metrics-bind-address if that has none; 0 to disable")
	_ = fs.MarkDeprecated("healthz-port", "use --healthz-bind-address")
	_ = fs.MarkDeprecated("metrics-port", "use --metrics-bind-address")
	fs.BoolVar(&k.BindAddressHardFail, "bind-address-hard-fail", false, "exit if an address cannot be listened on, instead of retrying")
	fs.BoolVar(&k.EnableProfiling, "profiling", false, "serve /debug/pprof/ on the metrics address")
	all.FlagSet(inProcess).StringVar(&k.ShowHiddenMetricsForVersion, "show-hidden-metrics-for-version", "", "no effect: there are no hidden metrics")
	all.FlagSet(inProcess).Int32Var(k.OOMScoreAdj, "oom-score-adj", *k.OOMScoreAdj, "OOM score adjustment of this process, from -1000 (killed last) to 1000 (killed first)")
}

func (o *runFlags) addMode(all *cliflag.NamedFlagSets, k *kubeproxy.KubeProxyConfiguration) {
	all.FlagSet(inGeneral).StringVar((*string)(&k.Mode), "proxy-mode", "", "proxy mode: "+strings.Join(modeNames(), ", ")+" (default: nftables)")
	fs := all.FlagSet(inMasquerade)
	fs.BoolVar(&k.IPTables.MasqueradeAll, "masquerade-all", false, "masquerade all traffic to ClusterIPs")
	fs.Int32Var(k.NFTables.MasqueradeBit, "nftables-masquerade-bit", *k.NFTables.MasqueradeBit, "bit of the packet mark, 0 to 31, for packets to be masqueraded, in nftables mode")
	fs.Int32Var(k.IPTables.MasqueradeBit, "iptables-masquerade-bit", *k.IPTables.MasqueradeBit, "bit of the packet mark, 0 to 31, for packets to be masqueraded, in iptables mode")
	all.FlagSet(inServices).BoolVar(k.IPTables.LocalhostNodePorts, "iptables-localhost-nodeports", true, "answer on NodePorts of IPv4 loopback addresses, in iptables mode")
}

func (o *runFlags) addTiming(fs *pflag.FlagSet, k *kubeproxy.KubeProxyConfiguration) {
	fs.DurationVar(&o.syncPeriod, "iptables-sync-period", k.IPTables.SyncPeriod.Duration, "half the time after which a pending change makes this proxy unhealthy, also in nftables mode; in iptables mode also how often the complete ruleset is written at most")
	fs.DurationVar(&o.minSyncPeriod, "iptables-min-sync-period", k.IPTables.MinSyncPeriod.Duration, "least time between two updates of the kernel, also in nftables mode; 0 for the default, which is "+config.DefaultMinSyncPeriod.String()+" there")
	fs.DurationVar(&k.IPVS.SyncPeriod.Duration, "ipvs-sync-period", k.IPVS.SyncPeriod.Duration, "half the time after which a pending change makes this proxy unhealthy"+onlyIPVS)
	fs.DurationVar(&k.IPVS.MinSyncPeriod.Duration, "ipvs-min-sync-period", 0, "least time between two updates of the kernel"+onlyIPVS)
}

// onlyIPVS is said of flags that IPVS mode alone has.
const onlyIPVS = " (IPVS mode only)"

func addIPVS(fs *pflag.FlagSet, c *kubeproxy.KubeProxyIPVSConfiguration) {
	fs.StringVar(&c.Scheduler, "ipvs-scheduler", "", "IPVS scheduler; in nftables mode, the algorithm in its place")
	fs.StringSliceVar(&c.ExcludeCIDRs, "ipvs-exclude-cidrs", nil, "address ranges of IPVS virtual servers that do not belong to kube-proxy and are not removed")
	fs.BoolVar(&c.StrictARP, "ipvs-strict-arp", false, "answer ARP requests only on the interface that has the address"+onlyIPVS)
	fs.DurationVar(&c.TCPTimeout.Duration, "ipvs-tcp-timeout", 0, "how long IPVS keeps idle TCP connections; 0 to keep the current value"+onlyIPVS)
	fs.DurationVar(&c.TCPFinTimeout.Duration, "ipvs-tcpfin-timeout", 0, "how long IPVS keeps TCP connections after a FIN; 0 to keep the current value"+onlyIPVS)
	fs.DurationVar(&c.UDPTimeout.Duration, "ipvs-udp-timeout", 0, "how long IPVS keeps UDP flows; 0 to keep the current value"+onlyIPVS)
}

func addTraffic(all *cliflag.NamedFlagSets, k *kubeproxy.KubeProxyConfiguration) {
	fs := all.FlagSet(inMasquerade)
	fs.StringVar((*string)(&k.DetectLocalMode), "detect-local-mode", "", "how to recognize traffic from pods of this node: ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix (default: ClusterCIDR)")
	fs.StringVar(&k.ClusterCIDR, "cluster-cidr", "", "range of pod addresses, or two of different families, comma-separated")
	fs.StringVar(&k.DetectLocal.BridgeInterface, "pod-bridge-interface", "", "bridge of this node's pods")
	fs.StringVar(&k.DetectLocal.InterfaceNamePrefix, "pod-interface-name-prefix", "", "prefix of the names of this node's pod interfaces")
	fs = all.FlagSet(inServices)
	fs.StringVar(&k.BindAddress, "bind-address", k.BindAddress, "address of this node, instead of the Node object's address of the same family; 0.0.0.0 or :: for the Node object's")
	addNodePorts(fs, &k.NodePortAddresses, config.Primary+"; "+config.All+" in iptables mode, and if objects are read from the Kubernetes API and no mode is set")
}

func addConntrack(fs *pflag.FlagSet, c *kubeproxy.KubeProxyConntrackConfiguration) {
	fs.Int32Var(c.MaxPerCore, "conntrack-max-per-core", *c.MaxPerCore, "conntrack entries per CPU; 0 to keep the current limit")
	fs.Int32Var(c.Min, "conntrack-min", *c.Min, "least number of conntrack entries, unless --conntrack-max-per-core is 0")
	timeout := func(d *metav1.Duration, name, of string) {
		fs.DurationVar(&d.Duration, name, d.Duration, "how long conntrack keeps "+of+"; 0 to keep the current value")
	}
	timeout(c.TCPEstablishedTimeout, "conntrack-tcp-timeout-established", "idle established TCP connections")
	timeout(c.TCPCloseWaitTimeout, "conntrack-tcp-timeout-close-wait", "TCP connections in state CLOSE_WAIT")
	timeout(&c.UDPTimeout, "conntrack-udp-timeout", "UDP flows without replies")
	timeout(&c.UDPStreamTimeout, "conntrack-udp-timeout-stream", "UDP flows with replies")
	fs.BoolVar(&c.TCPBeLiberal, "conntrack-tcp-be-liberal", false, "accept TCP packets outside of the window in conntrack")
}

// otherNames maps flags to fields of other names.
var otherNames = map[string]string{
	"conntrack-tcp-timeout-close-wait":  "conntrack.tcpCloseWaitTimeout",
	"conntrack-tcp-timeout-established": "conntrack.tcpEstablishedTimeout",
	"conntrack-udp-timeout-stream":      "conntrack.udpStreamTimeout",
	"kube-api-burst":                    "clientConnection.burst",
	"kube-api-content-type":             "clientConnection.contentType",
	"kube-api-qps":                      "clientConnection.qps",
	"log-flush-frequency":               "logging.flushFrequency",
	"log-json-info-buffer-size":         "logging.options.json.infoBufferSize",
	"log-json-split-stream":             "logging.options.json.splitStream",
	"log-text-info-buffer-size":         "logging.options.text.infoBufferSize",
	"log-text-split-stream":             "logging.options.text.splitStream",
	"pod-bridge-interface":              "detectLocal.bridgeInterface",
	"pod-interface-name-prefix":         "detectLocal.interfaceNamePrefix",
	"profiling":                         "enableProfiling",
	"proxy-mode":                        "mode",
	"v":                                 "logging.verbosity",
}

// sets reports whether a flag sets a field. Most flags have the name of their field, some without its block:
// --conntrack-max-per-core sets conntrack.maxPerCore, --scope sets fastPath.scope.
func sets(flag, field string) bool {
	if flag == fastPathThreshold {
		flag = offloadThreshold
	}
	if other, ok := otherNames[flag]; ok {
		return other == field
	}
	return slices.ContainsFunc([]string{"", "fastPath", "clientConnection", "iptables", "logging"}, func(block string) bool {
		return strings.EqualFold(block+strings.ReplaceAll(flag, "-", ""), strings.ReplaceAll(field, ".", ""))
	})
}

// complete returns a valid configuration from the file and the flags. Notes are for the log.
func (o *runFlags) complete(fs *pflag.FlagSet) (c *config.Config, notes []config.Note, err error) {
	if o.file != "" {
		c, notes, err = o.fromFile(fs)
	} else {
		c, notes = o.fromFlags(fs)
	}
	if err != nil {
		return nil, nil, err
	}
	if name := strings.TrimSpace(o.hostname); name != "" {
		c.KubeProxy.HostnameOverride = strings.ToLower(name)
	} else if o.hostname != "" {
		return nil, nil, fmt.Errorf("--hostname-override: %q is not a valid name", o.hostname)
	}
	if c.Slipstream.Manifests != "" && o.master != "" {
		return nil, nil, errors.New("--manifests and --master cannot be combined")
	}
	if c.Slipstream.Manifests != "" && c.Slipstream.FastPath.ExcludePods != "" {
		return nil, nil, errPodsOfAPI
	}
	if c.Slipstream.Manifests != "" && c.Slipstream.SocketExcludePods != "" {
		return nil, nil, errors.New("--socket-exclude-pods (socketExcludePods)" + needPodsOfAPI)
	}
	errs := c.Validate()
	_, more := parseFastPath(&c.Slipstream.FastPath, field.NewPath("fastPath"))
	errs = append(errs, more...)
	if text := c.Slipstream.SocketExcludePods; text != "" {
		if _, err := expression.Pods(text); err != nil {
			errs = append(errs, field.Invalid(field.NewPath("socketExcludePods"), text, err.Error()))
		}
	}
	ignored := &pflag.FlagSet{}
	if o.file != "" {
		ignored = &o.upstream
	}
	for _, e := range errs {
		e.Field = flagFor(fs, ignored, e.Field)
	}
	return c, append(notes, c.Notes()...), errs.ToAggregate()
}

// fromFile reads the configuration from a file, and from the flags that override it.
func (o *runFlags) fromFile(fs *pflag.FlagSet) (*config.Config, []config.Note, error) {
	c, notes, err := config.Load(o.file)
	if err != nil {
		return nil, nil, fmt.Errorf("--config: %w", err)
	}
	fromFile := c.KubeProxy.Logging.VModule
	c.KubeProxy.Logging.VModule = nil
	var own cliflag.NamedFlagSets
	logsapi.AddFlags(&c.KubeProxy.Logging, own.FlagSet(inLogs))
	addOwn(&own, &c.Slipstream)
	fs.Visit(func(f *pflag.Flag) {
		if o.upstream.Lookup(f.Name) != nil {
			notes = append(notes, config.Note{Field: "--" + f.Name, Text: "is ignored with --config"})
		}
		for _, set := range own.FlagSets {
			to := set.Lookup(f.Name)
			if to == nil {
				continue
			}
			if list, is := f.Value.(pflag.SliceValue); is { // its text is not what Set takes
				err = errors.Join(err, to.Value.(pflag.SliceValue).Replace(list.GetSlice()))
			} else {
				err = errors.Join(err, to.Value.Set(f.Value.String()))
			}
		}
	})
	c.KubeProxy.Logging.VModule = append(c.KubeProxy.Logging.VModule, fromFile...)
	return c, notes, err
}

func (o *runFlags) fromFlags(fs *pflag.FlagSet) (*config.Config, []config.Note) {
	c := o.config
	k := &c.KubeProxy
	given := fs.Changed
	alone := c.Slipstream.Manifests != ""
	if alone && k.Mode == "" {
		k.Mode = config.NFTables
	}
	notes := o.unused(fs)
	if k.Mode == "" {
		notes = append(notes, config.Note{Field: "--proxy-mode", Text: config.ModeUnset})
		if given("iptables-masquerade-bit") && !given("nftables-masquerade-bit") {
			k.NFTables.MasqueradeBit = k.IPTables.MasqueradeBit
		}
	}
	k.NFTables.MasqueradeAll = k.IPTables.MasqueradeAll
	// The flags for iptables mode also apply to nftables mode, which has none of its own.
	if given("iptables-sync-period") {
		k.IPTables.SyncPeriod.Duration, k.NFTables.SyncPeriod.Duration = o.syncPeriod, o.syncPeriod
	}
	if given("iptables-min-sync-period") && o.minSyncPeriod != 0 {
		k.IPTables.MinSyncPeriod.Duration, k.NFTables.MinSyncPeriod.Duration = o.minSyncPeriod, o.minSyncPeriod
	}
	c.Complete()
	k.HealthzBindAddress = listenAddress(o.healthz, k.HealthzBindAddress, o.healthzPort)
	k.MetricsBindAddress = listenAddress(o.metrics, "", o.metricsPort)
	if alone {
		standAlone(k, given)
	}
	return c, notes
}

// listenAddress returns the address to listen on from a flag and the deprecated flag for
// the port. An empty address stands for the default.
func listenAddress(address, byDefault string, port int32) string {
	if port == 0 {
		return ""
	}
	return config.WithPort(cmp.Or(address, byDefault), int(port))
}

// flagFor returns the flag that has set a field, or the path if no flag has.
func flagFor(fs, ignored *pflag.FlagSet, path string) string {
	stem, index := path, ""
	if at := strings.IndexByte(path, '['); at >= 0 {
		stem, index = path[:at], path[at:]
	}
	if name, isPeriod := strings.CutPrefix(stem, "nftables."); isPeriod && strings.HasSuffix(name, "yncPeriod") {
		stem = "iptables." + name // set by the flags for iptables mode
	}
	fs.Visit(func(f *pflag.Flag) {
		if ignored.Lookup(f.Name) == nil && sets(f.Name, stem) {
			path = "--" + f.Name + index
		}
	})
	return path
}

func (o *runFlags) writeConfig(c *config.Config) error {
	data, err := c.YAML()
	if err == nil {
		err = os.WriteFile(o.writeTo, data, 0o644)
	}
	if err != nil {
		return fmt.Errorf("--write-config-to: %w", err)
	}
	return nil
}

func (o *runFlags) unused(fs *pflag.FlagSet) (notes []config.Note) {
	k := &o.config.KubeProxy
	fs.Visit(func(f *pflag.Flag) {
		if why := o.whyUnused(f.Name, string(k.Mode)); why != "" {
			notes = append(notes, config.Note{Field: "--" + f.Name, Text: "has no effect" + why})
		}
	})
	return notes
}

// whyUnused returns why a flag has no effect in a mode, or "" if it has one.
func (o *runFlags) whyUnused(name, mode string) string {
	t := config.TraitsOf(mode)
	switch {
	case name == "boot-id-file" || name == "machine-id-file":
		return ": kube-proxy dropped it in v1.37"
	case name == "config-sync-period":
		return ": watched objects are not delivered again periodically"
	case name == "show-hidden-metrics-for-version":
		return ", as there are no hidden metrics"
	case name == "iptables-localhost-nodeports" && !t.KernelLocalhost && *o.config.KubeProxy.IPTables.LocalhostNodePorts:
		return " in nftables mode, which has the feature gate KubeProxyNFTablesLocalhostNodePorts"
	case name == "iptables-masquerade-bit" && t.NFTablesBlock:
		return " in nftables mode, which has --nftables-masquerade-bit"
	case name == "nftables-masquerade-bit" && t.IPTables:
		return " in iptables mode, which has --iptables-masquerade-bit"
	case name == "ipvs-scheduler" && (t.Algorithms || mode == ""): // see config.Config.Balancing
	case strings.HasPrefix(name, "ipvs-") && name != "ipvs-exclude-cidrs" && !t.VirtualServers:
		return " in modes other than ipvs"
	}
	return ""
}

// standAlone changes the defaults for a proxy with manifests and without a configuration
// file: unless flags say otherwise, it serves nothing and sets no parameters of the kernel
// or of this process.
func standAlone(k *kubeproxy.KubeProxyConfiguration, given func(flag string) bool) {
	for flag, leave := range map[string]func(){
		"healthz-bind-address":              func() { k.HealthzBindAddress = "" },
		"metrics-bind-address":              func() { k.MetricsBindAddress = "" },
		"oom-score-adj":                     func() { k.OOMScoreAdj = nil },
		"conntrack-tcp-timeout-established": func() { k.Conntrack.TCPEstablishedTimeout.Duration = 0 },
		"conntrack-tcp-timeout-close-wait":  func() { k.Conntrack.TCPCloseWaitTimeout.Duration = 0 },
	} {
		if !given(flag) {
			leave()
		}
	}
	if !given("conntrack-max-per-core") && !given("conntrack-min") {
		k.Conntrack.MaxPerCore = new(int32)
	}
}
