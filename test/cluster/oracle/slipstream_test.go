// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/iptables"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/ipvs"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/node/conntrack"
	"github.com/slipstream-proxy/slipstream/internal/node/netif"
	"github.com/slipstream-proxy/slipstream/internal/node/sysctl"
	"github.com/slipstream-proxy/slipstream/internal/observe/healthcheck"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"k8s.io/apimachinery/pkg/types"
)

// slipstream is Slipstream, as "slipstream run" puts it together, but in this process and
// with the cluster's objects as its source.
type slipstream struct {
	// spoil, if not nil, changes a copy of the cluster before Slipstream gets it: the
	// test has to find the difference.
	spoil func(*Cluster)
}

func (slipstream) name() string { return "slipstream" }

// syncTimeout bounds how long Slipstream may take to program a cluster.
const syncTimeout = 20 * time.Second

func (p slipstream) start(ctx context.Context, s *Stage, c *Cluster) (stop func() error, err error) {
	if p.spoil != nil {
		c = c.DeepCopy()
		p.spoil(c)
	}
	want, err := desiredConfig(c.Settings)
	if err != nil {
		return nil, err
	}
	r, err := startRun(ctx, s, c, want)
	if err != nil {
		return nil, err
	}
	if err := r.awaitSynced(s, c, want); err != nil {
		return nil, errors.Join(err, r.stop())
	}
	return r.stop, nil
}

// desiredConfig is the settings in Slipstream's words.
func desiredConfig(s Settings) (c desired.Config, err error) {
	c.NodeName = Node1
	c.NodePorts.Loopback = s.LocalhostNodePorts
	c.MasqueradeAll = s.MasqueradeAll
	c.IPVS = s.Mode == IPVS
	modes := map[string]desired.DetectLocalMode{
		"ClusterCIDR":         desired.ByClusterCIDR,
		"NodeCIDR":            desired.ByNodeCIDR,
		"BridgeInterface":     desired.ByBridgeInterface,
		"InterfaceNamePrefix": desired.ByInterfaceNamePrefix,
	}
	mode, ok := modes[s.DetectLocalMode]
	if !ok {
		return c, fmt.Errorf("no such way to detect local traffic: %q", s.DetectLocalMode)
	}
	c.DetectLocal = desired.DetectLocal{Mode: mode, CIDRs: s.ClusterCIDRs, Interface: s.Interface}
	for _, text := range s.NodePortAddresses {
		if text == "primary" {
			c.NodePorts.Primary = true
			continue
		}
		r, err := netip.ParsePrefix(text)
		if err != nil {
			return c, err
		}
		c.NodePorts.CIDRs = append(c.NodePorts.CIDRs, r)
	}
	return c, nil
}

// kernel is a dataplane that can read the kernel's content.
type kernel interface {
	dataplane.Dataplane
	dataplane.Reader
}

// newBackend is one of the mode that the settings say.
func newBackend(config dataplane.Config, s Settings) (kernel, error) {
	switch s.Mode {
	case IPTables:
		return iptables.New(context.Background(), config, iptables.Options{Variant: iptables.Variant(s.Variant)})
	case IPVS:
		return ipvs.New(config, ipvs.Options{})
	}
	return nftables.New(config)
}

// run is Slipstream running.
type run struct {
	config dataplane.Config
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu     sync.Mutex
	errs   []error // of the loop, and of health checks
	closes []func() error
}

func startRun(ctx context.Context, s *Stage, c *Cluster, want desired.Config) (*run, error) {
	ctx, cancel := context.WithCancel(ctx)
	ns := s.N1.Namespace
	r := &run{cancel: cancel, config: dataplane.Config{
		NetNS:         ns.FD(),
		MasqueradeBit: dataplane.DefaultMasqueradeBit,
	}}
	b, err := newBackend(r.config, c.Settings)
	if err != nil {
		return nil, errors.Join(err, r.stop())
	}
	r.closes = append(r.closes, b.Close)
	if want.NodePorts.OnLoopback() {
		if err := ns.Do(func() error { return sysctl.RouteLocalnet(ctx) }); err != nil {
			return nil, errors.Join(err, r.stop())
		}
	}
	conn, err := conntrack.New(ns.FD())
	if err != nil {
		return nil, errors.Join(err, r.stop())
	}
	flows := conntrack.NewCleaner(context.Background(), conn.Clean, func(_ conntrack.Stats, err error) { r.failed(err) })
	r.closes = append(r.closes, conn.Close, func() error { flows.Close(); return nil })
	var loop *proxy.Proxy
	checks := healthcheck.New(ctx, healthcheck.Options{
		Listen:  ns.Listen,
		Healthy: func() bool { return loop.Healthy() },
		Report:  func(_ types.NamespacedName, err error) { r.failed(err) },
	})
	r.closes = append(r.closes, func() error { checks.Close(); return nil })
	loop = proxy.New(newFeed(c), desired.New(want), b, metrics.New(), proxy.Options{
		MinSyncPeriod: time.Millisecond,
		CheckPeriod:   time.Second,
		NodeAddresses: netif.Namespace(ns.FD()).WatchAddresses,
		HealthChecks:  checks,
		StaleFlows:    flows,
	})
	r.done.Go(func() { r.failed(loop.Run(ctx)) })
	return r, nil
}

func (r *run) failed(err error) {
	if err == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err)
}

// awaitSynced waits until the kernel has the content of another State, which receives all
// objects in order and at once.
func (r *run) awaitSynced(s *Stage, c *Cluster, config desired.Config) error {
	state := desired.New(config)
	for _, o := range c.Objects() {
		proxy.ApplyEvent(state, set(o))
	}
	addrs, err := addressesOf(s.N1.Namespace)
	if err != nil {
		return err
	}
	state.SetNodeAddresses(addrs)
	want := dataplane.ContentOf(&state.Full().Change)
	reader, err := newBackend(r.config, c.Settings)
	if err != nil {
		return err
	}
	defer reader.Close()
	for deadline := time.Now().Add(syncTimeout); ; time.Sleep(10 * time.Millisecond) {
		got, err := reader.Read(context.Background())
		if err != nil {
			return err
		}
		diff := dataplane.Difference(want, got)
		if diff == "" {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not what the objects ask for after %v:\n%s", syncTimeout, diff)
		}
	}
}

// addressesOf are the addresses on a namespace's interfaces, except Service addresses.
func addressesOf(ns *lab.Namespace) (all []netip.Addr, err error) {
	interfaces, err := netif.Namespace(ns.FD()).List()
	for _, i := range interfaces {
		if i.Name == ipvs.Interface {
			continue
		}
		all = append(all, i.Addresses...)
	}
	return all, err
}

// stop ends Slipstream and returns its errors.
func (r *run) stop() error {
	r.cancel()
	r.done.Wait()
	for i := range r.closes {
		r.failed(r.closes[len(r.closes)-1-i]())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.errs...)
}
