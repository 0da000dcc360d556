// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/iptables"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/ipvs"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/expression"
	"github.com/slipstream-proxy/slipstream/internal/feature"
	"github.com/slipstream-proxy/slipstream/internal/logonce"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/node/conntrack"
	"github.com/slipstream-proxy/slipstream/internal/node/load"
	"github.com/slipstream-proxy/slipstream/internal/node/loopback"
	"github.com/slipstream-proxy/slipstream/internal/node/netif"
	"github.com/slipstream-proxy/slipstream/internal/node/sysctl"
	"github.com/slipstream-proxy/slipstream/internal/node/takeover"
	"github.com/slipstream-proxy/slipstream/internal/observe/events"
	"github.com/slipstream-proxy/slipstream/internal/observe/healthcheck"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/observe/page"
	"github.com/slipstream-proxy/slipstream/internal/observe/see"
	"github.com/slipstream-proxy/slipstream/internal/observe/server"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"github.com/slipstream-proxy/slipstream/internal/socket"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/internal/source/api"
	"github.com/slipstream-proxy/slipstream/internal/source/manifest"
	"github.com/spf13/pflag"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// app is a running Service proxy. The first three fields are its inputs.
type app struct {
	config *config.Config // valid
	master string
	flags  map[string]string // for /flagz

	log     klog.Logger
	node    string
	metrics *metrics.Metrics
	objects source.Source
	client  *api.Client // nil if objects come from manifests
	events  events.Recorder

	dataplane instance
	desired   desired.Config
	fast      *fastpath.Controller // nil without a fast path
	sockets   *socket.Balancer     // nil without socketLoadBalancing
	flows     *conntrack.Cleaner
	loads     *load.Counter
	view      see.View

	closers []func() error // called in reverse order
}

func (s *app) onClose(f func() error) { s.closers = append(s.closers, f) }
func (s *app) onStop(f func())        { s.onClose(func() error { f(); return nil }) }

// serve runs the Service proxy until ctx ends.
func serve(ctx context.Context, s *app) (err error) {
	proxy.LimitGarbage()
	s.log = klog.FromContext(ctx)
	s.metrics = metrics.New()
	s.metrics.OnBuild(version)
	s.config.Gates().(interface{ AddMetrics() }).AddMetrics() // kubernetes_feature_enabled, as kube-proxy does
	defer func() {
		for _, f := range slices.Backward(s.closers) {
			err = errors.Join(err, f())
		}
	}()
	lock, err := lockInstance()
	if err != nil {
		return err
	}
	s.onClose(lock.Close)
	for _, open := range []func(context.Context) error{s.openSource, s.openDataplane, s.openSockets, s.openFastPath, s.openConntrack} {
		if err := open(ctx); err != nil {
			if ctx.Err() != nil {
				return nil // stopped while it started
			}
			return err
		}
	}
	s.tuneNode(ctx)
	s.log.Info("Starting", "version", versionText(), "node", s.node, "mode", s.config.Mode(), "manifests", s.config.Slipstream.Manifests)
	s.events.Normal(events.Starting, "")
	return s.run(ctx)
}

// logProblems logs errors of the source of objects: an object, or a part of one, that is
// not applied, or a failed request.
func logProblems(log klog.Logger) func(error) {
	return func(err error) { log.Error(err, "Problem with the source of objects") }
}

func (s *app) problem(err error) {
	logProblems(s.log)(err)
	s.view.Warnings.Add(see.SourceProblem, err.Error())
	s.metrics.ObjectProblems.Inc()
}

func (s *app) openSource(ctx context.Context) (err error) {
	warnings := &see.Warnings{Recorder: events.Log(ctx)}
	s.events, s.view.Warnings = warnings, warnings
	if s.node, err = nodeName(s.config.KubeProxy.HostnameOverride); err != nil {
		return err
	}
	if s.objects, s.client, err = newSource(s.config, s.master, s.node, s.problem); err != nil {
		return err
	}
	if s.client == nil {
		return nil
	}
	podClient, err := s.client.Apart().For(corev1.SchemeGroupVersion, &corev1.Pod{}, &corev1.PodList{})
	if err != nil {
		return err
	}
	s.view.Pods = pods(podClient)
	client, err := s.client.For(eventsv1.SchemeGroupVersion, &eventsv1.Event{})
	if err != nil {
		return err
	}
	var stop func()
	warnings.Recorder, stop = events.OnNode(ctx, client, s.node)
	s.onStop(stop)
	return nil
}

