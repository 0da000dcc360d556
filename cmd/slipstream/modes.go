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
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"golang.org/x/sys/unix"
)

// programmer is what a mode programs the kernel with.
type programmer interface {
	dataplane.Dataplane
	dataplane.Prober
	dataplane.Reader
}

// modes are the proxy modes. To add one is to add a line here and in removals, and a
// row in docs/configuration.md.
var modes = map[string]func(context.Context, *config.Config) (programmer, error){
	config.NFTables: func(_ context.Context, c *config.Config) (programmer, error) {
		return nftables.New(backendConfig(c))
	},
	config.IPTables: func(ctx context.Context, c *config.Config) (programmer, error) {
		return iptables.New(ctx, backendConfig(c), iptables.Options{SyncPeriod: c.KubeProxy.IPTables.SyncPeriod.Duration})
	},
}

// openMode opens the dataplane of the configured mode and probes what the node lacks
// for it. Without are the families that the node cannot serve.
//
// A mode in which the node can serve no family is an error, as with kube-proxy. But if
// no mode was set, iptables mode takes its place, which kube-proxy would run.
func openMode(ctx context.Context, c *config.Config, m *metrics.Metrics, warn func(note string)) (b programmer, without desired.Families, err error) {
	b, without, err = probeMode(ctx, c, m, warn)
	switch {
	case ctx.Err() != nil && err != nil:
		return nil, without, err
	case errors.Is(err, unix.EPERM):
		return nil, without, needsNetAdmin(err)
	case err != nil && c.FallBack():
		warn(fmt.Sprintf("No mode is set, so running in iptables mode: %v", err))
		b, without, err = probeMode(ctx, c, m, warn)
	}
	if err != nil {
		warn(err.Error())
	}
	return b, without, err
}

func needsNetAdmin(err error) error { return fmt.Errorf("slipstream needs CAP_NET_ADMIN: %w", err) }

// probeMode opens the configured mode's dataplane and warns of what is missing, if the
// node can serve a family.
func probeMode(ctx context.Context, c *config.Config, m *metrics.Metrics, warn func(note string)) (_ programmer, without desired.Families, err error) {
	b, err := modes[c.Mode()](ctx, c)
	if err != nil {
		return nil, without, fmt.Errorf("proxy mode %s: %w", c.Mode(), err)
	}
	missing, err := b.Probe(ctx)
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

// removals remove what any run in a mode has programmed.
var removals = map[string]func(context.Context) error{
	config.NFTables: removeNFTables,
	config.IPTables: iptables.Remove,
}

// modeNames are their names, in the order of the alphabet.
func modeNames() []string { return slices.Sorted(maps.Keys(modes)) }

// backendConfig is what all modes need of a valid configuration.
func backendConfig(c *config.Config) dataplane.Config {
	return dataplane.Config{MasqueradeBit: c.MasqueradeBit()}
}

// removeModes removes what runs in all modes but one have programmed; "" for all. It
// does all it can, whatever fails.
func removeModes(ctx context.Context, but string) (err error) {
	for _, name := range modeNames() {
		if name == but {
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

// countRules has the numbers of rules be metrics, where a mode has rules.
func countRules(m *metrics.Metrics, b dataplane.Dataplane) {
	if rules, ok := b.(*iptables.Backend); ok {
		m.OnIPTables(func() (metrics.IPTables, error) {
			c := rules.RuleCounts()
			return metrics.IPTables{Total: c.Total, Last: c.Last}, nil
		})
	}
}
