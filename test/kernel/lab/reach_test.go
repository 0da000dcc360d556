// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

func TestReach(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	if err := b.client.RouteToPods(); err != nil {
		t.Fatal(err)
	}
	late := node(t, b.lab, "late", 3) // after RouteToPods
	web4 := pod(t, late, "web-4", "10.244.3.8", "fd00:244:3::8")
	pairs := []struct {
		name     string
		from, to *lab.Machine
	}{
		{"pod to pod of its node", &b.web1.Machine, &b.web2.Machine},
		{"pod to pod of another node", &b.web1.Machine, &b.web3.Machine},
		{"pod to itself", &b.web1.Machine, &b.web1.Machine},
		{"pod to its node", &b.web1.Machine, &b.n1.Machine},
		{"pod to another node", &b.web1.Machine, &b.n2.Machine},
		{"node to its pod", &b.n1.Machine, &b.web1.Machine},
		{"node to pod of another node", &b.n1.Machine, &b.web3.Machine},
		{"node to node", &b.n1.Machine, &b.n2.Machine},
		{"node to itself", &b.n1.Machine, &b.n1.Machine},
		{"host to node", &b.client.Machine, &b.n2.Machine},
		{"host to pod", &b.client.Machine, &b.web3.Machine},
		{"host to pod of a later node", &b.client.Machine, &web4.Machine},
		{"pod of a later node to pod", &web4.Machine, &b.web1.Machine},
	}
	eachWay(t, func(t *testing.T, p lab.Protocol, ipv6 bool) {
		for _, c := range pairs {
			t.Run(c.name, func(t *testing.T) {
				s := serve(t, c.to, p, netip.AddrPortFrom(c.to.Addr(ipv6), 80))
				defer s.Close()
				r, err := c.from.Connect(p, s.Addr())
				if err != nil {
					t.Fatal(err)
				}
				if r.Server != c.to.Name() || r.Local != s.Addr() {
					t.Errorf("answered by %q at %v, want %q at %v", r.Server, r.Local, c.to.Name(), s.Addr())
				}
				if r.Seen != r.Source || r.Source.Addr() != c.from.Addr(ipv6) || r.Source.Port() == 0 {
					t.Errorf("client %v is seen as %v, want both with address %v", r.Source, r.Seen, c.from.Addr(ipv6))
				}
				if s.Served() != 1 {
					t.Errorf("served %d, want 1", s.Served())
				}
			})
		}
	})
}

func TestWildcardServer(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	eachWay(t, func(t *testing.T, p lab.Protocol, ipv6 bool) {
		s := serve(t, &b.n1.Machine, p, wildcard(8080))
		defer s.Close()
		dests := []netip.Addr{b.n1.Addr(ipv6)}
		if !ipv6 && p != lab.SCTP { // SCTP does not leave a link-scope address
			// The pod's gateway is an address that the node takes as source only
			// when asked, so on UDP this fails if answers have just any source.
			dests = append(dests, netip.MustParseAddr("169.254.1.1"))
		}
		for _, d := range dests {
			dest := netip.AddrPortFrom(d, 8080)
			r, err := b.web1.Connect(p, dest)
			if err != nil {
				t.Fatal(err)
			}
			if r.Server != "n1" || r.Local != dest {
				t.Errorf("answered by %q at %v, want %q at %v", r.Server, r.Local, "n1", dest)
			}
		}
	})
}