func (s *app) openDataplane(ctx context.Context) error {
	b, without, err := openMode(ctx, s.config, instance.Probe, s.metrics, func(note string) {
		s.view.Missing = append(s.view.Missing, note)
		s.events.Warning(events.FeatureMissing, note)
	})
	if err != nil {
		return err
	}
	if s.view.Without = without; without == (desired.Families{}) {
		s.view.Missing = nil // of a mode that is not used
	}
	s.dataplane = b
	if s.desired, err = desiredOn(b, s.config, s.node, without); err != nil {
		s.events.Warning(events.FeatureMissing, "Endpoints are chosen at random: "+err.Error())
	}
	if s.client != nil {
		s.desired.APIServers = s.client.Server()
	}
	s.loads = load.New(0, s.config.Mode() == config.IPVS)
	s.desired.Loads = s.loads
	s.onClose(b.Close)
	s.metrics.OnMode(s.config.Traits().Metrics)
	if b.count != nil {
		b.count(s.metrics)
	}
	if b := b.table; b != nil {
		s.onStop(inBackground(ctx, func(ctx context.Context) { b.Clients().Run(ctx, s.affinityFull) }))
		if s.config.HandlesLocalhostNodePorts() {
			s.metrics.OnLocalhostNodePorts(b.RefusedPackets)
		}
	}
	if s.config.ModeIsDefault() {
		s.events.Warning(events.DefaultMode, fmt.Sprintf("No mode is set: using %s. kube-proxy's default is iptables, and nftables from Kubernetes 1.40 on. Set the mode to keep it.", s.config.Mode()))
	}
	return nil
}

// affinityFull reports that a Service has so many clients that new ones get no session affinity.
func (s *app) affinityFull(service types.NamespacedName, family desired.Family) {
	s.events.OnService(service, events.SessionAffinityFull, fmt.Sprintf("Node %s: almost as many %s clients have session affinity as the Service may have there; further ones get none", s.node, family))
}

// openSockets opens the programs of sockets, or removes them. Services work without them.
func (s *app) openSockets(ctx context.Context) (err error) {
	if s.config.Slipstream.SocketLoadBalancing == config.SocketsOff {
		if err := socket.Remove(0); err != nil {
			s.events.Warning(events.SocketsUnavailable, "The programs of sockets could not be removed: "+err.Error())
		}
		return nil
	}
	s.metrics.OnSockets(func() (attached bool, connections uint64, namespaces int, err error) {
		if s.sockets != nil { // else none is attached, and the alert says so
			var stats socket.Stats
			stats, err = s.sockets.Stats()
			attached, connections, namespaces = stats.Attached, stats.Connections, stats.Namespaces
		}
		return attached, connections, namespaces, err
	})
	if s.sockets, err = socket.New(socket.Options{Selected: s.desired.DirectPod != nil}); err != nil {
		s.sockets = nil
		err = errors.Join(err, socket.Remove(0)) // of an earlier run
		s.events.Warning(events.SocketsUnavailable, "Connections to Services are translated, as socketLoadBalancing is not possible: "+err.Error())
		return nil
	}
	s.onClose(s.sockets.Close)
	s.onStop(inBackground(ctx, s.sockets.Run))
	stats, _ := s.sockets.Stats()
	s.log.Info("Connecting sockets straight to endpoints", "cgroup", stats.CGroup)
	return nil
}

