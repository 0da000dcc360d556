// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/iptables"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
)

// modes are the proxy modes that there are. To add one is to add a line here and in
// removals, and a row in docs/configuration.md.
var modes = map[string]func(context.Context, *config.Config) (dataplane.Dataplane, error){
	config.NFTables: func(_ context.Context, c *config.Config) (dataplane.Dataplane, error) {
		return nftables.New(backendConfig(c))
	},
	config.IPTables: func(ctx context.Context, c *config.Config) (dataplane.Dataplane, error) {
		return iptables.New(ctx, backendConfig(c), iptables.Options{SyncPeriod: c.KubeProxy.IPTables.SyncPeriod.Duration})
	},
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
	return dataplane.Config{MasqueradeAll: c.MasqueradeAll(), MasqueradeBit: c.MasqueradeBit()}
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
