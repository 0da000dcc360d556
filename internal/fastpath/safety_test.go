// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/iface"
	"github.com/slipstream-proxy/slipstream/internal/node/conntrack"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
)

// connects makes a new connection to a Service and says who answers.
func (w *world) connects(p lab.Protocol, service int, ipv6 bool) string {
	w.t.Helper()
	reply, err := w.client.Connect(p, frontend(desired.TCP, service, ipv6).AddrPort)
	if err != nil {
		return lab.Outcome(err)
	}
	return reply.Server
}

// TestEndpointGone removes an endpoint from a Service while its pod keeps running. UDP moves to
// the endpoint that replaces it, TCP stays where it is, as on the slow path.
func TestEndpointGone(t *testing.T) { engines(t, testEndpointGone) }

func testEndpointGone(t *testing.T, engine Engine) {
	for _, ipv6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("ipv6=%t", ipv6), func(t *testing.T) {
			w := newWorld(t, Config{Engine: engine, Threshold: threshold})
			tcp, udp, bystander := w.stream(lab.TCP, web, ipv6), w.stream(lab.UDP, web, ipv6), w.stream(lab.UDP, other, ipv6)
			w.fast(tcp, udp, bystander)
			w.endpoints(web, w.web[1])
			w.apply()
			w.until("UDP moves", func() bool { return udp.Stats().Server == "web-2" })
			w.goesOn(tcp, udp, bystander)
			w.fast(tcp, udp, bystander)
			if f, _ := udp.flow(); f.Backend.Addr() != w.web[1].Addr(ipv6) {
				t.Errorf("UDP is offloaded to %v", f.Backend)
			}
			if by := w.connects(lab.TCP, web, ipv6); by != "web-2" {
				t.Errorf("a new connection is answered by %s", by)
			}
			// An answer that is on its way meanwhile may be lost.
			if n := udp.Stats(); n.Moved != 1 || n.Failed > 1 {
				t.Errorf("UDP: %+v, want one move and nothing lost", n)
			}
			if n := tcp.Stats(); n.Server != "web-1" {
				t.Errorf("TCP: %+v", n)
			}
			w.unharmed(tcp, bystander)
		})
	}
}

// TestPodGone deletes an endpoint's pod without notice, and removes the endpoint later. Its
// flows end, and UDP reaches another endpoint.
func TestPodGone(t *testing.T) { engines(t, testPodGone) }

func testPodGone(t *testing.T, engine Engine) {
	for _, ipv6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("ipv6=%t", ipv6), func(t *testing.T) {
			w := newWorld(t, Config{Engine: engine, Threshold: threshold})
			w.endpoints(other, w.web[1])
			w.apply()
			tcp, udp, bystander := w.stream(lab.TCP, web, ipv6), w.stream(lab.UDP, web, ipv6), w.stream(lab.TCP, other, ipv6)
			w.fast(tcp, udp, bystander)
			w.check(w.web[0].Delete())
			w.until("no flows to the pod are left", func() bool {
				_, t := tcp.flow()
				_, u := udp.flow()
				return !t && !u
			})
			w.endpoints(web, w.web[1])
			w.apply()
			w.until("UDP moves", func() bool { return udp.Stats().Server == "web-2" })
			w.goesOn(udp, bystander)
			w.fast(udp, bystander)
			if _, is := tcp.flow(); is {
				t.Errorf("TCP is offloaded to nowhere: %+v", tcp.Stats())
			}
			if by := w.connects(lab.TCP, web, ipv6); by != "web-2" {
				t.Errorf("a new connection is answered by %s", by)
			}
			w.unharmed(bystander)
			w.until("the interface has left", func() bool {
				s, err := w.Stats()
				w.check(err)
				return s.Interfaces == 3 && s.Errors == 0
			})
			w.check(w.Check(w.t.Context()))
		})
	}
}

