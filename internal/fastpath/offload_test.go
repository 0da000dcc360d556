// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// TestOffload checks that long connections leave the slow path in both directions, and are
// listed with all their properties.
func TestOffload(t *testing.T) { engines(t, testOffload) }

func testOffload(t *testing.T, engine Engine) {
	each(t, func(t *testing.T, p lab.Protocol, ipv6 bool) {
		w := newWorld(t, Config{Engine: engine, Threshold: threshold})
		s := w.stream(p, web, ipv6)
		w.fast(s)
		f, _ := s.flow()
		if want := w.web[0].Addr(ipv6); f.Backend.Addr() != want || f.Backend.Port() != targets {
			t.Errorf("backend %v, want %v", f.Backend, want)
		}
		w.noSlowPackets(s)
		g, _ := s.flow()
		if g.Sent.Packets < f.Sent.Packets+10 || g.Received.Packets < f.Received.Packets+10 || g.Sent.Bytes <= f.Sent.Bytes {
			t.Errorf("counters stand still: %+v, then %+v", f, g)
		}
		w.unharmed(s)
		stats, err := w.Stats()
		w.check(err)
		if stats.Offloaded != 1 || stats.Interfaces != 4 || stats.Frontends != 8 || stats.Hardware || stats.Errors != 0 {
			t.Errorf("%+v", stats)
		}
		w.check(w.Check(w.t.Context()))
	})
}

// TestScope connects to a pod's own address.
func TestScope(t *testing.T) { engines(t, testScope) }

func testScope(t *testing.T, engine Engine) {
	for _, scope := range []Scope{Services, All} {
		t.Run(string(scope), func(t *testing.T) {
			w := newWorld(t, Config{Engine: engine, Threshold: threshold, Scope: scope})
			direct := desired.FrontendKey{Protocol: desired.TCP}
			for _, a := range w.web[0].Addrs() {
				if a.Is4() {
					direct.AddrPort = portOf(a)
				}
			}
			ls, err := w.client.Stream(lab.TCP, direct.AddrPort, interval)
			w.check(err)
			t.Cleanup(func() { ls.Close() })
			toPod := &stream{ls, w, direct}
			s := w.stream(lab.TCP, web, false)
			w.fast(s)
			for range 5 {
				w.goesOn(toPod)
			}
			if _, is := toPod.flow(); is != (scope == All) {
				t.Errorf("a connection to a pod is offloaded: %t", is)
			}
			w.unharmed(s, toPod)
			w.check(w.Check(w.t.Context()))
		})
	}
}
