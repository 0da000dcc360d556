// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

// datagrams is a ward whose Service has a second port, of UDP, with endpoints of their own.
type datagrams struct {
	*ward
	to      netip.AddrPort
	servers []*lab.Server // nil for those that never answer
}

const firstUDP = 9000

// newDatagrams has a number of endpoints that answer, and of some that never do.
func newDatagrams(t testing.TB, mode func(dataplane.Config) (dataplane.Dataplane, error), detection string, port uint16, answering, silent int) *datagrams {
	udp := corev1.ProtocolUDP
	service := annotated(desired.AnnotationOutliers, detection, corev1.ServiceSpec{})
	service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: "udp", Port: int32(port), Protocol: udp})
	d := &datagrams{opened(t, newCrossingIn(t, 1, service, mode), 1), netip.AddrPortFrom(web.Addr(), port), nil}
	for i := range answering + silent {
		at := uint16(firstUDP + i)
		if i < answering {
			d.servers = append(d.servers, d.serve(at))
		} else {
			check(t, d.Server.Do(func() error {
				c, err := net.ListenPacket("udp4", fmt.Sprint(":", at))
				if err == nil {
					t.Cleanup(func() { c.Close() })
				}
				return err
			}))
		}
		slice := dataplanetest.Slice(0)
		slice.Name, slice.Ports = fmt.Sprint("udp-", at), []discoveryv1.EndpointPort{{Name: ptr.To("udp"), Protocol: &udp, Port: ptr.To(int32(at))}}
		d.events <- []source.Event{{Type: source.Set, Object: slice}}
	}
	return d
}

func (d *datagrams) serve(at uint16) *lab.Server {
	s, err := d.Server.Serve(lab.UDP, netip.AddrPortFrom(netip.IPv4Unspecified(), at))
	check(d.t, err)
	return s
}

// ask sends a datagram and returns the port that has answered; 0 for none.
func (d *datagrams) ask() uint16 {
	reply, err := d.Client.Connect(lab.UDP, d.to, lab.Timeout(100*time.Millisecond))
	if err != nil {
		return 0
	}
	return reply.Local.Port()
}

// known asks until so many endpoints are known to answer this node, or not to.
func (d *datagrams) known(n int, answers bool) {
	d.t.Helper()
	d.until("endpoints are known", func() bool {
		for range 20 {
			d.ask()
		}
		return d.count(func(x *outlier) bool {
			return x.Protocol == desired.UDP && x.answers == answers && (answers || x.tries > 0 || x.trust > trustFor)
		}) >= n
	})
}

// asked asks 60 times, and reports whether so many endpoints answer, and all datagrams are answered.
func (d *datagrams) asked(n int) bool {
	seen := map[uint16]bool{}
	for range 60 {
		seen[d.ask()] = true
	}
	return len(seen) == n && !seen[0]
}

func (d *datagrams) out() int {
	return d.ejected() + d.count(func(x *outlier) bool { return !x.out.IsZero() || !x.back.IsZero() })
}

// TestOutlierUDP: one of four endpoints of UDP closes its socket. It is ejected, flows to it move to others, and it is back once it
// listens again. With report, it is only reported.
func TestOutlierUDP(t *testing.T) {
	modes := map[string]func(testing.TB) func(dataplane.Config) (dataplane.Dataplane, error){"nftables": inNFTables, "iptables": inIPTables, "ipvs": inIPVS, "nftables, report": inNFTables}
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			_, report, _ := strings.Cut(name, ", ")
			if report == "" {
				report = "on"
			}
			const n = 4
			d := newDatagrams(t, mode(t), report, 90, n, 0)
			d.known(n, true)
			var flows []*lab.Stream
			for range 12 {
				flow, err := d.Client.Stream(lab.UDP, d.to, 100*time.Millisecond)
				check(t, err)
				defer flow.Close()
				flows = append(flows, flow)
			}
			check(t, d.servers[1].Close())
			d.until("an Event", func() bool {
				d.ask()
				return d.told.count(fmt.Sprintf("EndpointUnanswered on default/web: endpoint 10.244.1.3:9001/UDP does not answer connections of clients and of nodes (slipstream.io/outlier-detection: %s)", report)) == 1
			})
			if report == "report" {
				if d.ejected() > 0 {
					t.Error("it is ejected")
				}
				d.until("a datagram comes to the dead endpoint", func() bool { return d.ask() == 0 })
				return
			}
			d.until("ejected", func() bool { return d.asked(n-1) && d.ejected() == 1 })
			var before []int64
			for _, flow := range flows {
				before = append(before, flow.Stats().Received)
			}
			d.until("all flows are answered", func() bool {
				for i, flow := range flows {
					if flow.Stats().Received == before[i] {
						return false
					}
				}
				return true
			})
			d.serve(firstUDP + 1)
			d.until("back", func() bool { return d.asked(n) && d.ejected() == 0 })
		})
	}
}

