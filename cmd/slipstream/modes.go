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
)

// programmer is the dataplane of a proxy mode.
type programmer interface {
	dataplane.Dataplane
	dataplane.Prober
	dataplane.Reader

	// Supports is a [desired.Config.Supports].
	Supports(desired.Algorithm) error
}

// modes are the proxy modes. A new mode needs a line here and in removals, and a row in
// docs/configuration.md.
var modes = map[string]func(context.Context, *config.Config) (programmer, error){
	config.NFTables: func(_ context.Context, c *config.Config) (programmer, error) {
		return nftables.New(backendConfig(c))
	},
	config.IPTables: func(ctx context.Context, c *config.Config) (programmer, error) {
		return iptables.New(ctx, backendConfig(c), iptables.Options{SyncPeriod: c.KubeProxy.IPTables.SyncPeriod.Duration})
	},
	config.IPVS: func(_ context.Context, c *config.Config) (programmer, error) {
		o := &c.KubeProxy.IPVS
		return ipvs.New(backendConfig(c), ipvs.Options{
			Scheduler: o.Scheduler,
			Exclude:   c.ExcludeCIDRs(),
			Timeouts:  wire.Timeouts{TCP: seconds(o.TCPTimeout), TCPFin: seconds(o.TCPFinTimeout), UDP: seconds(o.UDPTimeout)},
			StrictARP: o.StrictARP,
		})
	},
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

// removals remove what was programmed in a mode. The rest of IPVS mode has kube-proxy's names,
// and package takeover removes it, like kube-proxy's.
var removals = map[string]func(context.Context) error{
	config.NFTables: removeNFTables,
	config.IPTables: iptables.Remove,
	config.IPVS:     removeNFTables,
}

// tableOf returns the dataplane of nftables mode's table, which IPVS mode has too, or nil.
func tableOf(b dataplane.Dataplane) *nftables.Backend {
	switch b := b.(type) {
	case *nftables.Backend:
		return b
	case *ipvs.Backend:
		return b.Table()
	}
	return nil
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

// removeModes removes everything that was programmed in modes other than one; "" for all
// modes. It continues after errors.
func removeModes(ctx context.Context, but string) (err error) {
	for _, name := range modeNames() {
		if name == but || name != config.IPTables && but != config.IPTables && but != "" {
			continue // the modes other than iptables have one table
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

// countRules publishes what a mode counts as metrics.
func countRules(m *metrics.Metrics, b dataplane.Dataplane) {
	if b, ok := b.(*iptables.Backend); ok {
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
