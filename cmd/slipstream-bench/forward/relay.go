// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/node/loopback"
)

// Relayed is the setting in which connections do not go through the kernel's forwarding: the
// client connects to the node, whose process connects to the server (package loopback).
var Relayed = Setting{Name: "relay", relayed: true}

// Relay measures connections through the kernel's paths, and through a relay in user space
// beside them: as [CRR], and as the stream of [Throughput] with aggregated segments.
func Relay(ctx context.Context, o Options) (*bench.Result, error) {
	o.Measures = []string{MeasureAggregated}
	if err := errors.Join(o.validateThroughput(), o.validateCRR()); err != nil {
		return nil, err
	}
	turn := fmt.Sprintf("%d s and of %s connections", o.Seconds, bench.Thousands(o.Connections))
	return run(ctx, "relay", turn, &o, func(m *measurement) error {
		m.settings = append(slices.Clone(m.settings), Relayed)
		m.Subjects = append(m.Subjects, bench.Subject{Name: Relayed.Name})
		relays := loopback.New(loopback.Options{In: m.nodes[0].Do})
		defer relays.Close()
		for _, p := range []servicePort{streamPort, requestPort} {
			relays.Set([]desired.Relay{{
				FrontendKey: desired.FrontendKey{AddrPort: m.relay(p), Protocol: desired.TCP},
				Service:     desired.ServicePort{Namespace: "bench", Name: "server", Port: p.name},
				Backends:    []desired.Backend{desired.NewBackend(m.backend(p))},
			}})
		}
		return errors.Join(m.shortConnections(ctx), m.streams(ctx, streamAggregated, streamAggregatedBest))
	})
}

// relay is the address of a port on the first node.
func (n *network) relay(p servicePort) netip.AddrPort {
	return netip.AddrPortFrom(n.nodes[0].Addr(n.ipv6), p.port)
}
