// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"slices"
	"strings"
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
	ended   *atomic.Bool
	unnamed bool // it does not say what it refuses
}

func (p picky) refuse(c *desired.Change) error {
	for _, f := range c.Frontends {
		if f.New != nil && f.New.Service.Name == "s2" && !p.ended.Load() {
			refusal := &dataplane.Refusal{Service: f.New.Service, Err: errors.New("no such thing")}
			if p.unnamed {
				refusal.Service = desired.ServicePort{}
			}
			return refusal
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
		p := New(events, desired.New(desired.Config{}), picky{r, &ended, false}, metrics.New(), Options{CheckPeriod: time.Second})
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

// TestRefusalForNoService has the dataplane refuse everything for a while, without a Service. It programs all of them
// soon after that.
func TestRefusalForNoService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := start(t, Options{CheckPeriod: time.Second})
		l.events <- []source.Event{service(1), synced}
		l.wait("full +s1")
		l.set(func() {
			l.calls = nil
			l.fail = slices.Repeat([]error{&dataplane.Refusal{Err: errors.New("no")}}, 4) // the change and all halves of it
			l.fail = append(l.fail, errors.New("no"))
		})
		l.events <- []source.Event{service(2), service(3), service(4)}
		time.Sleep(time.Minute)
		l.set(func() {
			if last := l.calls[len(l.calls)-1]; last != "full +s1 +s2 +s3 +s4" {
				t.Errorf("%q", l.calls)
			}
		})
	})
}

// TestUnnamedRefusal has the kernel refuse one Service of a change without its name. Half of the change is programmed
// at once, and the others of it step by step.
func TestUnnamedRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		var ended atomic.Bool
		events := make(script)
		p := New(events, desired.New(desired.Config{}), picky{r, &ended, true}, metrics.New(), Options{CheckPeriod: time.Second})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		want := func(when string, programmed ...string) {
			t.Helper()
			time.Sleep(time.Minute)
			var last string
			r.set(func() { last = strings.Join(r.calls, ", ") })
			for _, s := range []string{"s1", "s2", "s3", "s4", "s5"} {
				if strings.Contains(last, s) != slices.Contains(programmed, s) {
					t.Errorf("%s: %s; %q", when, s, last)
				}
			}
		}
		events <- []source.Event{service(1)}
		events <- []source.Event{synced}
		want("the start", "s1")
		events <- []source.Event{service(2), service(3), service(4)}
		want("at first", "s1", "s4")
		events <- []source.Event{service(5)}
		want("another change", "s1", "s4", "s5")
		time.Sleep(leaveOutFor)
		want("the innocent one is back", "s1", "s3", "s4", "s5")
		ended.Store(true)
		time.Sleep(leaveOutFor)
		want("all are", "s1", "s2", "s3", "s4", "s5")
		stop()
		<-done
	})
}
