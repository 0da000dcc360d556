// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNodeIP checks that Config.NodeIP overrides the Node object's address of its family,
// and applies without a Node object.
func TestNodeIP(t *testing.T) {
	given, own4, own6 := netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	s := New(Config{NodeName: "n1", NodeIP: given, NodePorts: NodePortAddresses{Primary: true}})
	want := func(what string, want ...netip.Addr) {
		t.Helper()
		if got := s.NodePortAddresses(); !slices.Equal(got, want) {
			t.Errorf("%s: NodePort addresses %v; want %v", what, got, want)
		}
	}
	want("without a Node", given)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	for _, ip := range []netip.Addr{own4, own6} {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
	}
	s.SetNode(node)
	want("with a Node", given, own6)
}

// TestPrimaryAndRanges checks that ranges add to the Node object's addresses, and that a
// family without a range has these alone.
func TestPrimaryAndRanges(t *testing.T) {
	own4, own6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	other4, other6 := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::2")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	for _, ip := range []netip.Addr{own4, own6} {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
	}
	for ranges, want := range map[string][]netip.Addr{
		"198.51.100.0/24": {own4, other4, own6},
		"2001:db8::2/128": {own4, own6, other6},
		"0.0.0.0/0":       {netip.IPv4Unspecified(), own6},
	} {
		s := New(Config{NodeName: "n1", NodePorts: NodePortAddresses{Primary: true, CIDRs: []netip.Prefix{netip.MustParsePrefix(ranges)}}})
		s.SetNode(node)
		s.SetNodeAddresses([]netip.Addr{own4, other4, own6, other6})
		if got := s.NodePortAddresses(); !slices.Equal(got, want) {
			t.Errorf("%s: NodePort addresses %v; want %v", ranges, got, want)
		}
	}
}

// TestLoopback checks that NodePorts are on IPv4 loopback addresses if these are allowed
// and selected.
func TestLoopback(t *testing.T) {
	v4, v6, other := netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback(), netip.MustParseAddr("192.0.2.1")
	for _, tc := range []struct {
		ranges  string // separated by spaces
		may     bool
		primary bool
		want    []netip.Addr
	}{
		{"", true, false, []netip.Addr{v4, other}},
		{"", false, false, []netip.Addr{other}},
		{"127.0.0.0/8", true, false, []netip.Addr{v4}},
		{"127.0.0.1/32", true, false, []netip.Addr{v4}},
		{"127.0.0.0/8", false, false, nil},
		{"0.0.0.0/0", true, false, []netip.Addr{v4, other}},
		{"192.0.2.0/24", true, false, []netip.Addr{other}},
		{"::1/128", true, false, []netip.Addr{v4, other}},
		{"", true, true, nil},
		{"127.0.0.0/8 ::1/128", true, true, []netip.Addr{v4}},
		{"192.0.2.0/24", true, true, []netip.Addr{other}},
		{"0.0.0.0/0 ::/0", true, true, []netip.Addr{v4, other}},
	} {
		n := NodePortAddresses{Loopback: tc.may, Primary: tc.primary}
		for text := range strings.FieldsSeq(tc.ranges) {
			n.CIDRs = append(n.CIDRs, netip.MustParsePrefix(text))
		}
		if got := n.of(&node{addrs: []netip.Addr{v4, v6, other}}); !slices.Equal(got, tc.want) {
			t.Errorf("%+v: NodePort addresses %v; want %v", tc, got, tc.want)
		}
		if got, want := n.OnLoopback(), slices.Contains(tc.want, v4); got != want {
			t.Errorf("%+v: on loopback addresses: %v, want %v", tc, got, want)
		}
	}
}

// TestLinkLocal checks that an interface with only an IPv6 link-local address, such as a
// pod's, changes nothing when it is added or deleted.
func TestLinkLocal(t *testing.T) {
	for _, ranges := range [][]netip.Prefix{nil, {netip.MustParsePrefix("::/0"), netip.MustParsePrefix("0.0.0.0/0")}, {netip.MustParsePrefix("fe80::/10")}} {
		s := New(Config{NodePorts: NodePortAddresses{CIDRs: ranges}})
		s.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
			Spec:       corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.1", "fd00:96::1"}, Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}}},
		})
		own := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
		s.SetNodeAddresses(own)
		s.Change()
		pods := append(slices.Clone(own), netip.MustParseAddr("fe80::1%veth1"), netip.MustParseAddr("fe80::2"))
		for _, addrs := range [][]netip.Addr{pods, own} {
			s.SetNodeAddresses(addrs)
			if c := s.Change(); !c.Empty() {
				t.Errorf("ranges %v, addresses %v: %+v", ranges, addrs, c.Frontends)
			}
		}
	}
}

// TestOtherNodes: only new addresses of another Node are a change. A version without addresses is
// not, and a deleted Node has none.
func TestOtherNodes(t *testing.T) {
	s := New(Config{NodeName: "n1"})
	node := func(ips ...string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "n2"}}
		for _, ip := range ips {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
		}
		return n
	}
	for _, step := range []struct {
		ips     []string
		changed bool
		has     int
	}{
		{[]string{"192.0.2.2"}, true, 1},
		{[]string{"192.0.2.2"}, false, 1},
		{nil, false, 1},
		{[]string{"192.0.2.3", "2001:db8::3"}, true, 2},
	} {
		if changed, has := s.SetNode(node(step.ips...)), s.balancers.others; changed != step.changed || len(has) != step.has {
			t.Errorf("addresses %v: changed %t, %v", step.ips, changed, has)
		}
	}
	s.DeleteNode("n2")
	if has := s.balancers.others; len(has) != 0 {
		t.Errorf("after the deletion: %v", has)
	}
}