// openFastPath opens the fast path. Services work without it.
func (s *app) openFastPath(ctx context.Context) (err error) {
	settings := s.config.FastPath()
	fast, _ := parseFastPath(&settings, nil) // valid
	if b := s.dataplane.table; b != nil {
		fast.Commits = b.Commits()
	}
	fast.NoHardware = func(err error) { s.events.Warning(events.HardwareOffloadUnavailable, err.Error()) }
	switch s.fast, err = fastpath.New(fast); {
	case feature.Lacks(err):
		s.fast, s.view.NoFastPath = nil, err.Error()
		s.events.Normal(events.FastPathUnavailable, "No fast path, so all connections stay on the slow path: "+err.Error())
	case err != nil:
		s.fast, s.view.NoFastPath = nil, err.Error()
		s.events.Warning(events.FailedToAccelerate, "No fast path: "+err.Error())
	}
	s.metrics.OnFastPath(fastPathMetrics(s.fast))
	if s.fast == nil {
		return nil
	}
	if offloaded, err := offloadMetrics(ctx, s.metrics, s.fast); err == nil {
		s.onClose(offloaded.Close)
	} else {
		s.log.Error(err, "Could not count connections on the fast path by Service")
	}
	s.onClose(runFastPath(ctx, s.fast))
	return nil
}

// openConntrack makes the Cleaner that deletes stale conntrack entries, including those of
// connections on the fast path.
func (s *app) openConntrack(ctx context.Context) error {
	conn, err := conntrack.New(0)
	if err != nil {
		return err
	}
	s.onClose(conn.Close)
	conn.Observe = s.metrics.ConntrackCleaned
	clean := conntrack.CleanFunc(conn.Clean)
	if s.fast != nil {
		clean = s.fast.Cleaning(clean)
	}
	var errs logonce.Errors
	s.flows = conntrack.NewCleaner(ctx, clean, func(stats conntrack.Stats, err error) {
		if ctx.Err() == nil {
			errs.Log(s.log, err, "Could not delete all stale conntrack entries")
			if err != nil {
				s.metrics.ConntrackFailures.Inc()
			}
		}
		if stats.Deleted > 0 {
			s.log.V(2).Info("Deleted stale conntrack entries", "entries", stats.Deleted)
		}
	})
	s.onStop(s.flows.Close)
	return nil
}

func (s *app) tuneNode(ctx context.Context) {
	if score := s.config.KubeProxy.OOMScoreAdj; score != nil { // lower values need CAP_SYS_RESOURCE
		if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(int(*score))), 0); err != nil {
			s.log.V(2).Info("Could not set oom_score_adj", "score", *score, "reason", err.Error())
		}
	}
	if err := s.config.Conntrack(sysctl.CPUs()).Apply(ctx); err != nil {
		s.events.Warning(events.FailedToTuneConntrack, err.Error())
	}
	if err := localhostNodePorts(ctx, s.desired.NodePorts); err != nil {
		s.events.Warning(events.FailedToSetSysctl, err.Error())
	}
}

// run runs the proxy, health checks and the HTTP servers.
func (s *app) run(ctx context.Context) error {
	c := s.config
	var p *proxy.Proxy
	checks := healthcheck.New(ctx, healthcheck.Options{
		Healthy: func() bool { return p.Healthy() },
		Report:  s.reportOfService(events.FailedToStartServiceHealthcheck),
	})
	defer checks.Close()
	readers := nfnl.OpenReaders()
	defer func() { _ = readers.Close() }()
	options := proxy.Options{
		MinSyncPeriod: c.MinSyncPeriod(),
		Readers:       readers.Look,
		CheckPeriod:   c.Slipstream.CheckPeriod.Duration,
		VerifyPeriod:  c.Slipstream.VerifyPeriod.Duration,
		OpenReader:    func(ctx context.Context) (proxy.Reader, error) { return s.dataplane.openReader(ctx, c) },
		NodeAddresses: netif.Namespace(0).WatchAddresses,

		ResetDeletedNodes: c.Slipstream.ResetDeletedNodes,
		HealthChecks:      checks,
		StaleFlows:        s.flows,
		FlowDestinations:  conntrack.Destinations,
		Loads:             s.loads,
		Probe:             func(ctx context.Context, to desired.Target, dns bool) error { return load.Probe(ctx, 0, to, dns) },
		NodeName:          s.node,
		NodeRequired:      s.client != nil,
		PodCIDRs:          c.KubeProxy.DetectLocalMode == "NodeCIDR",
		LateAfter:         c.LateAfter(),
		Events:            s.events,
		Ready:             s.removeLeftovers,
	}
	if handled := loopbackNodePorts(c); slices.Contains(handled[:], desired.LoopbackRelayed) {
		relays := s.newRelays(ctx)
		defer relays.Close()
		options.Relays = relays
	}
	if _, replaced := s.leftovers(ctx); replaced {
		if err := takeover.Prepare(); err != nil {
			s.staysBehind(err)
		}
	}
	if s.fast != nil {
		options.FastPath = s.fast
		options.PolicyChanged = watchForFastPath(s.objects, s.fast)
	}
	if s.sockets != nil {
		options.Sockets = s.sockets
	}
	if options.VerifyPeriod > 0 {
		s.metrics.OnVerify()
	}
	p = proxy.New(s.objects, desired.New(s.desired), s.dataplane.programmer, s.metrics, options) // which may be a FlowEnder
	defer s.serveView(ctx, p)()
	defer s.serveDrained(ctx, p)()
	return s.serveHTTP(ctx, p)
}

