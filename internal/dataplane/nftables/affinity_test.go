// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/test/lab"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTooManyClients has more clients with session affinity than are recorded. Those that are
// keep their affinity. Connections of the others are counted.
func TestTooManyClients(t *testing.T) {
	const most, clients = 4, 12
	set := schemas[desired.IPv4].affinity
	defer func(before uint32) { set.Size = before }(set.Size)
	set.Size = most
	s := newStreet(t, 4)
	for i, name := range []string{"web", "other"} {
		s.state.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: corev1.ServiceSpec{
				ClusterIP: webKey(i + 1).Addr().String(), Ports: []corev1.ServicePort{{Port: 80}}, SessionAffinity: corev1.ServiceAffinityClientIP,
			},
		})
	}
	for i := range 4 {
		slice := dataplanetest.Slice(i)
		slice.Name, slice.Labels = "other-"+slice.Name, map[string]string{discoveryv1.LabelServiceName: "other"}
		s.state.SetEndpointSlice(slice)
	}
	dataplanetest.Apply(t, s.Backend, s.state)
	addresses := netip.MustParsePrefix("10.250.0.0/24")
	if err := s.Client.AddLocalRange(addresses); err != nil {
		t.Fatal(err)
	}
	link, err := s.Node.Netlink().LinkByName(s.Client.NodeLink())
	if err == nil {
		err = s.Node.Netlink().RouteAdd(&netlink.Route{
			Dst: &net.IPNet{IP: addresses.Addr().AsSlice(), Mask: net.CIDRMask(addresses.Bits(), 32)}, LinkIndex: link.Attrs().Index,
			Gw: net.IPv4(10, 244, 1, 2), Flags: int(netlink.FLAG_ONLINK),
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	connect := func(service, client int) uint16 {
		t.Helper()
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 250, 0, byte(client)}), 0)
		reply, err := s.Client.Connect(lab.TCP, webKey(service).AddrPort, lab.Source(from), lab.Timeout(10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		return reply.Local.Port()
	}
	stays := func(service, client int, first uint16) {
		t.Helper()
		for range 12 {
			if port := connect(service, client); port != first {
				t.Fatalf("client %d of Service %d was sent to %d and to %d", client, service, first, port)
			}
		}
	}
	unrecorded := func(want uint64) {
		t.Helper()
		if n, err := s.Counts(); err != nil || n.Unrecorded[desired.IPv4] != want {
			t.Errorf("%d unrecorded connections, %v; want %d", n.Unrecorded[desired.IPv4], err, want)
		}
	}
	first := connect(1, 1)
	for client := 2; client <= clients; client++ {
		connect(1, client)
	}
	unrecorded(clients - most)
	recorded := 0
	err = s.conn.Elements(schemas[desired.IPv4].table, schemas[desired.IPv4].affinity.Name, func(nfnl.Element) { recorded++ })
	if err != nil || recorded != most {
		t.Errorf("%d recorded clients, %v; want %d", recorded, err, most)
	}
	stays(1, 1, first)
	for range 3 {
		connect(2, 1) // another Service's client
	}
	unrecorded(clients - most + 3)
}
