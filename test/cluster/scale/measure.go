// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/machine"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/oracle/upstream"
)

// run is what is measured of a subject in one run.
type run struct {
	StartMS        float64 `json:"start_ms"`
	StartUserMS    float64 `json:"start_user_ms"`
	StartSystemMS  float64 `json:"start_system_ms"`
	PeakStartBytes int64   `json:"peak_rss_start_bytes"`

	ChangesMS       []float64 `json:"changes_ms"`
	ChangeUserMS    float64   `json:"change_user_ms"` // mean
	ChangeSystemMS  float64   `json:"change_system_ms"`
	BurstsMS        []float64 `json:"bursts_ms"`
	BurstWrittenMS  []float64 `json:"burst_written_ms"` // how long the API server took for all
	PeakBytes       int64     `json:"peak_rss_bytes"`
	PeakCommandByte int64     `json:"peak_rss_commands_bytes"`
}

// measurement is a subject being measured.
type measurement struct {
	*world
	run
	options *options
	subject subject
	proxy   *proxies.Proxy
	prober  *prober
	log     upstream.Log
}

// measure runs a subject once. What was measured before an error is returned with it.
func (w *world) measure(ctx context.Context, o *options, s subject, program string, log upstream.Log) (_ *run, err error) {
	m := &measurement{world: w, options: o, subject: s, log: log}
	n, start, err := w.prepare(ctx, s, program)
	if err != nil {
		return &m.run, err
	}
	defer func() { err = errors.Join(err, n.remove(context.WithoutCancel(ctx))) }()
	machine.Quiet(ctx) // others' rules are being freed
	m.prober = &prober{client: n.client, timeout: o.Timeout}
	err = m.start(ctx, n, start)
	if m.proxy == nil {
		return &m.run, err
	}
	stop := watchCommands(m.proxy.PID())
	for _, step := range []func(context.Context) error{m.changes, m.bursts, m.memory} {
		if err == nil {
			err = step(ctx)
		}
	}
	m.PeakCommandByte = max(m.PeakCommandByte, stop())
	if err != nil {
		err = m.proxy.Explain(err)
	}
	return &m.run, errors.Join(err, m.proxy.Stop())
}

// prepare makes a node for a subject, and says how to start it there. The caller removes
// the node.
func (w *world) prepare(ctx context.Context, s subject, program string) (_ *node, start proxies.Options, err error) {
	n, err := w.newNode(ctx, s.mode)
	if err != nil {
		return nil, start, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.remove(context.WithoutCancel(ctx)))
		}
	}()
	access, err := w.plane.NewAccess(ctx, w.dir, fmt.Sprintf("%s-%s", s.name, n.Name()))
	if err != nil {
		return nil, start, err
	}
	return n, proxies.Options{
		Dir: w.dir, Binary: program, Kubeconfig: access.Kubeconfig,
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		Configure:    func(config map[string]any) { config["mode"] = s.mode },
		Flags:        []string{"--v=0"}, // the default, which kubeadm leaves in place
	}, w.reachable(n)
}

// reachable tries the way from the client to the pods, without any proxy.
func (w *world) reachable(n *node) error {
	pod := w.endpoint(0, 0)
	return n.client.Do(func() error {
		answer, err := connect(netip.AddrPortFrom(pod, targetPort), 2*time.Second)
		if err == nil && answer != pod {
			err = fmt.Errorf("%v answers", answer)
		}
		if err != nil {
			return fmt.Errorf("from the client on %s to pod %v: %w", n.Name(), pod, err)
		}
		return nil
	})
}

// memory reads what the process has had at most.
func (m *measurement) memory(context.Context) (err error) {
	m.PeakBytes, err = peak(m.proxy.PID())
	return err
}

func (m *measurement) calm(ctx context.Context) error {
	return calm(ctx, m.proxy.PID(), m.options.Timeout)
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