// TestServiceGone deletes a Service. Its connections go on, as on the slow path,
// until they end; but none is offloaded any more.
func TestServiceGone(t *testing.T) { engines(t, testServiceGone) }

func testServiceGone(t *testing.T, engine Engine) {
	w := newWorld(t, Config{Engine: engine, Threshold: threshold})
	tcp, bystander := w.stream(lab.TCP, web, false), w.stream(lab.TCP, other, false)
	w.fast(tcp, bystander)
	w.state.DeleteService("default", "web")
	w.apply()
	if by := w.connects(lab.TCP, web, false); by == "web-1" {
		t.Errorf("a new connection is answered by %s", by)
	}
	w.goesOn(tcp, bystander)
	w.check(w.Flush(w.t.Context(), Flush{All: true}))
	if _, is := tcp.flow(); is {
		t.Error("the Service's connection is offloaded after a flush")
	}
	w.fast(bystander)
	w.goesOn(tcp, bystander)
	if _, is := tcp.flow(); is {
		t.Error("the connection to a deleted Service was offloaded again")
	}
	w.unharmed(tcp, bystander)
	if _, known := w.Service(frontend(desired.TCP, web, false)); known {
		t.Error("the Controller still knows of the Service")
	}
	w.addService(web)
	w.apply()
	w.fast(tcp)
	if s, _ := w.Service(frontend(desired.TCP, web, false)); s.String() != "default/web:tcp" {
		t.Errorf("the frontend's Service is %s", s)
	}
}

// TestStop ends the Controller. Connections go on as if it had never been there.
func TestStop(t *testing.T) { engines(t, testStop) }

func testStop(t *testing.T, engine Engine) {
	w := newWorld(t, Config{Engine: engine, Threshold: threshold})
	streams := []*stream{w.stream(lab.TCP, web, false), w.stream(lab.UDP, web, true)}
	w.fast(streams...)
	w.stop()
	w.check(w.Stop())
	if all, err := w.flows.List(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("still offloaded: %v, %v", all, err)
	}
	w.goesOn(streams...)
	if got := w.sh("nft list ruleset | grep -e fastpath -e flowtable || true"); got != "" {
		t.Errorf("it has left something: %s", got)
	}
	if all := append(w.withProgram("forward"), w.withProgram("guard")...); len(all) > 0 {
		t.Errorf("it has left a BPF program at %v", all)
	}
	if _, err := os.Stat(w.pins()); err == nil {
		t.Errorf("it has left %s", w.pins())
	}
	w.unharmed(streams...)
}

// TestHandOver closes a Controller and makes another one. Offloaded connections stay offloaded
// in between, and are again afterwards.
func TestHandOver(t *testing.T) { engines(t, testHandOver) }

func testHandOver(t *testing.T, engine Engine) {
	w := newWorld(t, Config{Engine: engine, Threshold: threshold})
	s := w.stream(lab.TCP, web, false)
	w.fast(s)
	w.stop()
	w.check(w.Close())
	w.watchSlowPath()
	w.goesOn(s)
	if original, reply := w.slowPackets(); original+reply > 0 {
		t.Errorf("%d and %d packets went the slow path", original, reply)
	}
	w.start(Config{Engine: engine, Threshold: threshold + 10})
	w.goesOn(s)
	w.fast(s) // after it has passed the rules, see TestAdoptedPolicy
	w.check(w.Check(w.t.Context()))
	w.unharmed(s)
	late := w.stream(lab.UDP, other, true)
	w.fast(late)
	if f, _ := late.flow(); f.Sent.Packets+f.Received.Packets <= threshold+10 {
		t.Errorf("the new threshold does not count: %+v", f)
	}

	// What the next one does not want, leaves.
	w.stop()
	w.check(w.Close())
	fewer, err := iface.Compile(`interface.up && interface.name in ["veth1", "veth2"]`)
	w.check(err)
	w.start(Config{Engine: engine, Threshold: threshold, Interfaces: fewer})
	w.has("veth1 veth2")
	w.goesOn(s, late)
	w.unharmed(s, late)
}

