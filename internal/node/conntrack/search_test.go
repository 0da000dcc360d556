// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/vishvananda/netlink/nl"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// staleByTheWords reports whether an entry is stale by the documentation of
// desired.StaleFlows and Clean.
func staleByTheWords(flows []desired.StaleFlows, f flow) (stale bool) {
	if f.protocol == desired.TCP {
		return slices.ContainsFunc(flows, func(s desired.StaleFlows) bool {
			switch {
			case s.Protocol != desired.TCP:
				return false
			case s.Frontends == nil:
				return f.to != f.answeredBy && slices.Contains(s.Backends, desired.NewBackend(f.answeredBy))
			case s.Backends != nil:
				return slices.Contains(s.Backends, desired.NewBackend(f.answeredBy)) && f.state == 1 && slices.Contains(s.Frontends, desired.FrontendKey{AddrPort: f.to, Protocol: desired.TCP})
			}
			return f.to == f.answeredBy && f.state == 1 && slices.Contains(s.Frontends, desired.FrontendKey{AddrPort: f.to, Protocol: desired.TCP})
		})
	}
	for _, s := range flows {
		if s.Protocol != f.protocol || !slices.ContainsFunc(s.Frontends, func(k desired.FrontendKey) bool { return k.AddrPort == f.to }) {
			continue
		}
		listed := slices.Contains(s.Backends, desired.NewBackend(f.answeredBy))
		if s.Only {
			stale = !listed
		} else {
			stale = stale || listed
		}
	}
	return stale
}

// TestSearches compares random StaleFlows with their documentation, and checks that filters
// match all stale entries.
func TestSearches(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	// Frontends and backends are of the same few endpoints, so that they meet.
	endpointAt := func(i int) netip.AddrPort {
		ip := netip.AddrFrom4([4]byte{10, 0, 0, byte(i >> 1 & 1)})
		if i>>2&1 == 1 {
			ip = netip.MustParseAddr([]string{"fd00::", "fd00::1"}[i>>1&1])
		}
		return netip.AddrPortFrom(ip, uint16(53+i&1))
	}
	protocols := []desired.Protocol{desired.UDP, desired.UDP, desired.SCTP, desired.TCP}
	count := map[bool]int{}
	for range 20_000 {
		flows := make([]desired.StaleFlows, 1+r.IntN(4))
		for i := range flows {
			f := &flows[i]
			f.Protocol = protocols[r.IntN(len(protocols))]
			for range r.IntN(4) {
				f.Frontends = append(f.Frontends, desired.FrontendKey{AddrPort: endpointAt(r.IntN(8)), Protocol: f.Protocol})
			}
			for range r.IntN(4) {
				f.Backends = append(f.Backends, desired.NewBackend(endpointAt(r.IntN(8))))
			}
			f.Only = f.Protocol != desired.TCP && r.IntN(4) == 0
		}
		searches := plan(flows)
		for range 10 {
			a, b := r.IntN(8), r.IntN(8)
			if endpointAt(a).Addr().Is4() != endpointAt(b).Addr().Is4() {
				continue
			}
			fl := flow{protocol: protocols[r.IntN(len(protocols))], to: endpointAt(a), answeredBy: endpointAt(b)}
			e := entryOf(fl.protocol, fl.to, fl.answeredBy)
			if fl.protocol == desired.TCP {
				fl.state = uint8(r.IntN(4))
				e.TCPState = fl.state
			}
			got := false
			for _, s := range searches {
				if s.family != familyOf(fl.to) || !s.stale(&e) {
					continue
				}
				got = true
				for _, agree := range []bool{
					slices.Contains(s.filter.protocols, fl.protocol), s.filter.to.agrees(fl.to), s.filter.replies.agrees(fl.answeredBy),
				} {
					if !agree {
						t.Fatalf("seed %d: %+v: a filter hides %+v", seed, flows, fl)
					}
				}
			}
			want := staleByTheWords(flows, fl)
			if got != want {
				t.Fatalf("seed %d: %+v: stale %v, want %v: %+v", seed, flows, got, want, fl)
			}
			count[got]++
		}
	}
	if count[true] < 1000 || count[false] < 1000 {
		t.Errorf("too few of one kind: %v", count)
	}
}

// agrees reports whether the kernel would report e.
func (c *common) agrees(e netip.AddrPort) bool {
	flags := c.flags(1, 2)
	return (flags&1 == 0 || e.Addr() == c.Addr()) && (flags&2 == 0 || e.Port() == c.Port())
}

// TestSharedBackends searches for many frontends with the same many backends, which must share
// one set, and then for another backend of one frontend, which must not affect the others.
func TestSharedBackends(t *testing.T) {
	var many desired.StaleFlows
	many.Protocol = desired.UDP
	for i := range 2000 {
		ap := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 53)
		many.Frontends = append(many.Frontends, desired.FrontendKey{AddrPort: ap, Protocol: desired.UDP})
		many.Backends = append(many.Backends, desired.NewBackend(crowdBackend(i)))
	}
	one := many
	one.Frontends = many.Frontends[:1]
	one.Backends = []desired.Backend{desired.NewBackend(crowdBackend(5000))}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s := plan([]desired.StaleFlows{many, one})[0]
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 10<<20 { // 2,000 sets would be 200 MB
		t.Errorf("%d bytes were allocated", n)
	}
	for i, want := range []bool{true, false} {
		e := entryOf(desired.UDP, many.Frontends[i].AddrPort, crowdBackend(5000))
		if s.stale(&e) != want {
			t.Errorf("frontend %d: stale %v", i, !want)
		}
	}
}

