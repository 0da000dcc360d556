// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"context"
	"fmt"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/fastpath/iface"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// bridged puts the client and the first server behind a bridge, like the CNI plugin bridge.
func (w *world) bridged() {
	w.t.Helper()
	// Otherwise packets may be translated before they reach the bridge, which no engine expects.
	_ = w.node.SetSysctl("bridge/bridge-nf-call-iptables", "0") // missing without br_netfilter
	script := "set -e; ip link add br0 type bridge mcast_snooping 0; ip link set br0 up; ip addr add 169.254.1.1/32 dev br0;"
	for _, p := range []*lab.Pod{w.client, w.web[0]} {
		script += fmt.Sprintf("ip addr del 169.254.1.1/32 dev %[1]s; ip link set %[1]s master br0; ip route replace %[2]s/32 dev br0 src %[3]s;",
			p.NodeLink(), p.Addr(false), w.node.Addr(false))
	}
	w.check2(w.node.Run(context.Background(), "sh", "-c", script))
	for _, p := range []*lab.Pod{w.client, w.web[0]} {
		w.check2(p.Run(context.Background(), "ip", "neigh", "flush", "all"))
		w.until("the pod has a gateway again", func() bool {
			_, err := p.Run(context.Background(), "ping", "-c", "1", "-W", "1", "169.254.1.1")
			return err == nil
		})
	}
}

// noSlowPackets fails the test if packets of a stream take the slow path. A packet that was
// on its way, or with which the kernel refreshes the flow, may: then it counts again.
func (w *world) noSlowPackets(s *stream) {
	w.t.Helper()
	var original, reply int
	for range 3 {
		w.watchSlowPath()
		w.goesOn(s)
		if original, reply = w.slowPackets(); original+reply == 0 {
			return
		}
	}
	w.t.Errorf("%d and %d packets went the slow path", original, reply)
}

// newLinkAddress changes the link address of the server's interface, and announces it.
func (w *world) newLinkAddress(address string) {
	w.t.Helper()
	w.check2(w.web[0].Run(context.Background(), "sh", "-c", "ip link set eth0 address "+address+"; ping -c 1 -W 5 169.254.1.1"))
}

// TestBridge puts pods behind a bridge. By default the bridge takes part and its ports do not,
// so that flows follow changes of the next hop's link address.
func TestBridge(t *testing.T) { engines(t, testBridge) }

func testBridge(t *testing.T, engine Engine) {
	w := newQuietWorld(t, engine)
	w.bridged()
	w.start(Config{Engine: engine, Threshold: threshold})
	w.has("br0 eth0 veth3")
	s := w.stream(lab.TCP, web, false)
	w.fast(s)
	w.noSlowPackets(s)
	w.newLinkAddress("02:00:00:00:00:99")
	w.goesOn(s)
	w.noSlowPackets(s)
	if n := s.Stats(); n.Ended || n.Failed > 1 {
		t.Errorf("%+v", n)
	}
}

// TestNeighbour gives a pod another link address.
func TestNeighbour(t *testing.T) { engines(t, testNeighbour) }

func testNeighbour(t *testing.T, engine Engine) {
	w := newWorld(t, Config{Engine: engine, Threshold: threshold})
	s := w.stream(lab.TCP, web, false)
	w.fast(s)
	w.newLinkAddress("02:00:00:00:00:98")
	w.goesOn(s)
	w.fast(s)
	w.noSlowPackets(s)
	if n := s.Stats(); n.Ended || n.Failed > 1 {
		t.Errorf("%+v", n)
	}
}

// TestBridgePorts shows why: with a bridge's ports in the flowtable, the kernel keeps sending
// to the port and link address of the flow's start.
func TestBridgePorts(t *testing.T) {
	all, err := iface.Compile("interface.up")
	if err != nil {
		t.Fatal(err)
	}
	w := newQuietWorld(t, Flowtable)
	w.bridged()
	w.start(Config{Threshold: threshold, Interfaces: all})
	w.has("br0 eth0 lo veth1 veth2 veth3")
	s := w.stream(lab.UDP, web, false)
	w.fast(s)
	w.noSlowPackets(s)
	w.newLinkAddress("02:00:00:00:00:99")
	w.until("the stream is lost", func() bool { return s.Stats().Failed > 0 })
	w.check(w.Flush(w.t.Context(), Flush{All: true}))
	w.goesOn(s)
}

// TestVXLAN uses an endpoint on another node, over an overlay network like flannel's.
func TestVXLAN(t *testing.T) { engines(t, testVXLAN) }

func testVXLAN(t *testing.T, engine Engine) {
	w := newQuietWorld(t, engine)
	n2 := w.newNode("n2", 12, 2)
	far := w.newPod(n2, "far", 11)
	w.serve(far)
	for i, n := range []*lab.Node{w.node, n2} {
		w.check2(n.Run(context.Background(), "sh", "-c", fmt.Sprintf(`set -e
			ip link add vx0 type vxlan id 1 dstport 4789 local 192.168.100.1%[1]d remote 192.168.100.1%[2]d
			ip addr add 10.255.0.%[1]d/24 dev vx0; ip link set vx0 up
			ip route replace 10.244.%[2]d.0/24 via 10.255.0.%[2]d dev vx0 onlink`, i+1, 2-i)))
	}
	w.start(Config{Engine: engine, Threshold: threshold})
	w.has("eth0 veth1 veth2 veth3 vx0")
	w.endpoints(web, far)
	w.apply()
	for _, p := range []lab.Protocol{lab.TCP, lab.UDP} {
		s := w.stream(p, web, false)
		w.fast(s)
		w.noSlowPackets(s)
		if by := s.Stats().Server; by != "far" {
			t.Errorf("%v is answered by %s", p, by)
		}
		w.unharmed(s)
	}
}

// TestOtherNode uses an endpoint on another node, without an overlay network.
func TestOtherNode(t *testing.T) { engines(t, testOtherNode) }

func testOtherNode(t *testing.T, engine Engine) {
	w := newWorld(t, Config{Engine: engine, Threshold: threshold})
	n2 := w.newNode("n2", 12, 2)
	far := w.newPod(n2, "far", 11)
	w.serve(far)
	w.endpoints(web, far)
	w.apply()
	each(t, func(t *testing.T, p lab.Protocol, ipv6 bool) {
		s := w.stream(p, web, ipv6)
		w.fast(s)
		w.noSlowPackets(s)
		w.unharmed(s)
	})
}
