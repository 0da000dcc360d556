// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/iptables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
)

// openToVerify opens what reads what any run with a configuration has programmed.
// Without are the families that such a run does not serve. The probe of iptables mode
// makes a chain for a moment, so it is not for a command that changes nothing; there,
// families count whose commands do not work.
func openToVerify(ctx context.Context, c *config.Config) (b programmer, without desired.Families, err error) {
	if b, err = modes[c.Mode()](ctx, c); err == nil {
		if rules, ok := b.(*iptables.Backend); ok {
			return b, rules.Without(), nil
		}
		var missing []dataplane.Missing
		missing, err = b.Probe(ctx)
		for _, m := range missing {
			without[m.Family] = true
		}
		if err == nil && !(without[desired.IPv4] && without[desired.IPv6]) {
			return b, without, nil
		}
		err = errors.Join(err, b.Close())
	}
	if c.FallBack() {
		return openToVerify(ctx, c)
	}
	if err == nil {
		err = fmt.Errorf("mode %s does not work on this node", c.Mode())
	}
	return nil, without, err
}

// another opens a dataplane like the one that runs, to read what that has programmed. To look again for
// the variant of iptables that the node uses would cost as much as to read, and may come
// to another one than it did.
func another(ctx context.Context, c *config.Config, running programmer) (proxy.Reader, error) {
	if b, ok := running.(*iptables.Backend); ok {
		return iptables.New(ctx, backendConfig(c), iptables.Options{Variant: b.Variant()})
	}
	return modes[c.Mode()](ctx, c)
}

// verifyInBackground has a proxy verify what a backend has programmed, where it is to.
func verifyInBackground(o *proxy.Options, c *config.Config, m *metrics.Metrics, b programmer) {
	if c.VerifyPeriod() == 0 {
		return
	}
	m.OnVerify()
	o.VerifyPeriod = c.VerifyPeriod()
	o.OpenReader = func(ctx context.Context) (proxy.Reader, error) { return another(ctx, c, b) }
}
