// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/iptables"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/ipvs"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	wire "github.com/slipstream-proxy/slipstream/internal/netfilter/ipvs"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// programmer is the dataplane of a proxy mode.
type programmer interface {
	dataplane.Dataplane
	dataplane.Prober
	dataplane.Reader

	// Supports is a [desired.Config.Supports].
	Supports(desired.Algorithm) error
}

// instance is the dataplane of a mode, and what else the mode can do.
type instance struct {
	programmer

	table     *nftables.Dataplane                // the mode has this table, with its counters, clients and transactions; or nil
	scheduler func(string, bool) (string, error) // a [desired.Config.Scheduler], or nil
	count     func(*metrics.Metrics)             // publishes counters; or nil

	// clientsBackend is see.View's; or nil.
	clientsBackend func(*desired.Frontend, netip.Addr) (desired.Backend, time.Duration, error)

	// missing is a Probe that changes nothing. It is nil if Probe is one.
	missing func() []dataplane.Missing

	// reader opens a dataplane that reads what this one has programmed. If it is nil, another one of the mode does.
	reader func(context.Context) (proxy.Reader, error)
}

// probeToVerify is a probe that changes nothing.
func (i instance) probeToVerify(ctx context.Context) ([]dataplane.Missing, error) {
	if i.missing != nil {
		return i.missing(), nil
	}
	return i.Probe(ctx)
}

// openReader opens a second dataplane to read the ruleset of a running one.
func (i instance) openReader(ctx context.Context, c *config.Config) (proxy.Reader, error) {
	if i.reader != nil {
		return i.reader(ctx)
	}
	return modes[c.Mode()].open(ctx, c)
}

// mode is a proxy mode.
type mode struct {
	open func(context.Context, *config.Config) (instance, error)

	// remove removes the mode's objects. Instead of it, table is the mode whose table this one has. The rest
	// of IPVS mode has kube-proxy's names, and package takeover removes it, like kube-proxy's.
	remove func(context.Context) error
	table  string
}

// modes are the proxy modes, by name. docs/adding-a-mode.md says what else a new mode needs.
var modes = map[string]mode{
	config.NFTables: {remove: removeNFTables, open: func(_ context.Context, c *config.Config) (instance, error) {
		b, err := nftables.New(backendConfig(c))
		if err != nil {
			return instance{}, err
		}
		return instance{programmer: forTests(b), table: b, count: countTable(b), clientsBackend: b.ClientsBackend}, nil
	}},
	config.IPTables: {remove: iptables.Remove, open: func(ctx context.Context, c *config.Config) (instance, error) {
		b, err := iptables.New(ctx, backendConfig(c), iptables.Options{SyncPeriod: c.KubeProxy.IPTables.SyncPeriod.Duration})
		if err != nil {
			return instance{}, err
		}
		return instance{programmer: b, count: countRules(b), missing: b.Missing, reader: func(ctx context.Context) (proxy.Reader, error) {
			// Detection of the variant is as expensive as reading, and its result may have changed.
			return iptables.New(ctx, backendConfig(c), iptables.Options{Variant: b.Variant()})
		}}, nil
	}},
	config.IPVS: {table: config.NFTables, open: func(_ context.Context, c *config.Config) (instance, error) {
		o := &c.KubeProxy.IPVS
		b, err := ipvs.New(backendConfig(c), ipvs.Options{
			Scheduler: o.Scheduler, SyncPeriod: o.SyncPeriod.Duration,
			Exclude:   c.ExcludeCIDRs(),
			Timeouts:  wire.Timeouts{TCP: seconds(o.TCPTimeout), TCPFin: seconds(o.TCPFinTimeout), UDP: seconds(o.UDPTimeout)},
			StrictARP: o.StrictARP,
		})
		if err != nil {
			return instance{}, err
		}
		return instance{programmer: b, table: b.Table(), count: countTable(b.Table()), scheduler: b.Scheduler}, nil
	}},
}

// forTests is replaced by tests.
var forTests = func(b programmer) programmer { return b }

