// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// street is a node with a client and two servers, whose rules the test writes.
type street struct {
	*Conn
	t      *testing.T
	node   *lab.Node
	client *lab.Pod
	web    [2]*lab.Pod
	ipv6   bool

	service, other netip.AddrPort // frontends
}

func newStreet(t *testing.T, ipv6 bool) *street {
	kerneltest.Require(t, kerneltest.NFTBinary)
	l, err := lab.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s := &street{
		t: t, ipv6: ipv6,
		service: netip.MustParseAddrPort("10.96.0.10:53"), other: netip.MustParseAddrPort("10.96.0.20:53"),
	}
	if ipv6 {
		s.service, s.other = netip.MustParseAddrPort("[fd00:96::10]:53"), netip.MustParseAddrPort("[fd00:96::20]:53")
	}
	s.node, err = l.Node("n1", lab.NodeOptions{
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24"), netip.MustParsePrefix("fd00:100::11/64")},
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:244:1::/64")},
	})
	must(err)
	pod := func(name string, host int) *lab.Pod {
		p, err := s.node.Pod(name, netip.MustParseAddr(fmt.Sprintf("10.244.1.%d", host)),
			netip.MustParseAddr(fmt.Sprintf("fd00:244:1::%d", host)))
		must(err)
		return p
	}
	s.client = pod("client", 2)
	for i := range s.web {
		s.web[i] = pod(fmt.Sprintf("web-%d", i+1), 11+i)
	}
	s.Conn = dial(t, s.node.Namespace)
	s.nft("add table inet street")
	s.nft("add chain inet street services { type nat hook prerouting priority dstnat; }")
	return s
}

func (s *street) nft(command string) {
	s.t.Helper()
	if _, err := s.node.Run(context.Background(), "nft", command); err != nil {
		s.t.Fatal(err)
	}
}

// serve has both pods serve a protocol.
func (s *street) serve(p lab.Protocol) {
	s.t.Helper()
	for i, web := range s.web {
		if _, err := web.Serve(p, s.backend(i)); err != nil {
			s.t.Fatal(err)
		}
	}
}

// backend is a pod's address and port.
func (s *street) backend(i int) netip.AddrPort {
	return netip.AddrPortFrom(s.web[i].Addr(s.ipv6), 5353)
}

// noPod leaves the Service without a backend, as an argument of send.
const noPod = -1

// send makes one pod, or none, the backend of the Service, and the first pod that of the other
// Service.
func (s *street) send(to int) {
	s.t.Helper()
	rules := "flush chain inet street services;"
	backends := map[netip.AddrPort]netip.AddrPort{s.other: s.backend(0)}
	if to != noPod {
		backends[s.service] = s.backend(to)
	}
	for frontend, backend := range backends {
		family := "ip"
		if s.ipv6 {
			family = "ip6"
		}
		rules += fmt.Sprintf("add rule inet street services %s daddr %v meta l4proto {tcp, udp, sctp} th dport %d dnat %s to %v;",
			family, frontend.Addr(), frontend.Port(), family, backend)
	}
	s.nft(rules)
}

// stream starts a stream to a frontend, which waits for an echo for so long.
func (s *street) stream(p lab.Protocol, to netip.AddrPort, echo time.Duration) *lab.Stream {
	s.t.Helper()
	stream, err := s.client.Stream(p, to, 5*time.Millisecond, lab.Timeout(echo))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { stream.Close() })
	return stream
}

// patience is how long tests wait for an expected event.
const patience = 2 * time.Minute

// until waits until stats are as they should be.
func (s *street) until(stream *lab.Stream, what string, ok func(lab.StreamStats) bool) lab.StreamStats {
	s.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		stats := stream.Stats()
		if ok(stats) {
			return stats
		}
		if time.Now().After(end) {
			s.t.Fatalf("the stream does not %s: %+v", what, stats)
		}
	}
}

// answers waits for three more answers, and says by whom.
func (s *street) answers(stream *lab.Stream) (server string) {
	s.t.Helper()
	before := stream.Stats().Received
	return s.until(stream, "go on", func(n lab.StreamStats) bool { return n.Received >= before+3 }).Server
}

// flows are stale flows to the Service.
func (s *street) flows(p desired.Protocol, backends ...int) (f desired.StaleFlows) {
	f.Protocol = p
	f.Frontends = []desired.FrontendKey{{AddrPort: s.service, Protocol: p}}
	for _, b := range backends {
		f.Backends = append(f.Backends, desired.NewBackend(s.backend(b)))
	}
	return f
}