// entryOf is an entry of a flow, which a backend answers.
func entryOf(p desired.Protocol, to, answeredBy netip.AddrPort) ctnetlink.Entry {
	return ctnetlink.Entry{Original: ctnetlink.Tuple{Protocol: uint8(p), Dst: to}, Reply: ctnetlink.Tuple{Protocol: uint8(p), Src: answeredBy}}
}

// FuzzEntry parses invalid messages.
func FuzzEntry(f *testing.F) {
	to := netip.MustParseAddrPort("10.96.0.10:53")
	seed := filter{protocols: []desired.Protocol{desired.UDP}}
	seed.to.add(to)
	a, err := seed.attributes(ipv4, true)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(ctnetlink.Header(uint8(ipv4)), a...))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		var e ctnetlink.Entry
		if !e.Parse(data) || e.ID == nil {
			return
		}
		m, err := deletion(&e)
		if err != nil {
			t.Fatal(err)
		}
		// A deletion without a tuple would empty the table.
		var sent []byte
		for typ, payload := range nfnl.Attributes(m.Data[4:]) {
			if typ == nl.CTA_TUPLE_ORIG {
				sent = payload
			}
		}
		if len(sent) == 0 || fmt.Sprint(sent) != fmt.Sprint(e.Tuple) {
			t.Fatalf("deletion %x of entry %x", m.Data, data)
		}
	})
}

// TestRangesSpareOthers has Services with UDP port 5060 inside of a range of another Service and of their own, and
// checks which flows are stale as the range gets its first endpoint, loses it and goes.
func TestRangesSpareOthers(t *testing.T) {
	s := desired.New(desired.Config{NodePorts: desired.NodePortAddresses{CIDRs: []netip.Prefix{netip.MustParsePrefix("198.51.100.9/32")}}})
	s.SetNodeAddresses([]netip.Addr{netip.MustParseAddr("198.51.100.9")})
	service := func(name string, year int, ranges string) {
		s.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: name, Annotations: map[string]string{desired.AnnotationPortRanges: ranges}, CreationTimestamp: metav1.Date(year, 1, 1, 0, 0, 0, 0, time.UTC),
			},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0." + name,
				Ports: []corev1.ServicePort{{Port: map[string]int32{"1": 5070, "2": 5060}[name], Protocol: corev1.ProtocolUDP}},
			},
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "198.51.100.9"}}}},
		})
	}
	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "3"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ClusterIP: "10.96.0.3", Ports: []corev1.ServicePort{{Port: 9, NodePort: 5081, Protocol: corev1.ProtocolUDP}}},
	})
	slice := func(name string, port int32, ips ...string) {
		all := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port, Protocol: ptr.To(corev1.ProtocolUDP)}},
		}
		for _, ip := range ips {
			all.Endpoints = append(all.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip}})
		}
		s.SetEndpointSlice(all)
	}
	service("2", 2000, "")
	slice("2", 5060, "10.0.0.2")
	slice("3", 5081, "10.0.0.4")
	service("1", 2001, "")
	s.Full()
	flow := func(to, by string) *ctnetlink.Entry {
		e := entryOf(desired.UDP, netip.MustParseAddrPort(to), netip.MustParseAddrPort(by))
		e.Status = ctnetlink.StatusDNAT
		return &e
	}
	check := func(when string, flows []desired.StaleFlows, inRange bool) {
		t.Helper()
		stale := func(e *ctnetlink.Entry) bool {
			return slices.ContainsFunc(plan(flows), func(s *search) bool { return s.family == ipv4 && s.stale(e) })
		}
		for name, e := range map[string]*ctnetlink.Entry{
			"another's port": flow("198.51.100.9:5060", "10.0.0.2:5060"), "another's NodePort": flow("198.51.100.9:5081", "10.0.0.4:5081"), "its own port": flow("198.51.100.9:5070", "10.0.0.1:5070"),
		} {
			if stale(e) {
				t.Errorf("%s: a flow to %s is stale: %+v", when, name, flows)
			}
		}
		if stale(flow("198.51.100.9:5061", "10.0.0.3:5061")) != inRange {
			t.Errorf("%s: a flow to the range is stale: %v", when, !inRange)
		}
	}
	service("1", 2001, "udp/5000-6000")
	s.Full()
	slice("1", 5070, "10.0.0.1")
	check("the first endpoint", s.Change().Flows, true)
	slice("1", 5070, "10.0.0.1", "10.0.0.3")
	check("another endpoint", s.Change().Flows, false)
	slice("1", 5070, "10.0.0.1")
	check("an endpoint goes", s.Change().Flows, true)
	check("the whole content", s.Full().AllFlows, true)
	service("1", 2001, "")
	check("the annotation goes", s.Change().Flows, true)
	service("2", 2000, "udp/5000-5069")
	check("the port's Service gets a range", s.Change().Flows, true)
	service("2", 2000, "")
	check("that range goes", s.Change().Flows, true)
}

// TestRangesBegun checks that a connection of TCP to any port of a range is stale if it began without rules.
func TestRangesBegun(t *testing.T) {
	searches := plan([]desired.StaleFlows{{Protocol: desired.TCP, Frontends: []desired.FrontendKey{{AddrPort: netip.MustParseAddrPort("10.96.0.9:3000"), Protocol: desired.TCP, Last: 3100}}}})
	for port, want := range map[uint16]bool{2999: false, 3000: true, 3050: true, 3100: true, 3101: false} {
		to := netip.AddrPortFrom(netip.MustParseAddr("10.96.0.9"), port)
		e := entryOf(desired.TCP, to, to)
		e.TCPState = synSent
		if got := searches[0].stale(&e); got != want || want && !searches[0].filter.to.agrees(to) {
			t.Errorf("port %d: %v, and the filter: %+v", port, got, searches[0].filter)
		}
	}
}