// openMode opens the dataplane of the configured mode and probes whether the node supports
// it. Without has the families that the node cannot serve.
//
// If the node can serve no family, openMode returns an error, as kube-proxy does; if no
// mode was set, it uses iptables mode, kube-proxy's default, instead.
func openMode(ctx context.Context, c *config.Config, probe probe, m *metrics.Metrics, warn func(note string)) (b instance, without desired.Families, err error) {
	b, without, err = probeMode(ctx, c, probe, m, warn)
	switch {
	case ctx.Err() != nil && err != nil:
		return b, without, err
	case errors.Is(err, unix.EPERM):
		return b, without, needsNetAdmin(err)
	case err != nil && c.FallBack():
		warn(fmt.Sprintf("No mode is set and nftables mode does not work: using iptables mode: %v", err))
		b, without, err = probeMode(ctx, c, probe, m, warn)
	}
	if err != nil {
		warn(err.Error())
	}
	return b, without, err
}

func needsNetAdmin(err error) error { return fmt.Errorf("slipstream needs CAP_NET_ADMIN: %w", err) }

// probe returns the features that a dataplane needs and the node lacks.
type probe func(instance, context.Context) ([]dataplane.Missing, error)

// probeMode opens the configured mode's dataplane and warns of missing features, if the
// node can serve a family.
func probeMode(ctx context.Context, c *config.Config, probe probe, m *metrics.Metrics, warn func(note string)) (b instance, without desired.Families, err error) {
	b, err = modes[c.Mode()].open(ctx, c)
	if err != nil {
		return b, without, fmt.Errorf("proxy mode %s: %w", c.Mode(), err)
	}
	missing, err := probe(b, ctx)
	if err != nil {
		return instance{}, without, errors.Join(fmt.Errorf("proxy mode %s: %w", c.Mode(), err), b.Close())
	}
	var notes []string
	for _, what := range missing {
		m.FeatureMissing.WithLabelValues(c.Mode(), what.Family.String(), what.Feature).Set(1)
		without[what.Family] = true
		notes = append(notes, what.String())
	}
	if without[desired.IPv4] && without[desired.IPv6] {
		return instance{}, without, errors.Join(fmt.Errorf("proxy mode %s: %s", c.Mode(), strings.Join(notes, "; ")), b.Close())
	}
	for i, note := range notes {
		warn(fmt.Sprintf("%s is not served in mode %s: %s", missing[i].Family, c.Mode(), note))
	}
	return b, without, nil
}

func seconds(d metav1.Duration) uint32 { return uint32(d.Seconds()) }

func modeNames() []string { return slices.Sorted(maps.Keys(modes)) }

// backendConfig returns the part of a valid configuration that all modes need.
func backendConfig(c *config.Config) dataplane.Config {
	return dataplane.Config{MasqueradeBit: c.MasqueradeBit()}
}

// removeModes removes everything that was programmed in any mode, except what the mode used has. It
// continues after errors.
func removeModes(ctx context.Context, used string) (err error) {
	keep := cmp.Or(modes[used].table, used)
	for _, name := range modeNames() {
		if m := modes[name]; name != keep && m.table == "" {
			if failed := m.remove(ctx); failed != nil {
				err = errors.Join(err, fmt.Errorf("cleanup of mode %s: %w", name, failed))
			}
		}
	}
	return err
}

func removeNFTables(ctx context.Context) error {
	b, err := nftables.New(dataplane.Config{})
	if err != nil {
		return err
	}
	return errors.Join(b.Cleanup(ctx), b.Close())
}

// countRules publishes the counters of iptables mode as metrics.
func countRules(b *iptables.Dataplane) func(*metrics.Metrics) {
	return func(m *metrics.Metrics) {
		m.OnIPTables(func() (metrics.IPTables, error) {
			rules := b.RuleCounts()
			packets, err := b.PacketCounts()
			return metrics.IPTables{Total: rules.Total, Last: rules.Last, Rejected: packets.Rejected, Invalid: packets.Invalid}, err
		})
	}
}

// countTable publishes the counters of the table of nftables mode.
func countTable(b *nftables.Dataplane) func(*metrics.Metrics) {
	return func(m *metrics.Metrics) {
		m.OnNFTables(func() (metrics.NFTables, error) {
			c, err := b.Counts()
			n := metrics.NFTables{Rejected: c.Rejected, Unrecorded: c.Unrecorded, Unlimited: c.Unlimited}
			for f, c := range b.Clients().Count() {
				n.Affinity[f] = metrics.Affinity{Clients: c.Recorded, MostClients: c.Most, FullServices: c.Full}
			}
			return n, err
		})
	}
}
