// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"fmt"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/lab"
)

// stays makes sure that connections are not offloaded although they have many packets more.
func (w *world) stays(all ...*stream) {
	w.t.Helper()
	for range 3 {
		w.goesOn(all...)
	}
	for _, s := range all {
		if _, is := s.flow(); is {
			w.t.Errorf("%v is offloaded", s.to)
		}
	}
}

// TestServiceOptsOut annotates a Service whose connections are offloaded, and has a restart find
// the annotation on another one.
func TestServiceOptsOut(t *testing.T) {
	for _, scope := range []Scope{Services, All} {
		t.Run(fmt.Sprint(scope), func(t *testing.T) {
			w := newWorld(t, Config{Threshold: threshold, Scope: scope})
			out := []*stream{w.stream(lab.TCP, web, false), w.stream(lab.UDP, web, true)}
			others := []*stream{w.stream(lab.TCP, other, false), w.stream(lab.UDP, other, true)}
			w.fast(out...)
			w.fast(others...)
			w.annotate(web, "off")
			w.apply()
			w.stays(out...)
			w.stays(w.stream(lab.TCP, web, true))
			w.fast(others...)
			w.check(w.Check(t.Context()))

			w.annotate(web, "")
			w.apply()
			w.fast(out...)
			w.fast(others...)

			// The table and its flows are still there for the next run.
			w.stop()
			w.check(w.Close())
			w.annotate(other, "off")
			w.start(Config{Threshold: threshold, Scope: scope})
			w.stays(others...)
			w.fast(out...)
			w.check(w.Check(t.Context()))
			w.unharmed(out...)
			w.unharmed(others...)
		})
	}
}
