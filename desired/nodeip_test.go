// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNodeIP has an address of the node's go before what the Node object says, in its
// family, and be there without one.
func TestNodeIP(t *testing.T) {
	given, own4, own6 := netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	s := New(Config{NodeName: "n1", NodeIP: given, NodePorts: NodePortAddresses{Primary: true}})
	want := func(what string, want ...netip.Addr) {
		t.Helper()
		if got := s.NodePortAddresses(); !slices.Equal(got, want) {
			t.Errorf("%s: NodePorts answer on %v; want %v", what, got, want)
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