// cleans deletes n entries.
func (s *street) cleans(n int, f desired.StaleFlows) {
	s.t.Helper()
	stats, err := s.Clean(s.t.Context(), []desired.StaleFlows{f})
	if err != nil || stats.Deleted != n {
		s.t.Fatalf("%+v: %+v, %v; want %d deleted", f, stats, err, n)
	}
}

// TestUDP uses clients that keep their ports, and checks which pod answers them after each
// change of rules, with and without a clean-up.
func TestUDP(t *testing.T) {
	for _, family := range []family{ipv4, ipv6} {
		t.Run(family.String(), func(t *testing.T) {
			s := newStreet(t, family == ipv6)
			s.serve(lab.UDP)
			s.serve(lab.TCP)

			// A client sends from one port, from before the Service has
			// endpoints. Its packets go out somewhere.
			asks := func(want string) {
				t.Helper()
				timeout := patience
				if want == "" {
					timeout = 200 * time.Millisecond
				}
				reply, err := s.client.Connect(lab.UDP, s.service, lab.Timeout(timeout),
					lab.Source(netip.AddrPortFrom(s.client.Addr(s.ipv6), 40_000)))
				if want == "" && !errors.Is(err, lab.ErrTimeout) || want != "" && reply.Server != want {
					t.Errorf("%+v, %v, want %q", reply, err, want)
				}
			}
			s.send(noPod)
			asks("")
			s.send(0)
			asks("")
			s.cleans(0, s.flows(desired.UDP, 0, 1))
			s.cleans(1, untranslated(s.flows(desired.UDP)))
			asks("web-1")
			s.cleans(0, untranslated(s.flows(desired.UDP)))
			if stats, err := s.ForgetIPVS(t.Context(), desired.UDP, []netip.AddrPort{s.service}); err != nil || stats.Entries < 1 || stats.Deleted != 0 {
				t.Errorf("looking for flows of IPVS: %+v, %v; want one that is none", stats, err)
			}
			s.cleans(1, only(s.flows(desired.UDP)))

			// Another keeps its socket, whatever becomes of the Service.
			// An echo is lost now and then when its flow is deleted.
			udp := s.stream(lab.UDP, s.service, time.Second)
			s.answers(udp)

			// Two that are to be left alone.
			tcp, other := s.stream(lab.TCP, s.service, patience), s.stream(lab.UDP, s.other, patience)
			s.answers(tcp)
			s.answers(other)

			s.send(1)
			if by := s.answers(udp); by != "web-1" {
				t.Errorf("without a clean-up it is answered by %s", by)
			}
			s.cleans(0, s.flows(desired.UDP, 1))
			s.cleans(1, s.flows(desired.UDP, 0))
			if by := s.answers(udp); by != "web-2" {
				t.Errorf("then it is answered by %s", by)
			}

			s.send(0)
			if by := s.answers(udp); by != "web-2" {
				t.Errorf("without a clean-up it is answered by %s", by)
			}
			s.cleans(0, only(s.flows(desired.UDP, 0, 1)))
			s.cleans(1, only(s.flows(desired.UDP, 0)))
			if by := s.answers(udp); by != "web-1" {
				t.Errorf("then it is answered by %s", by)
			}

			s.answers(tcp)
			s.answers(other)
			for what, stream := range map[string]*lab.Stream{"TCP": tcp, "the other Service": other} {
				if n := stream.Stats(); n.Failed > 0 || n.Moved > 0 || n.Ended || n.Server != "web-1" {
					t.Errorf("%s was not left alone: %+v", what, n)
				}
			}
			if n := udp.Stats(); n.Moved != 2 {
				t.Errorf("%+v, want two moves", n)
			}
		})
	}
}

// TestSCTP connects again and again from the same port.
func TestSCTP(t *testing.T) {
	kerneltest.Require(t, kerneltest.SCTPSockets)
	for _, family := range []family{ipv4, ipv6} {
		t.Run(family.String(), func(t *testing.T) {
			s := newStreet(t, family == ipv6)
			s.serve(lab.SCTP)
			connects := func(want string) {
				t.Helper()
				reply, err := s.client.Connect(lab.SCTP, s.service, lab.Source(netip.AddrPortFrom(s.client.Addr(s.ipv6), 40_000)))
				if err != nil || reply.Server != want {
					t.Fatalf("%+v, %v, want %s", reply, err, want)
				}
			}
			s.send(0)
			connects("web-1")
			s.send(1)
			connects("web-1")
			s.cleans(0, s.flows(desired.SCTP, 1))
			s.cleans(0, s.flows(desired.UDP, 0))
			s.cleans(1, s.flows(desired.SCTP, 0))
			connects("web-2")
			s.send(0)
			connects("web-2")
			s.cleans(1, only(s.flows(desired.SCTP, 0)))
			connects("web-1")
		})
	}
}
