// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/iptables"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
)

// openReader makes what reads what any run in a configuration's mode has programmed. If
// there is one that runs, it reads what that one has programmed.
func openReader(ctx context.Context, c *config.Config, running dataplane.Dataplane) (proxy.Reader, error) {
	b, err := another(ctx, c, running)
	if err != nil {
		return nil, err
	}
	r, ok := b.(proxy.Reader)
	if !ok {
		return nil, errors.Join(fmt.Errorf("what mode %s has programmed cannot be read back", c.Mode()), b.Close())
	}
	return r, nil
}

// another makes a backend like the one that runs, which may be none. To look again for
// the variant of iptables that the node uses would cost as much as to read, and may come
// to another one than it did.
func another(ctx context.Context, c *config.Config, running dataplane.Dataplane) (dataplane.Dataplane, error) {
	if b, ok := running.(*iptables.Backend); ok {
		return iptables.New(ctx, backendConfig(c), iptables.Options{Variant: b.Variant()})
	}
	return modes[c.Mode()](ctx, c)
}

// verifyInBackground has a proxy verify what a backend has programmed, where it is to.
func verifyInBackground(o *proxy.Options, c *config.Config, m *metrics.Metrics, b dataplane.Dataplane) {
	if c.VerifyPeriod() == 0 {
		return
	}
	m.OnVerify()
	o.VerifyPeriod = c.VerifyPeriod()
	o.OpenReader = func(ctx context.Context) (proxy.Reader, error) { return openReader(ctx, c, b) }
}