// TestOutlierOneWay: endpoints that never answer, as those of syslog do not, are suspected again and again, more and more seldom,
// and none is ejected while it listens.
func TestOutlierOneWay(t *testing.T) {
	d := newDatagrams(t, inNFTables(t), "on", 514, 0, 3)
	often := func(x *outlier) bool { return x.Protocol == desired.UDP && x.answers && x.trust >= 4*trustFor }
	d.until("each is suspected twice", func() bool { d.ask(); return d.count(often) == 3 })
	if d.out() > 0 {
		t.Error("one is, or was, ejected")
	}
}

// TestOutlierDNS: one of four servers of DNS becomes a black hole. It is ejected, and back after that.
func TestOutlierDNS(t *testing.T) {
	d := newDatagrams(t, inNFTables(t), "on", 53, 4, 0)
	d.known(4, true)
	d.run("add rule inet f in udp dport 9001 drop")
	d.until("ejected", func() bool { return d.asked(3) && d.ejected() == 1 })
	d.heal()
	d.until("back", func() bool { return d.asked(4) && d.ejected() == 0 })
}

// TestOutlierPolicyUDP: clients get no answer from one of four endpoints, and a policy keeps this node from it, so that it is not known
// to be dead. It is not ejected.
func TestOutlierPolicyUDP(t *testing.T) {
	const client = "add rule inet f in ip saddr 10.244.1.2 udp dport 9001 drop"
	for _, c := range []struct {
		name, before, after string
		port                uint16
	}{
		{"DNS, the node is dropped", "add rule inet f in ip saddr != 10.244.1.2 udp dport 9001 drop", client, 53},
		{"DNS, the client is dropped", "", client, 53},
		{"the node is dropped", "add rule inet f in ip saddr != 10.244.1.2 udp dport 9001 drop", client, 90},
		{"the node is refused", "add rule inet f in ip saddr != 10.244.1.2 udp dport 9001 reject", client, 90},
		{"all are prohibited", "", "add rule inet f in udp dport 9001 reject with icmp type admin-prohibited", 90},
		{"DNS, all are prohibited", "", "add rule inet f in udp dport 9001 reject with icmp type admin-prohibited", 53},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := newDatagrams(t, inNFTables(t), "on", c.port, 4, 0)
			if c.before != "" {
				d.run(c.before)
			}
			d.known(3, true) // the fourth may never be
			var known time.Time
			d.run(c.after)
			d.until("suspected for two seconds", func() bool {
				for range 10 {
					d.ask()
				}
				suspected := d.count(func(x *outlier) bool {
					return x.Protocol == desired.UDP && x.Port() == firstUDP+1 && (x.failing || x.trust > trustFor)
				})
				if suspected == 1 && known.IsZero() {
					known = time.Now()
				}
				return !known.IsZero() && time.Since(known) > 2*time.Second
			})
			if d.out() > 0 {
				t.Error("it is, or was, ejected")
			}
		})
	}
}

