// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/flows"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

func (w *world) offloaded() uint64 {
	w.t.Helper()
	s, err := w.Stats()
	w.check(err)
	return s.Offloaded
}

// TestFlush returns connections to the slow path without holding them there.
func TestFlush(t *testing.T) { engines(t, testFlush) }

func testFlush(t *testing.T, engine Engine) {
	w := newWorld(t, Config{Engine: engine, Threshold: threshold})
	streams := []*stream{w.stream(lab.TCP, web, false), w.stream(lab.UDP, web, true), w.stream(lab.TCP, other, true)}
	w.fast(streams...)
	for n := uint64(2); n < 5; n++ {
		w.check(w.Flush(w.t.Context(), Flush{All: true}))
		w.until("all have been offloaded again", func() bool { return w.offloaded() == n*uint64(len(streams)) })
		w.check(w.Check(w.t.Context()))
	}
	w.fast(streams...)
	w.goesOn(streams...)
	w.unharmed(streams...)
	if s, err := w.Stats(); err != nil || s.Flushes != 3 || s.Errors != 0 || s.Interfaces != 4 {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestFlushSettles makes the kernel take long to free the old flowtable. Only Flush waits for
// it.
func TestFlushSettles(t *testing.T) {
	w := newWorld(t, Config{Threshold: threshold})
	settling, settled, flushed := make(chan bool), make(chan bool), make(chan error, 1)
	settle := sync.OnceFunc(func() { close(settled) })
	w.settle = func(int) error { settling <- true; <-settled; return nil }
	go func() { flushed <- w.Flush(w.t.Context(), Flush{All: true}) }()
	<-settling
	defer time.AfterFunc(2*time.Minute, func() {
		t.Error("another method waits for Flush")
		settle()
	}).Stop()
	w.check2(w.Reconcile(w.t.Context(), &w.state.Full().Change))
	w.endpoints(web, w.web[1])
	w.apply()
	w.check(w.Check(w.t.Context()))
	w.check2(w.Stats())
	w.dummy("late")
	w.has("eth0 late veth1 veth2 veth3")
	select {
	case err := <-flushed:
		t.Errorf("Flush returned before the kernel had settled: %v", err)
	default:
	}
	settle()
	w.check(<-flushed)
}

// TestFlushHolds keeps some connections on the slow path and does not affect others.
func TestFlushHolds(t *testing.T) { engines(t, testFlushHolds) }

func testFlushHolds(t *testing.T, engine Engine) {
	for _, c := range []struct {
		name  string
		flush func(w *world) Flush
		held  [3]bool // web over TCP and IPv4, web over UDP and IPv6, other from another client
	}{
		{"a Service, IPv4", func(*world) Flush {
			return Flush{Frontends: []desired.FrontendKey{frontend(desired.TCP, web, false), frontend(desired.TCP, web, false)}}
		}, [3]bool{true, false, false}},
		{"a Service, IPv6", func(*world) Flush {
			return Flush{Frontends: []desired.FrontendKey{frontend(desired.TCP, web, true), frontend(desired.UDP, web, true)}}
		}, [3]bool{false, true, false}},
		{"a client", func(w *world) Flush { return Flush{Addresses: w.client.Addrs()} }, [3]bool{true, true, false}},
		{"another client, mapped", func(w *world) Flush {
			return Flush{Addresses: []netip.Addr{netip.AddrFrom16(w.web[1].Addr(false).As16())}}
		}, [3]bool{false, false, true}},
		{"a backend", func(w *world) Flush { return Flush{Addresses: []netip.Addr{w.web[0].Addr(true)}} }, [3]bool{false, true, false}},
		{"all", func(*world) Flush { return Flush{All: true} }, [3]bool{true, true, true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, Config{Engine: engine, Threshold: threshold})
			streams := [3]*stream{
				w.stream(lab.TCP, web, false), w.stream(lab.UDP, web, true),
				w.streamFrom(w.web[1], lab.TCP, other, false, interval),
			}
			w.fast(streams[:]...)
			f := c.flush(w)
			f.Hold = time.Minute
			w.check(w.Flush(w.t.Context(), f))
			for i, s := range streams {
				if _, is := s.flow(); is && c.held[i] {
					t.Errorf("%v is offloaded after a flush", s.to)
				}
			}
			for i, s := range streams {
				if !c.held[i] {
					w.fast(s)
				}
			}
			// It has had many more packets by now.
			w.goesOn(streams[:]...)
			for i, s := range streams {
				if _, is := s.flow(); is == c.held[i] {
					t.Errorf("%v is offloaded: %t", s.to, is)
				}
			}
			f.Hold = time.Second // from now on
			w.check(w.Flush(w.t.Context(), f))
			w.check(w.Check(w.t.Context()))
			w.fast(streams[:]...)
			w.goesOn(streams[:]...)
			w.unharmed(streams[:]...)
		})
	}
}

// TestPolicy drops packets of an offloaded connection, which takes effect after a flush.
// Dropped packets are not offloaded again.
func TestPolicy(t *testing.T) { engines(t, testPolicy) }

func testPolicy(t *testing.T, engine Engine) {
	w := newWorld(t, Config{Engine: engine, Threshold: threshold})
	s, bystander := w.stream(lab.UDP, web, false), w.stream(lab.UDP, other, false)
	w.fast(s, bystander)
	w.nft("add table inet np; add chain inet np forward { type filter hook forward priority 0; };" +
		"add rule inet np forward ct original ip daddr " + s.to.Addr().String() + " drop")
	w.goesOn(s)
	w.check(w.Flush(w.t.Context(), Flush{All: true}))
	w.until("it is dropped", func() bool { return s.Stats().Failed > 0 })
	if _, is := s.flow(); is {
		t.Error("a dropped connection is offloaded")
	}
	w.goesOn(bystander)
	w.fast(bystander)
	w.unharmed(bystander)
}

// TestPolicyLater drops packets of an offloaded connection some time after the policy's object has
// changed, as policy engines do.
func TestPolicyLater(t *testing.T) { engines(t, testPolicyLater) }

func testPolicyLater(t *testing.T, engine Engine) {
	w := newWorld(t, Config{Engine: engine, Threshold: threshold})
	s, bystander := w.stream(lab.UDP, web, false), w.stream(lab.TCP, other, true)
	w.fast(s, bystander)
	w.check(w.PolicyChanged(t.Context()))
	w.nft("add table inet np; add chain inet np forward { type filter hook forward priority 0; };" +
		"add rule inet np forward ct original ip daddr " + s.to.Addr().String() + " drop")
	w.until("it is dropped", func() bool { return s.Stats().Failed > 0 })
	w.fast(bystander)
	w.unharmed(bystander)
}

// TestFlushTable flushes as another process does, which the Controller takes for no damage.
func TestFlushTable(t *testing.T) { engines(t, testFlushTable) }

func testFlushTable(t *testing.T, engine Engine) {
	w := newWorld(t, Config{Engine: engine, Threshold: threshold})
	fd := w.node.FD()
	s, held := w.stream(lab.TCP, web, false), w.stream(lab.UDP, other, true)
	w.fast(s, held)
	w.check(w.Check(w.t.Context()))
	w.check(FlushTable(t.Context(), fd, Flush{Frontends: []desired.FrontendKey{held.to}, Hold: time.Minute}))
	if _, is := held.flow(); is {
		t.Errorf("%v is offloaded after a flush", held.to)
	}
	w.fast(s)
	w.check(w.Check(w.t.Context()))
	w.goesOn(s, held)
	w.unharmed(s, held)

	// The Controller goes on with it: what it adds, takes part.
	late := w.newPod(w.node, "late", 30)
	w.interfaces(5)
	w.fast(w.streamFrom(late, lab.TCP, web, false, interval))
	w.check(w.Check(w.t.Context()))

	services, err := ReadServices(fd)
	w.check(err)
	if got := services[s.to]; got != "default/web:tcp" || len(services) != 8 {
		t.Errorf("%d Services, %v is %q", len(services), s.to, got)
	}
	all, err := w.flows.List(t.Context())
	w.check(err)
	groups := flows.Groups(all, services)
	if len(groups) != 1 || groups[0].Flows != 2 || groups[0].Service != "default/web:tcp" || groups[0].Backends != 1 {
		t.Errorf("%+v", groups)
	}

	// Without a fast path, flushing does nothing.
	w.stop()
	w.check(w.Stop())
	w.check(FlushTable(t.Context(), fd, Flush{All: true}))
	if services, err := ReadServices(fd); err != nil || len(services) > 0 {
		t.Errorf("%v, %v", services, err)
	}
}
