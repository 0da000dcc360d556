// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestRangesLeftOut checks that a range is reported and not served where the mode has none, and at an external IP
// where it has the port of an API server. The Service's port is served.
func TestRangesLeftOut(t *testing.T) {
	for _, c := range []struct {
		config Config
		ranges string
		want   string // of the problem; "" for none
	}{
		{Config{NoRanges: true}, "tcp/6000-7000", "this proxy mode does not have ranges"},
		{Config{APIServers: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.10:6443")}}, "tcp/6000-7000", "is an API server"},
		{Config{APIServers: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.10:6443")}}, "tcp/6444-7000", ""},
	} {
		s := New(c.config)
		s.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "media", Annotations: map[string]string{AnnotationPortRanges: c.ranges}},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", ExternalIPs: []string{"192.0.2.10"}, Ports: []corev1.ServicePort{{Port: 80}}},
		})
		problems := s.Full().Problems
		at := func(a string) bool {
			return s.FrontendAt(FrontendKey{AddrPort: netip.MustParseAddrPort(a), Protocol: TCP}) != nil
		}
		if got := at("192.0.2.10:6500"); got != (c.want == "") || !at("192.0.2.10:80") {
			t.Errorf("%+v: served: %v, problems: %v", c, got, problems)
		}
		if (len(problems) == 0) != (c.want == "") || len(problems) > 0 && !strings.Contains(problems[0].Error(), c.want) {
			t.Errorf("%+v: problems %v", c, problems)
		}
	}
}

// rangedService has ranges at an external IP, and a port there. It is the older, the smaller its year.
func rangedService(name string, year, port int32, ranges string, ips ...string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, CreationTimestamp: metav1.Date(int(year), 1, 1, 0, 0, 0, 0, time.UTC), Annotations: map[string]string{AnnotationPortRanges: ranges},
		},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0." + name, ExternalIPs: ips, Ports: []corev1.ServicePort{{Port: port, Protocol: corev1.ProtocolUDP}}},
	}
}

// owners names the Services that have ports of UDP at an address.
func owners(s *State, ip string, ports ...uint16) (all string) {
	for _, port := range ports {
		name := "-"
		if f := s.FrontendAt(FrontendKey{AddrPort: netip.AddrPortFrom(netip.MustParseAddr(ip), port), Protocol: UDP}); f != nil {
			name = f.Service.Name
		}
		all += name
	}
	return all
}

// TestRangesThatAreNotServed checks that they take no ports from other Services: neither one that has the port of
// an API server or is at a node's address, nor one that has lost to another range. It adds the Services in all
// orders, and takes one away and back.
func TestRangesThatAreNotServed(t *testing.T) {
	const ip = "192.0.2.10"
	api := Config{APIServers: []netip.AddrPort{netip.MustParseAddrPort(ip + ":6443")}}
	tcpToo := rangedService("1", 2000, 9, "udp/1-65534,tcp/1-65534", ip)
	for name, c := range map[string]struct {
		config Config
		all    []*corev1.Service
		want   string // of ports 443, 1443, 2443 and 3443
		after  string // without the first Service
	}{
		"older range": {Config{}, []*corev1.Service{rangedService("1", 2000, 9, "udp/1-65534", ip), rangedService("2", 2001, 443, "", ip)}, "1111", "2---"},
		"API server":  {api, []*corev1.Service{tcpToo, rangedService("2", 2001, 443, "udp/1000-2000", ip)}, "1111", "22--"}, // TCP is left out, UDP is not
		"chain": {Config{}, []*corev1.Service{
			rangedService("1", 2000, 9, "udp/400-1500", ip), rangedService("2", 2001, 2443, "udp/1400-2500", ip), rangedService("3", 2002, 3443, "udp/2400-4000", ip),
		}, "1123", "-223"},
		"chain of ports": {Config{}, []*corev1.Service{
			rangedService("1", 2000, 9, "udp/400-1500", ip), rangedService("2", 2001, 9, "udp/1400-2500", ip), rangedService("3", 2002, 2443, "", ip),
		}, "113-", "-22-"},
		"younger range": {Config{}, []*corev1.Service{rangedService("1", 2001, 9, "udp/1-65534", ip), rangedService("2", 2000, 443, "", ip)}, "2111", "2---"},
	} {
		for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}} {
			s := New(c.config)
			for _, i := range order {
				if i < len(c.all) {
					s.SetService(c.all[i])
					s.Full()
				}
			}
			check := func(when, want string) {
				s.Full()
				if got := owners(s, ip, 443, 1443, 2443, 3443); got != want {
					t.Errorf("%s, %v, %s: %s; want %s", name, order, when, got, want)
				}
			}
			check("all", c.want)
			s.DeleteService("ns", "1")
			check("without the first", c.after)
			s.SetService(c.all[0])
			check("again", c.want)
		}
	}
	// The range of TCP has the API server's port, so another Service keeps its port of TCP.
	s := New(api)
	s.SetService(tcpToo)
	web := rangedService("2", 2001, 443, "", ip)
	web.Spec.Ports[0].Protocol = corev1.ProtocolTCP
	s.SetService(web)
	s.Full()
	if f := s.FrontendAt(FrontendKey{AddrPort: netip.MustParseAddrPort(ip + ":443"), Protocol: TCP}); f == nil || f.Service.Name != "2" {
		t.Errorf("TCP port 443 is %+v", f)
	}
	s.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}}}})
	web.Spec.Ports[0].Protocol = corev1.ProtocolUDP
	s.SetService(web)
	s.Full()
	if got := owners(s, ip, 443, 1443); got != "2-" {
		t.Errorf("at the address of a Node: %s", got)
	}
}