// reportOfService returns a function that reports what cannot be served of a Service.
func (s *app) reportOfService(reason string) func(types.NamespacedName, error) {
	return func(service types.NamespacedName, err error) {
		s.events.OnService(service, reason, err.Error())
		s.metrics.ObjectProblems.Inc()
	}
}

// newRelays makes the server of NodePorts on loopback addresses in nftables mode.
func (s *app) newRelays(ctx context.Context) *loopback.Server {
	o := loopback.Options{
		Report:    s.reportOfService(events.FailedToServeLoopbackNodePort),
		Failed:    s.metrics.LoopbackFailed,
		Listening: s.metrics.LoopbackListeners,
	}
	o.UDPTimeout, o.UDPStreamTimeout = sysctl.UDPTimeouts()
	return loopback.New(ctx, o)
}

func (s *app) staysBehind(err error) { s.events.Warning(events.LeftoversStay, err.Error()) }

// removeLeftovers removes everything that earlier runs have programmed in other modes and,
// in a cluster, everything of kube-proxy. It returns when that is done, or ctx ends.
func (s *app) removeLeftovers(ctx context.Context) {
	var both sync.WaitGroup
	defer both.Wait()
	both.Go(func() { // until it succeeds, as the old rules may take precedence over the new ones
		fromSecondsToMinutes := wait.Backoff{Duration: 5 * time.Second, Factor: 2, Steps: 7, Cap: 5 * time.Minute}
		retryUntilSuccess(ctx, fromSecondsToMinutes, func() error { return removeModes(ctx, s.config.Mode()) }, s.staysBehind)
	})
	if o, _ := s.leftovers(ctx); s.client != nil || o.OnlyVirtualServers {
		o.Failed = s.staysBehind
		takeover.Run(ctx, o)
	}
}

// leftovers returns what to remove of kube-proxy and of IPVS mode, and whether virtual servers
// are among it. Outside of a cluster, kube-proxy may run beside this proxy.
func (s *app) leftovers(ctx context.Context) (o takeover.Options, virtualServers bool) {
	o = takeOverOptions(ctx, s.config.ExcludeCIDRs())
	if s.config.Traits().VirtualServers {
		o.KeepVirtualServers = true
		return o, false
	}
	if s.client == nil {
		owned, err := ipvs.Owned()
		if err != nil {
			s.staysBehind(err)
		}
		o.OnlyVirtualServers = owned && !takeover.HasSets()
		if owned && !o.OnlyVirtualServers { // it has taken over without a cleanup
			klog.FromContext(ctx).Info("Leaves interface kube-ipvs0 and virtual servers to kube-proxy, which has IP sets here")
		}
		return o, o.OnlyVirtualServers
	}
	return o, true
}

// desiredOn is desiredConfig for a dataplane. The error says why the dataplane lacks the configured
// algorithm, which [desired.Random] replaces then.
func desiredOn(b instance, c *config.Config, node string, without desired.Families) (desired.Config, error) {
	d := desiredConfig(c, node, without)
	d.Scheduler, d.Supports, d.NoLimits = b.scheduler, b.Supports, !c.Traits().PortRanges
	err := b.Supports(d.Balancing.Algorithm)
	if err != nil {
		d.Balancing.Algorithm = desired.Random
	}
	return d, err
}

