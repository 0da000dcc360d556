// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/source"
)

// TestInspect inspects a loop that programs, that the kernel refuses, and that has ended.
func TestInspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		l := startWith(t, r, desired.New(desired.Config{}), Options{})
		var got Inspection
		var services int
		inspect := func() {
			t.Helper()
			err := l.proxy.Inspect(t.Context(), func(i *Inspection) { got, services = *i, i.State.Services() })
			if err != nil {
				t.Fatal(err)
			}
		}
		inspect()
		if got.Synced || !got.Updated.IsZero() || len(got.Programmed) != 0 || services != 0 {
			t.Errorf("before the objects: %+v", got)
		}
		l.events <- []source.Event{service(1), synced}
		l.wait("full +s1")
		l.events <- []source.Event{service(2)}
		l.wait("full +s1", "change +s2")
		inspect()
		if !got.Synced || !got.Waiting.IsZero() || services != 2 || len(got.Programmed) != 2 || got.Programmed[0].Kind != metrics.Full || got.Programmed[1].Kind != metrics.Change || got.Programmed[1].Frontends != 1 {
			t.Errorf("after two calls: %+v", got)
		}
		r.mu.Lock()
		r.fail = []error{errors.New("no"), errors.New("never")}
		r.mu.Unlock()
		l.events <- []source.Event{service(3)}
		synctest.Wait()
		inspect()
		if got.Failed != "never" || got.Waiting.IsZero() {
			t.Errorf("after a failure: %+v", got)
		}
		l.stop()
		<-l.done
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := l.proxy.Inspect(ctx, func(*Inspection) {}); !errors.Is(err, context.Canceled) {
			t.Errorf("after the end: %v", err)
		}
	})
}
