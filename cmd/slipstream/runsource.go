// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/internal/source/api"
	"github.com/slipstream-proxy/slipstream/internal/source/manifest"
)

// newSource makes the source of objects. The client is nil where they come from
// manifests.
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
	return api.New(client, api.Options{NodeName: node, OnError: problem}), client, nil
}
