// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/iptables"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/ipvs"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	wire "github.com/slipstream-proxy/slipstream/internal/netfilter/ipvs"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// programmer is the dataplane of a proxy mode, or of IPVS mode's table.
type programmer interface {
	dataplane.Dataplane
	dataplane.Prober
	dataplane.Reader

	// Supports is a [desired.Config.Supports].
	Supports(desired.Algorithm) error
}

// modes are the proxy modes. A new mode needs a line here, and a row in docs/configuration.md.
var modes = map[string]func(context.Context, *config.Config) (programmer, error){
	config.NFTables: func(_ context.Context, c *config.Config) (programmer, error) {
		return openNFTables(backendConfig(c))
	},
	config.IPTables: func(ctx context.Context, c *config.Config) (programmer, error) {
		return iptables.New(ctx, backendConfig(c), iptables.Options{SyncPeriod: c.KubeProxy.IPTables.SyncPeriod.Duration})
	},
	config.IPVS: func(ctx context.Context, c *config.Config) (programmer, error) {
		return openIPVS(c, func(d dataplane.Config) (programmer, error) { return openTable(ctx, d) })
	},
}

// openNFTables is replaced by tests.
var openNFTables = func(d dataplane.Config) (programmer, error) { return nftables.New(d) }

func openIPVS(c *config.Config, newTable func(dataplane.Config) (programmer, error)) (programmer, error) {
	o := &c.KubeProxy.IPVS
	return ipvs.New(backendConfig(c), ipvs.Options{
		Scheduler: o.Scheduler,
		Exclude:   c.ExcludeCIDRs(),
		Timeouts:  wire.Timeouts{TCP: seconds(o.TCPTimeout), TCPFin: seconds(o.TCPFinTimeout), UDP: seconds(o.UDPTimeout)},
		StrictARP: o.StrictARP,
		NewTable:  func(d dataplane.Config) (ipvs.Table, error) { return newTable(d) },
	})
}

// openTable opens the dataplane of IPVS mode's table: that of nftables mode, or of iptables mode
// where the kernel cannot serve any family with nf_tables.
func openTable(ctx context.Context, d dataplane.Config) (programmer, error) {
	table, err := openNFTables(d)
	if err != nil {
		return nil, err
	}
	missing, err := table.Probe(ctx)
	if err != nil {
		return nil, errors.Join(err, table.Close())
	}
	if len(missing) < len(desired.Families{}) {
		return table, nil
	}
	if err := table.Close(); err != nil {
		return nil, err
	}
	rules, err := iptables.New(ctx, d, iptables.Options{})
	if err != nil {
		return nil, fmt.Errorf("%s; %w", missing[0], err)
	}
	klog.FromContext(ctx).Info("The table of IPVS mode is one of iptables", "variant", rules.Variant(), "reason", missing[0].String())
	return rules, nil
}

