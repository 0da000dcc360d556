// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRefusedAtLoopback makes sure that NodePorts at loopback addresses are refused and
// counted, also where a program of the node listens, and that nothing else is.
func TestRefusedAtLoopback(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	node, err := kerneltest.NewLab(t).Node("n1", lab.NodeOptions{Addresses: []netip.Prefix{
		netip.MustParsePrefix("192.168.100.11/24"), netip.MustParsePrefix("fd00:100::11/64"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	const nodePort, other = 30080, 30081
	protocols, wantSCTP := []lab.Protocol{lab.TCP, lab.UDP}, uint64(0)
	if kerneltest.SCTPSockets.Probe() == nil {
		protocols, wantSCTP = append(protocols, lab.SCTP), 1
	}
	for _, p := range protocols {
		for _, port := range []uint16{nodePort, other} {
			if _, err := node.Serve(p, netip.AddrPortFrom(netip.IPv6Unspecified(), port)); err != nil {
				t.Fatal(err)
			}
		}
	}
	b, err := New(dataplane.Config{NetNS: node.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	s := desired.New(desired.Config{NodeName: "n1", LoopbackNodePorts: [2]desired.LoopbackNodePorts{desired.LoopbackRefused, desired.LoopbackRefused}})
	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ClusterIPs: []string{"10.96.0.1", "fd00:96::1"}, Ports: []corev1.ServicePort{
			{Name: "tcp", Port: 80, NodePort: nodePort}, {Name: "udp", Protocol: corev1.ProtocolUDP, Port: 80, NodePort: nodePort},
			{Name: "sctp", Protocol: corev1.ProtocolSCTP, Port: 80, NodePort: nodePort},
		}},
	})
	dataplanetest.Reconcile(t, b, s)
	check := func(want string) {
		t.Helper()
		for _, p := range protocols {
			for _, ip := range []string{"127.0.0.1", "127.1.2.3", "::1"} {
				if p == lab.SCTP && ip == "127.1.2.3" {
					continue // Linux 6.1 has no association with it
				}
				for port, want := range map[uint16]string{nodePort: want, other: "ok"} {
					to := netip.AddrPortFrom(netip.MustParseAddr(ip), port)
					if _, err := node.Connect(p, to); lab.Outcome(err) != want {
						t.Errorf("%s to %s: %s, want %s", p, to, lab.Outcome(err), want)
					}
				}
			}
		}
	}
	check("refused")
	counted := func() {
		t.Helper()
		n, err := b.RefusedPackets()
		if err != nil {
			t.Fatal(err)
		}
		for f, want := range []uint64{2, 1} {
			if got := n[f]; got[desired.TCP] != want || got[desired.UDP] != want || got[desired.SCTP] != wantSCTP {
				t.Errorf("%s: %v packets were counted", desired.Family(f), got)
			}
		}
	}
	counted()
	s.DeleteService("default", "web")
	dataplanetest.Apply(t, b, s)
	check("ok")
	dataplanetest.Reconcile(t, b, s)
	counted() // also after a restart
}
