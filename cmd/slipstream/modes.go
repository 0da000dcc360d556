// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"slices"

	"github.com/slipstream-proxy/slipstream/backend"
	"github.com/slipstream-proxy/slipstream/backend/nftables"
	"github.com/slipstream-proxy/slipstream/config"
)

// modes are the proxy modes that there are. To add one is to add a line, and a row in
// docs/configuration.md.
var modes = map[string]func(*config.Config) (backend.Backend, error){
	config.NFTables: func(c *config.Config) (backend.Backend, error) { return nftables.New(backendConfig(c)) },
}

// modeNames are their names, in the order of the alphabet.
func modeNames() []string { return slices.Sorted(maps.Keys(modes)) }

// backendConfig is what all modes need of a valid configuration.
func backendConfig(c *config.Config) backend.Config {
	return backend.Config{MasqueradeAll: c.MasqueradeAll(), MasqueradeBit: c.MasqueradeBit()}
}