// openMode opens the dataplane of the configured mode and probes whether the node supports
// it. Without has the families that the node cannot serve.
//
// If the node can serve no family, openMode returns an error, as kube-proxy does; if no
// mode was set, it uses iptables mode, kube-proxy's default, instead.
func openMode(ctx context.Context, c *config.Config, probe probe, m *metrics.Metrics, warn func(note string)) (b programmer, without desired.Families, err error) {
	b, without, err = probeMode(ctx, c, probe, m, warn)
	switch {
	case ctx.Err() != nil && err != nil:
		return nil, without, err
	case errors.Is(err, unix.EPERM):
		return nil, without, needsNetAdmin(err)
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
type probe func(programmer, context.Context) ([]dataplane.Missing, error)

// probeMode opens the configured mode's dataplane and warns of missing features, if the
// node can serve a family.
func probeMode(ctx context.Context, c *config.Config, probe probe, m *metrics.Metrics, warn func(note string)) (_ programmer, without desired.Families, err error) {
	b, err := modes[c.Mode()](ctx, c)
	if err != nil {
		return nil, without, fmt.Errorf("proxy mode %s: %w", c.Mode(), err)
	}
	missing, err := probe(b, ctx)
	if err != nil {
		return nil, without, errors.Join(fmt.Errorf("proxy mode %s: %w", c.Mode(), err), b.Close())
	}
	var notes []string
	for _, what := range missing {
		m.FeatureMissing.WithLabelValues(c.Mode(), what.Family.String(), what.Feature).Set(1)
		without[what.Family] = true
		notes = append(notes, what.String())
	}
	if without[desired.IPv4] && without[desired.IPv6] {
		return nil, without, errors.Join(fmt.Errorf("proxy mode %s: %s", c.Mode(), strings.Join(notes, "; ")), b.Close())
	}
	for i, note := range notes {
		warn(fmt.Sprintf("%s is not served in mode %s: %s", missing[i].Family, c.Mode(), note))
	}
	return b, without, nil
}

func seconds(d metav1.Duration) uint32 { return uint32(d.Seconds()) }

// removals remove the objects of a mode, or of the table of IPVS mode. The rest of IPVS
// mode has kube-proxy's names, and package takeover removes it, like kube-proxy's.
var removals = map[string]func(context.Context) error{
	config.NFTables: removeNFTables,
	config.IPTables: iptables.Remove,
}

// tableOf returns the dataplane of nftables mode's table, which IPVS mode may have too, or nil.
func tableOf(b dataplane.Dataplane) *nftables.Backend {
	table, _ := belowIPVS(b).(*nftables.Backend)
	return table
}

// rulesOf returns the dataplane of iptables mode's rules, which IPVS mode may have too, or nil.
func rulesOf(b dataplane.Dataplane) *iptables.Backend {
	rules, _ := belowIPVS(b).(*iptables.Backend)
	return rules
}

func belowIPVS(b dataplane.Dataplane) dataplane.Dataplane {
	if b, ok := b.(*ipvs.Backend); ok {
		return b.Table()
	}
	return b
}

// schedulerOf returns the check of schedulers of IPVS mode, or nil.
func schedulerOf(b dataplane.Dataplane) func(string) (string, error) {
	if b, ok := b.(*ipvs.Backend); ok {
		return b.Scheduler
	}
	return nil
}

func modeNames() []string { return slices.Sorted(maps.Keys(modes)) }

// backendConfig returns the part of a valid configuration that all modes need.
func backendConfig(c *config.Config) dataplane.Config {
	return dataplane.Config{MasqueradeBit: c.MasqueradeBit()}
}

// removeModes removes everything that was programmed in the modes nftables and iptables, except
// in the one that b uses, if b is not nil. It continues after errors.
func removeModes(ctx context.Context, b dataplane.Dataplane) (err error) {
	used := ""
	switch {
	case b == nil:
	case rulesOf(b) != nil:
		used = config.IPTables
	default:
		used = config.NFTables
	}
	for _, name := range slices.Sorted(maps.Keys(removals)) {
		if name == used {
			continue
		}
		if failed := removals[name](ctx); failed != nil {
			err = errors.Join(err, fmt.Errorf("cleanup of mode %s: %w", name, failed))
		}
	}
	return err
}

func removeNFTables(ctx context.Context) (err error) {
	b, err := nftables.New(dataplane.Config{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	return b.Cleanup(ctx)
}

// countRules publishes the counters of a mode as metrics.
func countRules(m *metrics.Metrics, b dataplane.Dataplane) {
	if b := rulesOf(b); b != nil {
		m.OnIPTables(func() (metrics.IPTables, error) {
			rules := b.RuleCounts()
			packets, err := b.PacketCounts()
			return metrics.IPTables{Total: rules.Total, Last: rules.Last, Rejected: packets.Rejected, Invalid: packets.Invalid}, err
		})
	}
	if b := tableOf(b); b != nil {
		m.OnNFTables(func() (metrics.NFTables, error) {
			c, err := b.Counts()
			n := metrics.NFTables{Rejected: c.Rejected, Unrecorded: c.Unrecorded}
			for f, c := range b.Clients().Count() {
				n.Affinity[f] = metrics.Affinity{Clients: c.Recorded, MostClients: c.Most, FullServices: c.Full}
			}
			return n, err
		})
	}
}