// desiredConfig returns the part of a valid configuration for the desired state.
func desiredConfig(c *config.Config, node string, without desired.Families) desired.Config {
	balancing, _ := c.Balancing()                                        // an error is a note
	slowPathPod, _ := expression.Pods(c.Slipstream.FastPath.ExcludePods) // valid
	var directPod func(*corev1.Pod) bool
	if excluded, _ := expression.Pods(c.Slipstream.SocketExcludePods); excluded != nil { // valid
		directPod = func(p *corev1.Pod) bool { return !excluded(p) }
	}
	annotated, _ := c.Annotated() // valid
	d := desired.Config{
		Annotated:     annotated,
		NodeName:      node,
		NodeIP:        c.NodeIP(),
		NodePorts:     nodePorts(c),
		DetectLocal:   detectLocal(c),
		Without:       without,
		MasqueradeAll: c.MasqueradeAll(),
		NoExternalIPs: !c.AllowExternalIPs(),
		ExternalIPs:   collect.From(c.Slipstream.ExternalIPRanges, netip.MustParsePrefix), // they are valid
		Balancing:     balancing,
		MaxTable:      c.Slipstream.MaglevTableSize,

		NamespaceSlots:    c.Slipstream.NamespaceSlots,
		NamespaceElements: c.Slipstream.NamespaceElements,

		SlowPathPod: slowPathPod,
		DirectPod:   directPod,

		IPVS:              c.Traits().VirtualServers,
		NoRanges:          !c.Traits().PortRanges,
		LoopbackNodePorts: loopbackNodePorts(c),
	}
	if c.Traits().IPTables {
		d.NamespaceChange = math.MaxInt // each change costs as much as all rules do
	}
	return d
}

// nodeName returns the name of this node: override, or the host name in lower case, as
// kubelet registers it.
func nodeName(override string) (name string, err error) {
	if name = override; name == "" {
		if name, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("name of this node: %w", err)
		}
	}
	if name = strings.ToLower(strings.TrimSpace(name)); name == "" {
		return "", errors.New("the name of this node is empty: set --hostname-override")
	}
	return name, nil
}

// serveHTTP runs a proxy and its HTTP servers until ctx ends or one of them fails.
func (s *app) serveHTTP(ctx context.Context, p *proxy.Proxy) error {
	k := &s.config.KubeProxy
	var reviewer *server.Reviewer
	if s.config.Slipstream.HTTPAuthorization == config.AuthorizedByAPI {
		client := s.client.Apart() // anybody may cause requests
		who, err := client.For(authenticationv1.SchemeGroupVersion, &authenticationv1.TokenReview{})
		if err != nil {
			return err
		}
		may, err := client.For(authorizationv1.SchemeGroupVersion, &authorizationv1.SubjectAccessReview{})
		if err != nil {
			return err
		}
		reviewer = server.NewReviewer(who, may)
	}
	servers := server.New(server.Options{
		MetricsAddress: k.MetricsBindAddress,
		HealthzAddress: k.HealthzBindAddress,
		HardFail:       k.BindAddressHardFail,
		Profiling:      k.EnableProfiling,
		Mode:           s.config.Mode(),
		Version:        version,
		Configz:        map[string]any{"kubeproxy.config.k8s.io": k, "slipstream.config": &s.config.Slipstream},
		Flags:          s.flags,
		Metrics:        s.metrics,
		Proxy:          p,
		Problems:       func(ctx context.Context) (any, error) { return s.view.Health(ctx) },
		PageAddress:    s.config.Slipstream.UIBindAddress,
		Page:           page.Handler(&s.view),
		Events:         s.events,
		CertFile:       s.config.Slipstream.TLSCertFile,
		KeyFile:        s.config.Slipstream.TLSPrivateKeyFile,
		Reviewer:       reviewer,
	})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 1)
	go func() { defer cancel(); failed <- servers.Run(ctx) }()
	err := p.Run(ctx)
	cancel()
	return errors.Join(err, <-failed)
}