func TestSource(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	eachWay(t, func(t *testing.T, p lab.Protocol, ipv6 bool) {
		s := serve(t, &b.web3.Machine, p, netip.AddrPortFrom(b.web3.Addr(ipv6), 80))
		defer s.Close()
		own := b.web1.Addr(ipv6)
		for _, c := range []struct {
			name string
			ask  netip.AddrPort
			port uint16 // 0: any
		}{
			{"address", netip.AddrPortFrom(own, 0), 0},
			{"port", netip.AddrPortFrom(netip.Addr{}, 2000), 2000},
			{"address and port", netip.AddrPortFrom(own, 2001), 2001},
		} {
			t.Run(c.name, func(t *testing.T) {
				r, err := b.web1.Connect(p, s.Addr(), lab.Source(c.ask))
				if err != nil {
					t.Fatal(err)
				}
				if r.Seen.Addr() != own || c.port != 0 && r.Seen.Port() != c.port {
					t.Errorf("seen as %v, want %v port %d", r.Seen, own, c.port)
				}
			})
		}
		foreign := netip.AddrPortFrom(b.web2.Addr(ipv6), 0)
		if _, err := b.web1.Connect(p, s.Addr(), lab.Source(foreign)); !errors.Is(err, syscall.EADDRNOTAVAIL) {
			t.Errorf("from another's address: %v, want %v", err, syscall.EADDRNOTAVAIL)
		}
	})
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	for _, cidr := range []string{"10.97.0.0/16", "fd00:97::/64"} {
		_, dst, err := net.ParseCIDR(cidr)
		if err != nil {
			t.Fatal(err)
		}
		err = b.n1.Do(func() error { return netlink.RouteAdd(&netlink.Route{Dst: dst, Type: unix.RTN_UNREACHABLE}) })
		if err != nil {
			t.Fatal(err)
		}
	}
	pick := func(ipv6 bool, v4, v6 string) netip.AddrPort {
		if ipv6 {
			v4 = v6
		}
		return netip.AddrPortFrom(netip.MustParseAddr(v4), 80)
	}
	eachWay(t, func(t *testing.T, p lab.Protocol, ipv6 bool) {
		check := func(name string, m *lab.Machine, dest netip.AddrPort, outcome string, is ...error) {
			t.Helper()
			timeout := patience
			switch outcome {
			case "timeout":
				timeout = silence
			case "refused":
				timeout = refused(p)
			}
			_, err := m.Connect(p, dest, lab.Timeout(timeout))
			if lab.Outcome(err) != outcome {
				t.Errorf("%s: outcome %q (%v), want %q", name, lab.Outcome(err), err, outcome)
			}
			for _, want := range []error{lab.ErrRefused, lab.ErrTimeout, syscall.ECONNREFUSED} {
				expected := false
				for _, i := range is {
					expected = expected || i == want
				}
				if errors.Is(err, want) != expected {
					t.Errorf("%s: errors.Is(%v, %v) is %v", name, err, want, !expected)
				}
			}
		}
		// Often, as the kernel by default sends few ICMP errors in a row.
		for range 20 {
			check("closed port", &b.web1.Machine, netip.AddrPortFrom(b.web3.Addr(ipv6), 9999), "refused", lab.ErrRefused, syscall.ECONNREFUSED)
		}
		// The default routes lead to the fabric, which forwards nothing.
		cluster := pick(ipv6, "10.96.0.1", "fd00:96::1")
		check("ClusterIP from pod", &b.web1.Machine, cluster, "timeout", lab.ErrTimeout)
		check("ClusterIP from node", &b.n1.Machine, cluster, "timeout", lab.ErrTimeout)
		if p == lab.SCTP { // its connect does not report that there is no route
			check("ClusterIP from host", &b.client.Machine, cluster, "timeout", lab.ErrTimeout)
		} else {
			check("ClusterIP from host", &b.client.Machine, cluster, "network is unreachable")
			check("pod from host", &b.client.Machine, netip.AddrPortFrom(b.web1.Addr(ipv6), 80), "network is unreachable")
		}
		unreachable := "no route to host"
		if ipv6 { // an unreachable route there is "no route" to the sender
			unreachable = "network is unreachable"
		}
		check("unreachable", &b.web1.Machine, pick(ipv6, "10.97.0.1", "fd00:97::1"), unreachable)
	})
	if _, err := b.web1.Connect(lab.TCP, netip.AddrPort{}); err == nil {
		t.Error("no error for the zero destination")
	}
}

