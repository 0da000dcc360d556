// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"github.com/slipstream-proxy/slipstream/internal/observe/events"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/observe/server"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"github.com/slipstream-proxy/slipstream/internal/source/api"
	eventsv1 "k8s.io/api/events/v1"
)

// serveHTTP runs a proxy and answers about it, until ctx ends or one of both fails.
func serveHTTP(ctx context.Context, o serving, m *metrics.Metrics, p *proxy.Proxy, tell events.Recorder) error {
	k := &o.config.KubeProxy
	s := server.New(server.Options{
		MetricsAddress: k.MetricsBindAddress,
		HealthzAddress: k.HealthzBindAddress,
		HardFail:       k.BindAddressHardFail,
		Profiling:      k.EnableProfiling,
		Mode:           o.config.Mode(),
		Version:        version,
		Configz:        map[string]any{"kubeproxy.config.k8s.io": k, "slipstream.config": &o.config.Slipstream},
		Flags:          o.flags,
		Metrics:        m,
		Proxy:          p,
		Events:         tell,
	})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 1)
	go func() { defer cancel(); failed <- s.Run(ctx) }()
	err := p.Run(ctx)
	cancel()
	return errors.Join(err, <-failed)
}

// recorder is who is told what an administrator must see: the Node's Events where
// there is a Kubernetes API, otherwise the log.
func recorder(server *api.Client, node string) (r events.Recorder, stop func(), err error) {
	if server == nil {
		return events.Log(), func() {}, nil
	}
	client, err := server.For(eventsv1.SchemeGroupVersion, &eventsv1.Event{})
	if err != nil {
		return nil, nil, err
	}
	r, stop = events.OnNode(client, node)
	return r, stop, nil
}