// TestRangesAtOwnAddresses checks which ranges are left out at an address of this node's interfaces that its Node
// object does not have, before and after the interface gets it.
func TestRangesAtOwnAddresses(t *testing.T) {
	const ip = "192.0.2.10"
	for _, c := range []struct {
		ranges   string
		balancer bool
		want     bool // whether the last range is served
	}{
		{"udp/1-65535", false, false}, {"udp/1-65534", false, false}, {"udp/5000-6000", false, false},
		{"udp/1-65535", true, false}, {"udp/1-65534", true, false}, {"udp/2-10249,udp/10250-65535", true, false}, {"udp/22", true, false}, {"udp/5000-6000", true, true},
	} {
		svc := rangedService("1", 2000, 9, c.ranges, ip)
		if c.balancer {
			svc.Spec.ExternalIPs, svc.Spec.Type = nil, corev1.ServiceTypeLoadBalancer
			svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: ip}}
		}
		s := New(Config{})
		s.SetService(svc)
		s.Full()
		_, last, _ := strings.Cut(c.ranges[strings.LastIndex(c.ranges, "/"):], "/")
		from, _, _ := strings.Cut(last, "-")
		port, _ := strconv.Atoi(from)
		if got := owners(s, ip, uint16(port)); got != "1" {
			t.Errorf("%+v: not served at an address of no interface", c)
		}
		s.SetNodeAddresses([]netip.Addr{netip.MustParseAddr(ip)})
		problems := s.Change().Problems
		if got := owners(s, ip, uint16(port)); (got == "1") != c.want || c.want != (len(problems) == 0) {
			t.Errorf("%+v: served by %s, problems: %v", c, got, problems)
		}
	}
}