// newSource makes the source of objects. The client is nil for manifests.
func newSource(c *config.Config, master, node string, problem func(error)) (source.Source, *api.Client, error) {
	if dir := c.Slipstream.Manifests; dir != "" {
		return manifest.New(dir, problem), nil, nil
	}
	connection, err := api.ClientConfig(c.KubeProxy.ClientConnection, master, version)
	if err != nil {
		return nil, nil, err
	}
	client, err := api.NewClient(connection)
	if err != nil {
		return nil, nil, err
	}
	return api.New(client, api.Options{
		NodeName:   node,
		Namespaces: !slices.Contains([]string{"", "all", "none"}, c.Slipstream.ServiceAnnotations), // else labels do not matter
		Pods:       c.Slipstream.SocketExcludePods != "" && c.Slipstream.SocketLoadBalancing != config.SocketsOff,
		AllNodes:   c.Slipstream.ResetDeletedNodes,
		OtherNodes: c.Traits().VirtualServers, // their addresses are not this node's to serve
		OnError:    problem,
	}), client, nil
}

// initialize sets the kernel parameters that need more privileges than the proxy
// (--init-only).
func initialize(ctx context.Context, c *config.Config) error {
	conn, err := conntrack.New(0) // loads the module nf_conntrack
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := c.Conntrack(sysctl.CPUs()).Apply(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Parameters of conntrack stay as they are") // as on nodes that are containers
	}
	return localhostNodePorts(ctx, nodePorts(c))
}

// localhostNodePorts sets the kernel parameter for NodePorts on IPv4 loopback addresses, if
// there are any, after it has programmed the rule that then drops packets to these addresses
// from other machines.
func localhostNodePorts(ctx context.Context, n desired.NodePortAddresses) error {
	if !n.OnLoopback() {
		return nil
	}
	return iptables.RouteLocalnet(ctx)
}

// retryUntilSuccess calls do until it succeeds or ctx ends. It calls failed for each error
// that differs from the one before, but not for one at the end of ctx.
func retryUntilSuccess(ctx context.Context, pauses wait.Backoff, do func() error, failed func(error)) {
	last := ""
	_ = pauses.DelayFunc().Until(ctx, true, true, func(context.Context) (done bool, _ error) {
		err := do()
		if err != nil && ctx.Err() == nil && err.Error() != last {
			last = err.Error()
			failed(err)
		}
		return err == nil, nil
	}) // the error is ctx's
}

func addNodePorts(fs *pflag.FlagSet, addresses *[]string, otherwise string) {
	fs.StringSliceVar(addresses, "nodeport-addresses", nil, "addresses of this node that answer on NodePorts, comma-separated: ranges, "+config.Primary+" (the Node object's addresses), "+config.Localhost+" (127.0.0.0/8 and ::1/128) and "+config.All+" (default: "+otherwise+")")
}

// nodePorts returns the addresses of NodePorts from valid settings.
func nodePorts(c *config.Config) (n desired.NodePortAddresses) {
	n.CIDRs, n.Primary = c.NodePortRanges()
	n.Loopback = c.LocalhostNodePorts()
	return n
}

// loopbackNodePorts says how nftables mode handles NodePorts on loopback addresses. As in
// kube-proxy, only a range of loopback addresses alone has them served in its family.
func loopbackNodePorts(c *config.Config) (handled [2]desired.LoopbackNodePorts) {
	if !c.HandlesLocalhostNodePorts() {
		return handled
	}
	handled = [2]desired.LoopbackNodePorts{desired.LoopbackRefused, desired.LoopbackRefused}
	ranges, _ := c.NodePortRanges()
	for _, p := range ranges {
		if p.Addr().IsLoopback() {
			handled[desired.FamilyOf(p.Addr())] = desired.LoopbackRelayed
		}
	}
	return handled
}

// detectLocal returns how traffic of this node's pods is recognized, from a valid
// configuration.
func detectLocal(c *config.Config) desired.DetectLocal {
	k := &c.KubeProxy
	switch k.DetectLocalMode {
	case "NodeCIDR":
		return desired.DetectLocal{Mode: desired.ByNodeCIDR}
	case "BridgeInterface":
		return desired.DetectLocal{Mode: desired.ByBridgeInterface, Interface: k.DetectLocal.BridgeInterface}
	case "InterfaceNamePrefix":
		return desired.DetectLocal{Mode: desired.ByInterfaceNamePrefix, Interface: k.DetectLocal.InterfaceNamePrefix}
	}
	return desired.DetectLocal{Mode: desired.ByClusterCIDR, CIDRs: config.ClusterCIDRs(k)}
}