// TestInterfaceGone takes an interface down, and then away. Flows of others do not
// notice.
func TestInterfaceGone(t *testing.T) { engines(t, testInterfaceGone) }

func testInterfaceGone(t *testing.T, engine Engine) {
	w := newWorld(t, Config{Engine: engine, Threshold: threshold})
	w.endpoints(other, w.web[1])
	w.apply()
	tcp, bystander := w.stream(lab.TCP, web, false), w.stream(lab.TCP, other, false)
	w.fast(tcp, bystander)
	link, err := w.links.LinkByName(w.web[0].NodeLink())
	w.check(err)
	w.check(w.links.LinkSetDown(link))
	// A packet under way may offload it again before its route is gone; the next
	// one finds that out.
	w.until("no flow outlives its interface", func() bool { _, is := tcp.flow(); return !is })
	w.interfaces(3)
	w.goesOn(bystander)
	w.check(w.links.LinkSetUp(link))
	w.interfaces(4)
	w.check(w.links.LinkDel(link))
	w.interfaces(3)
	w.goesOn(bystander)
	w.fast(bystander)
	w.unharmed(bystander)
	w.check(w.Check(w.t.Context()))
	if s, err := w.Stats(); err != nil || s.Errors > 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

// interfaces waits until so many take part.
func (w *world) interfaces(n int) {
	w.t.Helper()
	w.until(fmt.Sprintf("%d interfaces take part", n), func() bool {
		s, err := w.Stats()
		w.check(err)
		return s.Interfaces == n
	})
}

// TestIdle lets connections be idle for longer than flows live. Their entries stay for as long
// as conntrack keeps entries of their kind.
func TestIdle(t *testing.T) {
	for _, c := range []struct {
		protocol lab.Protocol
		ipv6     bool
		least    int // seconds
	}{{lab.TCP, false, 3600}, {lab.UDP, true, 20}} {
		t.Run(string(c.protocol), func(t *testing.T) {
			w := newWorld(t, Config{Threshold: 1})
			for _, protocol := range []string{"tcp", "udp"} {
				w.check(w.node.SetSysctl("netfilter/nf_flowtable_"+protocol+"_timeout", "1"))
			}
			s := w.streamFrom(w.client, c.protocol, web, c.ipv6, 8*time.Second)
			w.fast(s)
			w.until("the flow is idle", func() bool { _, is := s.flow(); return !is })
			if n := s.Stats().Received; n != 1 {
				t.Fatalf("it has not been idle: %d answers", n)
			}
			if got := w.timeout(s); got < c.least {
				t.Errorf("the entry stays for %d s", got)
			}
			w.until("it goes on", func() bool { return s.Stats().Received == 2 })
			w.fast(s)
			// The same when it comes back to the slow path by a flush.
			w.check(w.Flush(w.t.Context(), Flush{All: true, Hold: time.Minute}))
			if _, is := s.flow(); is {
				t.Error("it is offloaded after a flush")
			}
			w.until("it goes on", func() bool { return s.Stats().Received == 3 })
			w.until("the last acknowledgement has come", func() bool { return w.timeout(s) >= c.least })
			w.unharmed(s)
		})
	}
}

// TestRefresh has all connections pass the slow path again and again. It is what
// keeps entries alive on kernels that let those of offloaded connections expire
// (see the package's documentation), which the test pretends to: it has the entry
// expire soon, and looks whether it does.
func TestRefresh(t *testing.T) {
	w := newWorld(t, Config{Threshold: threshold, Refresh: 500 * time.Millisecond})
	s := w.stream(lab.TCP, web, false)
	w.fast(s)
	for range 2 {
		w.expire(s, 5)
		time.Sleep(6 * time.Second)
	}
	w.goesOn(s)
	w.fast(s)
	w.unharmed(s)
	if n, err := w.Stats(); err != nil || n.Flushes < 4 {
		t.Errorf("%+v, %v", n, err)
	}
}

// TestMasqueraded connects a pod to itself through a Service. The pod must see another source
// address than its own.
func TestMasqueraded(t *testing.T) { engines(t, testMasqueraded) }

func testMasqueraded(t *testing.T, engine Engine) {
	w := newWorld(t, Config{Engine: engine, Threshold: threshold})
	for _, ipv6 := range []bool{false, true} {
		for _, p := range []lab.Protocol{lab.TCP, lab.UDP} {
			s := w.streamFrom(w.web[0], p, web, ipv6, interval)
			w.fast(s)
			w.noSlowPackets(s)
			if seen := s.Stats().Seen.Addr(); seen == w.web[0].Addr(ipv6) {
				t.Errorf("%v, IPv6 %t: the pod sees itself", p, ipv6)
			}
			w.unharmed(s)
		}
	}
}

// TestCleaning has a kernel that refuses to delete entries of offloaded connections:
// the real one does not, so the test does it for it.
func TestCleaning(t *testing.T) { engines(t, testCleaning) }

func testCleaning(t *testing.T, engine Engine) {
	w := newWorld(t, Config{Engine: engine, Threshold: threshold})
	udp, bystander := w.stream(lab.UDP, web, false), w.stream(lab.UDP, other, false)
	w.fast(udp, bystander)
	refused := 0
	clean := w.Cleaning(func(ctx context.Context, stale []desired.StaleFlows) (conntrack.Stats, error) {
		if _, is := udp.flow(); is {
			refused++
			return conntrack.Stats{Dumps: 1}, fmt.Errorf("deleting: %w", unix.EBUSY)
		}
		return w.clean.Clean(ctx, stale)
	})
	w.endpoints(web, w.web[1])
	change := w.state.Change()
	w.check2(w.proxy.Apply(w.t.Context(), &change.Change))
	w.check2(w.Controller.Apply(w.t.Context(), &change.Change))
	stats, err := clean(t.Context(), change.Flows)
	if err != nil || stats.Deleted != 1 || stats.Dumps <= 1 || refused == 0 {
		t.Errorf("%+v, %v; refused %d times", stats, err, refused)
	}
	w.until("UDP moves", func() bool { return udp.Stats().Server == "web-2" })
	w.goesOn(bystander)
	w.fast(udp, bystander)
	w.unharmed(bystander)

	// Other errors are passed on at once.
	calls := 0
	_, err = w.Cleaning(func(context.Context, []desired.StaleFlows) (conntrack.Stats, error) {
		calls++
		return conntrack.Stats{}, unix.EPERM
	})(t.Context(), nil)
	if !errors.Is(err, unix.EPERM) || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
}

// TestDeletedNode checks that connections to an endpoint of a deleted Node are reset although
// they are offloaded, and no others.
func TestDeletedNode(t *testing.T) { engines(t, testDeletedNode) }

func testDeletedNode(t *testing.T, engine Engine) {
	for _, ipv6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("ipv6=%t", ipv6), func(t *testing.T) {
			w := newWorld(t, Config{Engine: engine, Threshold: threshold})
			w.endpoints(other, w.web[1])
			w.apply()
			s, bystander := w.stream(lab.TCP, web, ipv6), w.stream(lab.TCP, other, ipv6)
			w.fast(s, bystander)
			w.endpoints(web, w.web[1])
			w.apply()
			w.goesOn(s)
			deleted := desired.StaleFlows{Protocol: desired.TCP, Backends: []desired.Backend{desired.NewBackend(portOf(w.web[0].Addr(ipv6)))}}
			w.check2(w.Cleaning(w.clean.Clean)(t.Context(), []desired.StaleFlows{deleted}))
			w.until("it is reset", func() bool { return s.Stats().Ended })
			if err := s.Stats().Last; !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("it ended by %v", err)
			}
			w.goesOn(bystander)
			w.fast(bystander)
			w.unharmed(bystander)
		})
	}
}
