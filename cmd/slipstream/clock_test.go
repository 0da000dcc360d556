// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"golang.org/x/sys/unix"
)

// TestClockJumps sets the machine's clock by days while a proxy runs. Changes still take
// effect, and the proxy stays healthy.
func TestClockJumps(t *testing.T) {
	kerneltest.Require(t, kerneltest.OwnClock)
	s := newSite(t)
	s.save("web.yaml", web(0))
	s.run("--healthz-bind-address", "127.0.0.1", "--metrics-bind-address", "127.0.0.1", "--iptables-sync-period", "1s")
	s.untilReached("web-0")
	begin := time.Now()
	for i, jump := range []time.Duration{50 * time.Hour, -100 * time.Hour, 50 * time.Hour} {
		s.jump(jump)
		if i == 0 && time.Now().Round(0).Sub(begin.Round(0)) < jump {
			t.Fatal("the clock has not jumped")
		}
		s.save("web.yaml", web(1+i%2))
		s.untilReached([]string{"web-1", "web-2"}[i%2])
		time.Sleep(3 * time.Second) // a change that were waiting would be late after two
		if got := s.ask("127.0.0.1:10256", "/healthz"); !strings.Contains(got, "lastUpdated") {
			t.Errorf("after a jump of %v, /healthz says %q", jump, got)
		}
	}
	if got := s.ask("127.0.0.1:10249", "/metrics"); strings.Contains(got, "network_programming_duration_seconds_sum -") {
		t.Error("a latency is negative")
	}
}

// jump sets the clock forward, or back.
func (s *site) jump(d time.Duration) {
	s.t.Helper()
	to := unix.NsecToTimeval(time.Now().Add(d).UnixNano())
	s.check(unix.Settimeofday(&to))
}