// A client that looks for the result of its handshake only after the timeout, as on a busy
// machine, finds it.
func TestLateClient(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	for _, ipv6 := range []bool{false, true} {
		s := serve(t, &b.web3.Machine, lab.TCP, netip.AddrPortFrom(b.web3.Addr(ipv6), 80))
		if _, err := b.web1.Connect(lab.TCP, s.Addr(), lab.Timeout(1)); err != nil {
			t.Errorf("IPv6 %v: %v", ipv6, err)
		}
		closed := netip.AddrPortFrom(b.web3.Addr(ipv6), 9999)
		if _, err := b.web1.Connect(lab.TCP, closed, lab.Timeout(1)); !errors.Is(err, lab.ErrRefused) {
			t.Errorf("closed port, IPv6 %v: %v, want %v", ipv6, err, lab.ErrRefused)
		}
	}
}

func TestAddRoute(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	for _, ipv6 := range []bool{false, true} {
		prefix := netip.PrefixFrom(b.web3.Addr(ipv6), 24)
		s := serve(t, &b.web3.Machine, lab.TCP, netip.AddrPortFrom(b.web3.Addr(ipv6), 80))
		if _, err := b.client.Connect(lab.TCP, s.Addr()); !errors.Is(err, syscall.ENETUNREACH) {
			t.Errorf("without the route: %v, want %v", err, syscall.ENETUNREACH)
		}
		if err := b.client.AddRoute(prefix, b.n2.Addr(ipv6)); err != nil {
			t.Fatal(err)
		}
		if _, err := b.client.Connect(lab.TCP, s.Addr()); err != nil {
			t.Error(err)
		}
	}
}

// nft loads a ruleset in the machine.
func nft(t *testing.T, m *lab.Machine, rules string) {
	t.Helper()
	kerneltest.Require(t, kerneltest.NFTBinary)
	if _, err := m.Run(context.Background(), "nft", rules); err != nil {
		t.Fatal(err)
	}
}

// TestReject rejects packets like those to a Service without endpoints.
func TestReject(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	for _, hook := range []string{"forward", "output"} {
		nft(t, &b.n1.Machine, "add table inet t; add chain inet t "+hook+" { type filter hook "+hook+" priority 0; }; "+
			"add rule inet t "+hook+" th dport 80 reject; add rule inet t "+hook+" th dport 81 drop")
	}
	eachWay(t, func(t *testing.T, p lab.Protocol, ipv6 bool) {
		for _, m := range []*lab.Machine{&b.web1.Machine, &b.n1.Machine} {
			for range 5 {
				_, err := m.Connect(p, netip.AddrPortFrom(b.web3.Addr(ipv6), 80), lab.Timeout(refused(p)))
				if !errors.Is(err, lab.ErrRefused) {
					t.Errorf("rejected, from %s: %v, want %v", m.Name(), err, lab.ErrRefused)
				}
			}
			want := lab.ErrTimeout
			if p == lab.UDP && m == &b.n1.Machine {
				want = syscall.EPERM
			}
			_, err := m.Connect(p, netip.AddrPortFrom(b.web3.Addr(ipv6), 81), lab.Timeout(silence))
			if !errors.Is(err, want) {
				t.Errorf("dropped, from %s: %v, want %v", m.Name(), err, want)
			}
		}
	})
}

func TestDropOnTheWayOut(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	nft(t, &b.web1.Machine, "add table inet t; add chain inet t out { type filter hook output priority 0; }; add rule inet t out udp dport 80 drop")
	for _, ipv6 := range []bool{false, true} {
		_, err := b.web1.Connect(lab.UDP, netip.AddrPortFrom(b.web3.Addr(ipv6), 80))
		if !errors.Is(err, syscall.EPERM) || lab.Outcome(err) != "operation not permitted" {
			t.Errorf("IPv6 %v: %v, want %v", ipv6, err, syscall.EPERM)
		}
	}
}