// TestPartsOfRanges: of a range at a ClusterIP, the parts without a port of the Service have the first turn, unless it has
// many such ports, or another Service the ClusterIP. At an external IP there is one part, also beside another Service's
// ports; in the last turn, if it is the ClusterIP of another. A change of what else the Service has leaves the parts as they are.
func TestPartsOfRanges(t *testing.T) {
	s := New(Config{})
	svc := rangedService("1", 2000, 9, "udp/10-20", "192.0.2.10", "10.96.0.3")
	key := func(ip string) FrontendKey {
		return FrontendKey{AddrPort: netip.AddrPortFrom(netip.MustParseAddr(ip), 10), Protocol: UDP, Last: 20}
	}
	change := func(ports ...int32) *Update {
		svc.Spec.Ports = []corev1.ServicePort{{Name: "tcp", Port: 15}, {Name: "other", Port: 9, Protocol: corev1.ProtocolUDP}}
		for _, p := range ports {
			svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: strconv.Itoa(int(p)), Port: p, Protocol: corev1.ProtocolUDP})
		}
		s.SetService(svc)
		return s.Change()
	}
	check := func(what string, want ...Part) {
		t.Helper()
		for ip, want := range map[string][]Part{"10.96.0.1": want, "192.0.2.10": {{10, 20, ExternalTurn}}, "10.96.0.3": {{10, 20, LastTurn}}} {
			if f := s.frontends[key(ip)]; f == nil || f.reported == nil || !slices.Equal(f.reported.PartsOf(), want) {
				t.Errorf("%s: %s has other parts than %v: %+v", what, ip, want, f.reported.PartsOf())
			}
		}
	}
	s.SetService(rangedService("3", 2001, 14, "")) // has one of the external IPs as its ClusterIP
	change()
	check("no port", Part{10, 20, FirstTurn})
	change(10, 15, 20)
	check("ports", Part{10, 10, LastTurn}, Part{11, 14, FirstTurn}, Part{15, 15, LastTurn}, Part{16, 19, FirstTurn}, Part{20, 20, LastTurn})
	if u := change(15, 10, 20, 21); len(u.Frontends) != 3 {
		t.Errorf("one more port beside the range, at three addresses: %d frontends differ", len(u.Frontends))
	}
	if n, ranges := s.services[types.NamespacedName{Namespace: "ns", Name: "1"}].elements(); ranges != 7 {
		t.Errorf("%d elements, %d of ranges by parts", n, ranges)
	}
	change(11, 12, 13, 14, 15, 16, 17, 18)
	check("eight ports", Part{10, 10, FirstTurn}, Part{11, 11, LastTurn}, Part{12, 12, LastTurn}, Part{13, 13, LastTurn}, Part{14, 14, LastTurn}, Part{15, 15, LastTurn},
		Part{16, 16, LastTurn}, Part{17, 17, LastTurn}, Part{18, 18, LastTurn}, Part{19, 20, FirstTurn})
	change(11, 12, 13, 14, 15, 16, 17, 18, 19)
	check("nine ports", Part{10, 20, LastTurn})
	change(12)
	want := []Part{{10, 11, FirstTurn}, {12, 12, LastTurn}, {13, 20, FirstTurn}}
	check("one port", want...)
	other := rangedService("1", 1999, 13, "") // with the same ClusterIP, and older
	other.Name = "2"
	s.SetService(other)
	s.Change()
	check("another Service has the ClusterIP", Part{10, 20, LastTurn})
	s.DeleteService("ns", "2")
	s.Change()
	check("no other Service has it", want...)

	s.SetService(rangedService("4", 1998, 15, "", "192.0.2.10")) // has a port in the range at the external IP
	if u := s.Change(); slices.ContainsFunc(u.Frontends, func(c FrontendChange) bool { return c.Key().IsRange() }) {
		t.Errorf("another Service's port in a range: the range differs: %+v", u.Frontends)
	}
	check("another Service has a port in it", want...)
}

// TestTurnsOfRanges: a range at an external address is found after two look-ups of external ports only, unless other kinds
// of frontends can be there; with source ranges, if the client is in them. This follows all changes.
func TestTurnsOfRanges(t *testing.T) {
	const ip = "192.0.2.20"
	s := New(Config{NodePorts: NodePortAddresses{CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}})
	svc := rangedService("1", 2000, 9, "udp/10-20")
	svc.Spec.Type, svc.Status.LoadBalancer.Ingress = corev1.ServiceTypeLoadBalancer, []corev1.LoadBalancerIngress{{IP: ip}}
	other := rangedService("2", 2001, 15, "")
	other.Spec.ClusterIP = ip
	for _, step := range []struct {
		what string
		do   func()
		want Turn
	}{
		{"first", func() { s.SetService(svc) }, ExternalTurn},
		{"source ranges", func() { svc.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24"}; s.SetService(svc) }, RestrictedTurn},
		{"NodePorts", func() { s.SetNodeAddresses([]netip.Addr{netip.MustParseAddr(ip)}) }, LastTurn},
		{"no NodePorts", func() { s.SetNodeAddresses(nil) }, RestrictedTurn},
		{"all sources", func() { svc.Spec.LoadBalancerSourceRanges[0] = "0.0.0.0/0"; s.SetService(svc) }, ExternalTurn},
		{"a ClusterIP", func() { s.SetService(other) }, LastTurn},
		{"no ClusterIP", func() { s.DeleteService("ns", "2") }, ExternalTurn},
	} {
		step.do()
		s.Change()
		f := s.FrontendAt(FrontendKey{AddrPort: netip.MustParseAddrPort(ip + ":12"), Protocol: UDP})
		if f == nil || !slices.Equal(f.PartsOf(), []Part{{10, 20, step.want}}) {
			t.Errorf("%s: %+v", step.what, f)
		}
	}
}
