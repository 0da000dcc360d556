// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/source"
)

// TestReady checks that Ready is called once, when the kernel has the complete content, and not
// while it refuses.
func TestReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{fail: []error{errors.New("no")}}
		l := startWith(t, r, desired.New(desired.Config{}), Options{Ready: func(context.Context) { r.note("ready") }})
		l.events <- []source.Event{service(1), synced}
		l.wait("full +s1", "full +s1", "ready")
		l.events <- []source.Event{service(2)}
		l.wait("full +s1", "full +s1", "ready", "change +s2")
		l.events <- []source.Event{service(3)}
		l.wait("full +s1", "full +s1", "ready", "change +s2", "change +s3")
	})
}
