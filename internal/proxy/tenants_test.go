// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/source"
)

// picky is a dataplane that refuses whatever has a frontend of Service s2, until it is not picky any more.
type picky struct {
	*recorder
	ended *atomic.Bool
}

func (p picky) refuse(c *desired.Change) error {
	for _, f := range c.Frontends {
		if f.New != nil && f.New.Service.Name == "s2" && !p.ended.Load() {
			return &dataplane.Refusal{Service: f.New.Service, Err: errors.New("no such thing")}
		}
	}
	return nil
}

func (p picky) Reconcile(ctx context.Context, c *desired.Change) (s dataplane.Stats, err error) {
	if err := p.refuse(c); err != nil {
		return s, err
	}
	return p.recorder.Reconcile(ctx, c)
}

func (p picky) Apply(ctx context.Context, c *desired.Change) (s dataplane.Stats, err error) {
	if err := p.refuse(c); err != nil {
		return s, err
	}
	return p.recorder.Apply(ctx, c)
}

// TestRefusedService has the kernel refuse one Service for ever. The others are programmed.
func TestRefusedService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		var ended atomic.Bool
		events := make(script)
		p := New(events, desired.New(desired.Config{}), picky{r, &ended}, metrics.New(), Options{CheckPeriod: time.Second})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		for _, e := range []source.Event{service(1), synced, service(2), service(3)} {
			events <- []source.Event{e}
			time.Sleep(time.Minute)
		}
		has := func(call string) (has bool) {
			r.set(func() { has = slices.Contains(r.calls, call) })
			return has
		}
		if !has("change +s3") {
			t.Errorf("s3 is not programmed: %q", r.calls)
		}
		if ended.Store(true); has("change +s2") {
			t.Error("s2 is programmed")
		}
		time.Sleep(2 * leaveOutFor)
		if !has("change +s2") {
			t.Errorf("s2 is not tried again: %q", r.calls)
		}
		stop()
		<-done
	})
}
