// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"net/netip"
	"os"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// testbed is the picture in the package's documentation.
type testbed struct {
	lab        *lab.Lab
	n1, n2     *lab.Node
	web1, web2 *lab.Pod // on n1
	web3       *lab.Pod // on n2
	client     *lab.Host
}

func newTestbed(t *testing.T) *testbed {
	t.Helper()
	b := &testbed{lab: kerneltest.NewLab(t)}
	b.n1 = node(t, b.lab, "n1", 1)
	b.n2 = node(t, b.lab, "n2", 2)
	b.web1 = pod(t, b.n1, "web-1", "10.244.1.5", "fd00:244:1::5")
	b.web2 = pod(t, b.n1, "web-2", "10.244.1.6", "fd00:244:1::6")
	b.web3 = pod(t, b.n2, "web-3", "10.244.2.7", "fd00:244:2::7")
	var err error
	b.client, err = b.lab.Host("client", netip.MustParsePrefix("192.168.100.200/24"), netip.MustParsePrefix("fd00:100::200/64"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func node(t *testing.T, l *lab.Lab, name string, number byte) *lab.Node {
	t.Helper()
	n, err := l.Node(name, lab.NodeOptions{
		Addresses: []netip.Prefix{
			netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, 100, 10 + number}), 24),
			netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0, 1, 0, 15: 0x10 + number}), 64),
		},
		PodCIDRs: []netip.Prefix{
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, number, 0}), 24),
			netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0, 2, 0x44, 0, number}), 64),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func pod(t *testing.T, n *lab.Node, name string, addrs ...string) *lab.Pod {
	t.Helper()
	var as []netip.Addr
	for _, a := range addrs {
		as = append(as, netip.MustParseAddr(a))
	}
	p, err := n.Pod(name, as...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func serve(t *testing.T, m *lab.Machine, p lab.Protocol, addr netip.AddrPort) *lab.Server {
	t.Helper()
	s, err := m.Serve(p, addr)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// namespaceOf returns the name of a machine's namespace, as in /proc/PID/ns/net.
func namespaceOf(m *lab.Machine) (name string) {
	_ = m.Do(func() (err error) { name, err = os.Readlink("/proc/thread-self/ns/net"); return err })
	return name
}

// wildcard is all addresses of both families.
func wildcard(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.Addr{}, port) }

// eachWay runs a test for each protocol that the kernel has and each family.
func eachWay(t *testing.T, fn func(t *testing.T, p lab.Protocol, ipv6 bool)) {
	t.Helper()
	eachWayOf(t, []lab.Protocol{lab.TCP, lab.UDP, lab.SCTP}, fn)
}

// eachWayOf is eachWay for some protocols.
func eachWayOf(t *testing.T, protocols []lab.Protocol, fn func(t *testing.T, p lab.Protocol, ipv6 bool)) {
	t.Helper()
	for _, p := range protocols {
		for _, ipv6 := range []bool{false, true} {
			name := string(p) + "/IPv4"
			if ipv6 {
				name = string(p) + "/IPv6"
			}
			t.Run(name, func(t *testing.T) {
				if p == lab.SCTP {
					kerneltest.Require(t, kerneltest.SCTPSockets)
				}
				fn(t, p, ipv6)
			})
		}
	}
}

func prefixList(prefixes ...string) (list []netip.Prefix) {
	for _, p := range prefixes {
		list = append(list, netip.MustParsePrefix(p))
	}
	return list
}
