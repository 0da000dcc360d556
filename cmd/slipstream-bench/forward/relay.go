// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/node/loopback"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"k8s.io/apimachinery/pkg/types"
)

// Relayed is the setting in which connections do not go through the kernel's forwarding: the
// client connects to the node, where a process connects to the server (package loopback).
var Relayed = Setting{Name: "relay", relayed: true}

// Relay measures connections through the kernel's paths, and through a relay in user space
// beside them: as [CRR], and as the stream of [Throughput] with aggregated segments. child
// starts the process of the relay, which calls [RunRelay] with the arguments that are added.
func Relay(ctx context.Context, child []string, o Options) (*bench.Result, error) {
	o.Measures = []string{MeasureAggregated}
	if err := errors.Join(o.validateThroughput(), o.validateCRR()); err != nil {
		return nil, err
	}
	turn := fmt.Sprintf("%d s and of %s connections", o.Seconds, bench.Thousands(o.Connections))
	return run(ctx, "relay", turn, &o, func(m *measurement) error {
		m.settings = append(slices.Clone(m.settings), Relayed)
		m.Subjects = append(m.Subjects, bench.Subject{Name: Relayed.Name})
		for _, p := range []servicePort{streamPort, requestPort} {
			stop, err := m.startRelay(ctx, child, p)
			if err != nil {
				return fmt.Errorf("relay: %w", err)
			}
			defer stop()
		}
		return errors.Join(m.shortConnections(ctx), m.streams(ctx, streamAggregated, streamAggregatedBest, cpuAggregated))
	})
}

// relay is the address of a port on the first node.
func (n *network) relay(p servicePort) netip.AddrPort {
	return netip.AddrPortFrom(n.nodes[0].Addr(n.ipv6), p.port)
}

// startRelay starts the relay of a port, and returns when it listens.
func (n *network) startRelay(ctx context.Context, child []string, p servicePort) (stop func() error, err error) {
	started, ready, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer started.Close()
	args := append(slices.Clone(child[1:]), n.relay(p).String(), n.backend(p).String())
	cmd := exec.CommandContext(ctx, child[0], args...)
	cmd.Stdout, cmd.Stderr = ready, os.Stderr
	process, err := n.nodes[0].Start(cmd)
	ready.Close()
	if err != nil {
		return nil, err
	}
	if _, err := started.Read(make([]byte, 1)); err != nil {
		return nil, errors.Join(err, process.Kill())
	}
	return process.Kill, nil
}

// RunRelay relays TCP connections from an address to another until ctx ends. It writes to out
// when it listens.
func RunRelay(ctx context.Context, from, to string, out io.Writer) error {
	listen, err1 := netip.ParseAddrPort(from)
	backend, err2 := netip.ParseAddrPort(to)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	proxy.LimitGarbage() // as 'slipstream run' does
	var failed error
	s := loopback.New(ctx, loopback.Options{Report: func(_ types.NamespacedName, err error) { failed = err }})
	defer s.Close()
	s.Set([]desired.Relay{{
		FrontendKey: desired.FrontendKey{AddrPort: listen, Protocol: desired.TCP},
		Service:     desired.ServicePort{Namespace: "bench", Name: "server"},
		Backends:    []desired.Backend{desired.NewBackend(backend)},
	}})
	if failed != nil {
		return failed
	}
	if _, err := fmt.Fprintln(out, "ready"); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
