// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath"
	"github.com/slipstream-proxy/slipstream/internal/node/conntrack"
	"github.com/slipstream-proxy/slipstream/internal/node/netif"
	"github.com/slipstream-proxy/slipstream/internal/node/sysctl"
	"github.com/slipstream-proxy/slipstream/internal/node/takeover"
	"github.com/slipstream-proxy/slipstream/internal/observe/events"
	"github.com/slipstream-proxy/slipstream/internal/observe/healthcheck"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"k8s.io/klog/v2"
)

// serving is what a proxy is told.
type serving struct {
	config *config.Config // valid
	master string
	flags  map[string]string // to be shown
}

// serve is the Service proxy until ctx ends.
func serve(ctx context.Context, o serving) (err error) {
	c := o.config
	node, err := nodeName(c.KubeProxy.HostnameOverride)
	if err != nil {
		return err
	}
	proxy.LimitGarbage()
	m := metrics.New()
	m.OnBuild(version)
	c.CountGates()
	problem := func(err error) {
		klog.ErrorS(nil, err.Error())
		m.ObjectProblems.Inc()
	}
	objects, client, err := newSource(c, o.master, node, problem)
	if err != nil {
		return err
	}
	tell, stop, err := recorder(client, node)
	if err != nil {
		return err
	}
	defer stop()
	b, without, err := openMode(ctx, c, m, func(note string) { tell.Warning(events.FeatureMissing, note) })
	if err != nil && ctx.Err() != nil {
		return nil // stopped before it has begun
	}
	if err != nil {
		return err
	}
	m.OnMode(c.Mode())
	defer func() { err = errors.Join(err, b.Close()) }()
	countRules(m, b)
	fast, err := newFastPath(c.FastPath(), tell)
	if err != nil { // Services do without
		fast = nil
		tell.Warning(events.FailedToAccelerate, "No fast path: "+err.Error())
	}
	m.OnFastPath(fastPathMetrics(fast))
	flows, closeFlows, err := cleanFlows(m, fast)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeFlows()) }()
	adjustOOMScore(c.KubeProxy.OOMScoreAdj)
	if err := c.Conntrack(sysctl.CPUs()).Apply(); err != nil {
		tell.Warning(events.FailedToTuneConntrack, err.Error())
	}
	want := desiredConfig(c, node, without)
	if err := localhostNodePorts(want.NodePorts); err != nil {
		tell.Warning(events.FailedToSetSysctl, err.Error())
	}
	klog.InfoS("Starting", "version", versionText(), "node", node, "mode", c.Mode(), "manifests", c.Slipstream.Manifests)
	tell.Normal(events.Starting, "")
	var p *proxy.Proxy
	checks := healthcheck.New(healthcheck.Options{
		Healthy: func() bool { return p.Healthy() },
		Report: func(err error) {
			if service, ok := healthcheck.ServiceOf(err); ok {
				tell.OnService(service, events.FailedToStartServiceHealthcheck, err.Error())
				m.ObjectProblems.Inc()
				return
			}
			problem(err)
		},
	})
	defer checks.Close()
	options := proxy.Options{
		MinSyncPeriod: c.MinSyncPeriod(),
		CheckPeriod:   c.CheckPeriod(),
		NodeAddresses: netif.Namespace(0).WatchAddresses,
		HealthChecks:  checks,
		StaleFlows:    flows,
		NodeName:      node,
		NodeRequired:  client != nil,
		PodCIDRs:      c.KubeProxy.DetectLocalMode == "NodeCIDR",
		LateAfter:     c.LateAfter(),
		Events:        tell,
	}
	stays := func(err error) { tell.Warning(events.LeftoversStay, err.Error()) }
	if client != nil {
		if err := takeover.Prepare(); err != nil {
			stays(err)
		}
	}
	options.Ready = func() {
		go removeFormerModes(ctx, c.Mode(), stays)
		if client != nil {
			leftovers := takeOverOptions(c.ExcludeCIDRs())
			leftovers.Failed = stays
			takeover.Run(ctx, leftovers)
		}
	}
	verifyInBackground(&options, c, m, b)
	if fast != nil {
		options.FastPath = fast
		if offloaded, err := offloadMetrics(m, fast); err == nil {
			defer offloaded.Close()
		} else {
			klog.ErrorS(err, "Connections on the fast path are not counted by Service")
		}
		stop := runFastPath(ctx, fast)
		defer func() { err = errors.Join(err, stop()) }()
	}
	p = proxy.New(objects, desired.New(want), b, m, options)
	return serveHTTP(ctx, o, m, p, tell)
}

// desiredConfig is what the desired state needs of a valid configuration.
func desiredConfig(c *config.Config, node string, without desired.Families) desired.Config {
	return desired.Config{
		NodeName:      node,
		NodeIP:        c.NodeIP(),
		NodePorts:     nodePorts(c.KubeProxy.NodePortAddresses, c.LocalhostNodePorts()),
		DetectLocal:   detectLocal(c),
		Without:       without,
		MasqueradeAll: c.MasqueradeAll(),
	}
}

// nodeName is the name of this node: as overridden, or the host's, in lower case, as
// kubelet registers it.
func nodeName(override string) (name string, err error) {
	if name = override; name == "" {
		if name, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("name of this node: %w", err)
		}
	}
	if name = strings.ToLower(strings.TrimSpace(name)); name == "" {
		return "", errors.New("the name of this node is empty: give --hostname-override")
	}
	return name, nil
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
	flows = conntrack.NewCleaner(m.Cleaning(clean), func(stats conntrack.Stats, err error) {
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
