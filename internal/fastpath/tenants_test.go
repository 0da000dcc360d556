// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// TestAnnotationAgainAndAgain has the owner of one Service change its annotation again and again. The connections of
// all others stay on the fast path nearly all the time, and those of the Service leave it after the pause.
func TestAnnotationAgainAndAgain(t *testing.T) {
	engines(t, func(t *testing.T, engine Engine) {
		w := newWorld(t, Config{Engine: engine, Threshold: threshold, excludePause: 5 * time.Second})
		for range 5 {
			w.annotate(web, "off")
			w.apply()
			w.annotate(web, "")
			w.apply()
		}
		if s, err := w.Stats(); err != nil || s.Flushes > 2 {
			t.Errorf("%d flushes, %v", s.Flushes, err)
		}
		out, others := w.stream(lab.TCP, web, false), w.stream(lab.TCP, other, false)
		w.fast(out, others)
		w.annotate(web, "off")
		w.apply()
		time.Sleep(w.Controller.config.excludePause + 2*retry)
		w.stays(out)
		w.fast(others)
	})
}