// TestOutlierProtocols: endpoints of TCP and of UDP at the same address and port are different ones, and a query is only for those
// that have, or whose clients use, port 53.
func TestOutlierProtocols(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClinic(1, 0)
		s := &corev1.Service{}
		s.Namespace, s.Name, s.Annotations = "n0", "web", map[string]string{desired.AnnotationOutliers: "on"}
		s.Spec.ClusterIP, s.Spec.Ports = "10.96.0.1", []corev1.ServicePort{
			{Name: "tcp", Port: 53}, {Name: "udp", Port: 53, Protocol: corev1.ProtocolUDP}, {Name: "other", Port: 80, Protocol: corev1.ProtocolUDP},
		}
		c.state.SetService(s)
		ports, udp := []discoveryv1.EndpointPort(nil), corev1.ProtocolUDP
		for name, port := range map[string]int32{"tcp": 8080, "udp": 8080, "other": 8081} {
			p := discoveryv1.EndpointPort{Name: &name, Port: &port}
			if name != "tcp" {
				p.Protocol = &udp
			}
			ports = append(ports, p)
		}
		slice := dataplanetest.Slice(0)
		slice.Namespace, slice.Ports, slice.Endpoints = "n0", ports, []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}, {Addresses: []string{"10.0.0.2"}}}
		c.state.SetEndpointSlice(slice)
		c.state.Full()
		at := func(protocol desired.Protocol, port, endpoint uint16) desired.Handshake {
			return desired.Handshake{
				Namespace: "n0", Frontend: desired.FrontendKey{AddrPort: netip.AddrPortFrom(web.Addr(), port), Protocol: protocol},
				Backend: desired.NewBackend(netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), endpoint)),
			}
		}
		c.handshakes = []desired.Handshake{at(desired.TCP, 53, 8080), at(desired.UDP, 53, 8080), at(desired.UDP, 80, 8081)}
		c.pass(t, time.Second)
		for i, want := range []bool{true, true, false} { // TCP ignores it
			if x := c.outlier(c.handshakes[i]); x.dns != want || !x.answers {
				t.Errorf("%v: DNS %v, answers %v", c.handshakes[i], x.dns, x.answers)
			}
		}
		c.handshakes[1].Failing, c.answer = true, syscall.EHOSTUNREACH
		c.pass(t, 2*time.Second)
		for i, h := range c.handshakes {
			if out := !c.outlier(h).out.IsZero(); out != (i == 1) {
				t.Errorf("%v: ejected %v", h, out)
			}
		}
		c.state.Change()
		c.state.ViewServices(nil, true, func(v *desired.ServiceView) {
			for _, port := range v.Ports {
				for _, e := range port.Endpoints {
					ejected := strings.HasPrefix(e.Uses(), "ejected")
					if want := port.Name == "n0/web:udp" && e.Address == "10.0.0.1:8080"; ejected != want {
						t.Errorf("port %s, %s: %s", port.Name, e.Address, e.Uses())
					}
				}
			}
		})
	})
}

// TestOutlierSeldom: where clients are never answered and the node's probes succeed, there is one in a minute.
func TestOutlierSeldom(t *testing.T) {
	for _, protocol := range []desired.Protocol{desired.TCP, desired.UDP} {
		synctest.Test(t, func(t *testing.T) {
			c := newClinic(1, 3)
			h := c.clients(0, 0, false)
			c.handshakes = []desired.Handshake{h}
			c.pass(t, time.Second)
			c.outlier(h).Protocol = protocol
			c.probes.Store(0)
			c.handshakes = []desired.Handshake{c.clients(0, 0, true)}
			c.pass(t, time.Hour)
			if n, most := c.probes.Load(), int32(66); n < 50 || protocol == desired.UDP && n > most || n > 2*most {
				t.Errorf("%s: %d probes in an hour", protocol, n)
			}
			c.handshakes = []desired.Handshake{h}
			c.pass(t, 2*time.Minute)
			c.probes.Store(0)
			c.handshakes = []desired.Handshake{c.clients(0, 0, true)}
			if c.pass(t, 50*time.Second); c.probes.Load() < 3 {
				t.Errorf("%s: after an answer, %d probes in 50 s", protocol, c.probes.Load())
			}
		})
	}
}
