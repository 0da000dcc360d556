// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/fastpath"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/flows"
	"github.com/slipstream-proxy/slipstream/internal/observe/events"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
)

// addFastPath defines the flags that "slipstream run" and "slipstream fastpath" have
// in common; the threshold goes by the name that KEP-4963 or kindnet has for it.
func addFastPath(fs *pflag.FlagSet, c *config.FastPathConfiguration, threshold string) {
	fs.Int64Var(c.OffloadPacketThreshold, threshold, *c.OffloadPacketThreshold, "number of packets, of both directions together, that a connection has to have carried before it takes the fast path; 0 turns the fast path off")
	fs.StringVar(&c.Scope, "scope", c.Scope, "which connections may take the fast path: services, or all that the node forwards")
	fs.StringVar(&c.Interfaces, "interfaces", c.Interfaces, `interfaces between which connections may take the fast path, as a CEL expression over interface.name, .type, .addresses, .mtu, .up and .portOf, such as 'interface.name.startsWith("veth")' (default: all that are up, except loopback, WireGuard, and ports of bridges and bonds)`)
	fs.StringVar((*string)(&c.HardwareOffload), "hardware-offload", string(c.HardwareOffload), "whether to hand connections to network hardware: auto, on, off")
}

// newFastPath makes a controller. Where the kernel has no flowtables it returns
// nil, having said so: nothing else depends on it.
func newFastPath(c fastpath.Config, tell events.Recorder) (*fastpath.Controller, error) {
	c.NoHardware = func(err error) { tell.Warning(events.HardwareOffloadUnavailable, err.Error()) }
	ctl, err := fastpath.New(c)
	if errors.Is(err, fastpath.ErrUnsupported) {
		tell.Normal(events.FastPathUnavailable, "No fast path, so all connections stay on the slow path: "+err.Error())
		return nil, nil
	}
	return ctl, err
}

// runFastPath has a controller follow the interfaces until stop is called, which
// takes what it has programmed out of the kernel.
func runFastPath(ctx context.Context, ctl *fastpath.Controller) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := ctl.Run(ctx); err != nil {
			klog.ErrorS(err, "The fast path does not follow the interfaces any more")
		}
	}()
	return func() error {
		cancel()
		<-done
		return ctl.Stop()
	}
}

// fastPathMetrics reads a controller's numbers for whoever asks; ctl is nil where
// the kernel has no fast path.
func fastPathMetrics(ctl *fastpath.Controller) func() (metrics.FastPath, error) {
	return func() (metrics.FastPath, error) {
		if ctl == nil {
			return metrics.FastPath{}, nil
		}
		s, err := ctl.Stats()
		return metrics.FastPath{
			Supported: true, Offloaded: s.Offloaded, Interfaces: s.Interfaces,
			Hardware: s.Hardware, Flushes: s.Flushes, Errors: s.Errors,
		}, errors.Join(err)
	}
}

// offloadMetrics has the connections on the fast path counted by Service. What it
// returns is to be closed when nobody asks for metrics any more.
func offloadMetrics(m *metrics.Metrics, ctl *fastpath.Controller) (*flows.Conn, error) {
	conn, err := flows.New(0)
	if err == nil {
		m.OnFlows(conn.Each, ctl.Service)
	}
	return conn, err
}
