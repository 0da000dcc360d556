// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/slipstream-proxy/slipstream/fastpath"
	"github.com/slipstream-proxy/slipstream/fastpath/iface"
	"github.com/slipstream-proxy/slipstream/metrics"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
)

// accelerationGate is KEP-4963's feature gate.
const accelerationGate = "KubeProxyAcceleration"

// fastPathFlags are what "slipstream run" and "slipstream fastpath" have in common.
type fastPathFlags struct {
	threshold  int
	scope      string
	interfaces string
	hardware   string
	gates      map[string]string
}

// add adds the flags; the threshold goes by the name that KEP-4963 or kindnet has
// for it.
func (o *fastPathFlags) add(cmd *cobra.Command, threshold string) {
	f := cmd.Flags()
	f.IntVar(&o.threshold, threshold, fastpath.DefaultThreshold, "number of packets, of both directions together, that a connection has to have carried before it takes the fast path; 0 turns the fast path off")
	f.StringVar(&o.scope, "scope", fastpath.Services.String(), "which connections may take the fast path: services, or all that the node forwards")
	f.StringVar(&o.interfaces, "interfaces", "", `interfaces between which connections may take the fast path, as a CEL expression over interface.name, .type, .addresses, .mtu and .up, such as 'interface.name.startsWith("veth")' (default: all that are up, except loopback)`)
	f.StringVar(&o.hardware, "hardware-offload", fastpath.Auto.String(), "whether to hand connections to network hardware: auto, on, off")
}

// addGates adds kube-proxy's flag for feature gates.
func (o *fastPathFlags) addGates(cmd *cobra.Command) {
	cmd.Flags().StringToStringVar(&o.gates, "feature-gates", nil, "feature gates, such as "+accelerationGate+"=false, which turns the fast path off (default: true)")
}

// config checks the flags.
func (o *fastPathFlags) config(threshold string) (c fastpath.Config, err error) {
	if o.threshold < 0 || int64(o.threshold) >= 1<<31 {
		return c, fmt.Errorf("--%s: %d is no number of packets", threshold, o.threshold)
	}
	c.Threshold = uint32(o.threshold)
	if c.Scope, err = fastpath.ParseScope(o.scope); err != nil {
		return c, fmt.Errorf("--scope: %w", err)
	}
	if c.Hardware, err = fastpath.ParseHardware(o.hardware); err != nil {
		return c, fmt.Errorf("--hardware-offload: %w", err)
	}
	if o.interfaces != "" {
		if c.Interfaces, err = iface.Compile(o.interfaces); err != nil {
			return c, fmt.Errorf("--interfaces: %w", err)
		}
	}
	for _, gate := range slices.Sorted(maps.Keys(o.gates)) {
		on, err := strconv.ParseBool(strings.TrimSpace(o.gates[gate]))
		switch {
		case gate != accelerationGate:
			return c, fmt.Errorf("--feature-gates: there is no gate %s", gate)
		case err != nil:
			return c, fmt.Errorf("--feature-gates: %s: %q is neither true nor false", gate, o.gates[gate])
		case !on:
			c.Threshold = 0
		}
	}
	return c, nil
}

// newFastPath makes a controller. Where the kernel has no flowtables it returns
// nil, having said so: nothing else depends on it.
func newFastPath(c fastpath.Config) (*fastpath.Controller, error) {
	ctl, err := fastpath.New(c)
	if errors.Is(err, fastpath.ErrUnsupported) {
		klog.InfoS("No fast path: all connections stay on the slow path", "reason", err.Error())
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
