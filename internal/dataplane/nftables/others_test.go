// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// otherProxy is a script of the nft command: a proxy of its own, with chains at
// kube-proxy's priority, that serves 10.96.0.77:80 and [fd00:96::77]:80, and port 8080 of the
// addresses of web-1.
const otherProxy = `
table ip other {
	chain services {
		ip daddr 10.96.0.77 tcp dport 80 dnat to 10.244.1.3:8000
		ip daddr 10.96.0.1 tcp dport 8080 dnat to 10.244.1.3:8000
	}
	chain prerouting { type nat hook prerouting priority -100; jump services; }
	chain output { type nat hook output priority -100; jump services; }
}
table ip6 other {
	chain services {
		ip6 daddr fd00:96::77 tcp dport 80 dnat to [fd00:244:1::3]:8000
		ip6 daddr fd00:96::1 tcp dport 8080 dnat to [fd00:244:1::3]:8000
	}
	chain prerouting { type nat hook prerouting priority -100; jump services; }
	chain output { type nat hook output priority -100; jump services; }
}`

// TestBesideAnotherProxy has another proxy with Services of its own in the ServiceCIDR. Its
// chains have the priority of ours. The kernel runs the later one of two such chains first.
func TestBesideAnotherProxy(t *testing.T) {
	for _, first := range []string{"other", "ours"} {
		t.Run(first+" first", func(t *testing.T) { besideAnotherProxy(t, first == "ours") })
	}
}

func besideAnotherProxy(t *testing.T, oursFirst bool) {
	kerneltest.Require(t, kerneltest.NFTables)
	kerneltest.Require(t, kerneltest.NFTBinary)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	node, err := kerneltest.NewLab(t).Node("n1", lab.NodeOptions{
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24"), netip.MustParsePrefix("fd00:100::11/64")},
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:244:1::/64")},
	})
	must(err)
	client, err := node.Pod("client", netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("fd00:244:1::2"))
	must(err)
	server, err := node.Pod("server", netip.MustParseAddr("10.244.1.3"), netip.MustParseAddr("fd00:244:1::3"))
	must(err)
	_, err = server.Serve(lab.TCP, netip.AddrPortFrom(netip.IPv6Unspecified(), 8000)) // and IPv4
	must(err)

	b, err := New(dataplane.Config{NetNS: node.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit})
	must(err)
	defer b.Close()
	// MasqueradeAll: the server sees the node's address if a packet has our mark.
	s := desired.New(desired.Config{NodeName: "n1", MasqueradeAll: true})
	fancy(s) // with the ServiceCIDRs
	web(s, 1)
	theirs := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "theirs", Labels: map[string]string{"service.kubernetes.io/service-proxy-name": "other"}},
		Spec:       corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.77", "fd00:96::77"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	s.SetService(theirs)
	other := func() {
		if out, err := node.Run(context.WithoutCancel(t.Context()), "nft", otherProxy); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if oursFirst {
		other()
	}
	dataplanetest.Reconcile(t, b, s)
	if !oursFirst {
		other()
	}

	for _, from := range []*lab.Machine{&client.Machine, &node.Machine} {
		for _, v6 := range []bool{false, true} {
			addr := map[bool]string{false: "10.96.0.%s", true: "[fd00:96::%s]"}[v6]
			for _, test := range []struct{ host, port, want string }{
				{"77", "80", "ok"},
				{"1", "8080", "ok"},
				{"1", "81", "refused"},
				{"1", "80", "refused"}, // without endpoints
				{"78", "80", "timeout"},
			} {
				dest := netip.MustParseAddrPort(fmt.Sprintf(addr, test.host) + ":" + test.port)
				timeout := 10 * time.Second
				if test.want == "timeout" {
					timeout = time.Second
				}
				reply, err := from.Connect(lab.TCP, dest, lab.Timeout(timeout))
				if got := lab.Outcome(err); got != test.want {
					t.Errorf("from %s to %s: %s, want %s", from.Name(), dest, got, test.want)
				} else if err == nil && reply.Seen.Addr() != reply.Source.Addr() {
					t.Errorf("from %s to %s: masqueraded as %s", from.Name(), dest, reply.Seen)
				}
			}
		}
	}
}
