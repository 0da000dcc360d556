// SPDX-License-Identifier: Apache-2.0

package load_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/node/load"
	"github.com/slipstream-proxy/slipstream/test/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/lab"
)

// place is a node with a client and a server with several ports, of which the node translates
// 10.96.0.1:80 and 10.96.0.1:53 to the first of them.
type place struct {
	t              *testing.T
	node           *lab.Node
	client, server *lab.Pod
	counter        *load.Counter
}

var (
	web     = netip.MustParseAddrPort("10.96.0.1:80")
	dns     = netip.MustParseAddrPort("10.96.0.1:53")
	backend = netip.MustParseAddrPort("10.244.1.3:8000")
)

const rules = `
add table ip translate
add chain ip translate prerouting { type nat hook prerouting priority -100; }
add rule ip translate prerouting ip daddr 10.96.0.1 meta l4proto { tcp, udp } dnat to 10.244.1.3:8000`

func newPlace(t *testing.T) *place {
	t.Helper()
	kerneltest.Require(t, kerneltest.NFTBinary)
	l := kerneltest.NewLab(t)
	node, err := l.Node("n1", lab.NodeOptions{
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24")},
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
	})
	must(t, err)
	p := &place{t: t, node: node}
	p.client, err = node.Pod("client", netip.MustParseAddr("10.244.1.2"))
	must(t, err)
	p.server, err = node.Pod("server", backend.Addr())
	must(t, err)
	for _, protocol := range []lab.Protocol{lab.TCP, lab.UDP} {
		_, err := p.server.Serve(protocol, netip.AddrPortFrom(netip.IPv4Unspecified(), backend.Port()))
		must(t, err)
	}
	if out, err := node.Run(context.WithoutCancel(t.Context()), "nft", rules); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p.count()
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// count makes a new counter.
func (p *place) count() {
	c := load.New(p.node.FD())
	p.t.Cleanup(func() { must(p.t, c.Stop()) })
	p.counter = c
}

func keyOf(p desired.Protocol) load.Key {
	return load.Key{Protocol: p, Backend: desired.NewBackend(backend)}
}

// await updates the counter until a backend has so many open connections. It returns how
// many were made meanwhile.
func (p *place) await(protocol desired.Protocol, open int) (made int) {
	p.t.Helper()
	k := keyOf(protocol)
	var l load.Load
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		must(p.t, p.counter.Update(p.t.Context()))
		l = p.counter.Of(k)
		if made += l.New; l.Open == open {
			return made
		}
	}
	p.t.Fatalf("%s: %+v, want %d open", protocol, l, open)
	return 0
}

func (p *place) stream(protocol lab.Protocol, to netip.AddrPort) *lab.Stream {
	p.t.Helper()
	s, err := p.client.Stream(protocol, to, 10*time.Millisecond)
	must(p.t, err)
	p.t.Cleanup(func() { s.Close() })
	return s
}

// Connections count from their first packet until one end closes them, not until conntrack
// forgets them two minutes later.
func TestOpen(t *testing.T) {
	p := newPlace(t)
	p.await(desired.TCP, 0)
	a, b := p.stream(lab.TCP, web), p.stream(lab.TCP, web)
	if made := p.await(desired.TCP, 2); made != 2 {
		t.Errorf("%d connections made, want 2", made)
	}
	a.Close()
	if made := p.await(desired.TCP, 1); made != 0 {
		t.Errorf("%d connections made by closing one", made)
	}
	b.Close()
	p.await(desired.TCP, 0)
	for range 50 {
		_, err := p.client.Connect(lab.TCP, web)
		must(t, err)
	}
	p.await(desired.TCP, 0)
}

// UDP flows count until conntrack forgets them.
func TestUDP(t *testing.T) {
	p := newPlace(t)
	p.await(desired.UDP, 0)
	flow := p.stream(lab.UDP, dns)
	if made := p.await(desired.UDP, 1); made > 1 {
		t.Errorf("%d flows made, want 1", made)
	}
	flow.Close()
	for deadline := time.Now().Add(time.Minute); p.counter.Of(keyOf(desired.UDP)).Open > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%+v", p.counter.Of(keyOf(desired.UDP)))
		}
		// It fails if there is no entry.
		_, _ = p.node.Run(context.WithoutCancel(t.Context()), "conntrack", "-D", "-p", "udp")
		must(t, p.counter.Update(t.Context()))
	}
}

// A counter that begins later, or has stopped, reads the table.
func TestTable(t *testing.T) {
	p := newPlace(t)
	p.await(desired.TCP, 0)
	a := p.stream(lab.TCP, web)
	closed := p.stream(lab.TCP, web)
	p.await(desired.TCP, 2)
	closed.Close()
	p.await(desired.TCP, 1)
	must(t, p.counter.Stop())
	b := p.stream(lab.TCP, web)
	p.count()
	if made := p.await(desired.TCP, 2); made != 0 {
		t.Errorf("%d connections made before the counter began", made)
	}
	b.Close()
	a.Close() // which the kernel does not report if no socket was there when it began
	p.await(desired.TCP, 0)
}

// Connections that the node does not translate do not count.
func TestUntranslated(t *testing.T) {
	p := newPlace(t)
	p.await(desired.TCP, 0)
	p.stream(lab.TCP, backend)
	p.stream(lab.TCP, web)
	p.await(desired.TCP, 1)
}
