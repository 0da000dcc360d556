// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// TestLocalhostNodePorts checks that NodePorts answer the node on 127.0.0.1 in iptables mode,
// unless that is disabled.
func TestLocalhostNodePorts(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPTablesNFT, kerneltest.IPSet)
	const parameter = "/proc/sys/net/ipv4/conf/all/route_localnet"
	loopback := netip.MustParseAddrPort("127.0.0.1:30080")
	for _, flag := range []string{"--iptables-localhost-nodeports=true", "--iptables-localhost-nodeports=false"} {
		t.Run(flag, func(t *testing.T) {
			s := newSite(t)
			s.save("web.yaml", nodePort(0, 1))
			s.run("--proxy-mode=iptables", flag)
			s.untilReached("web-0", "web-1")
			set, err := s.node.Run(t.Context(), "cat", parameter)
			s.check(err)
			got, err := reached(s.node, loopback, 1)
			if on := strings.HasSuffix(flag, "true"); on != (err == nil) || on != (string(set) == "1\n") {
				t.Errorf("127.0.0.1 leads to %v (%v), and route_localnet is %s", got, err, set)
			}
		})
	}
}

// TestInitOnlyLoopback checks that --init-only programs the rule that route_localnet needs
// before it sets that: otherwise neighbors reach loopback addresses until the proxy runs.
func TestInitOnlyLoopback(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPTablesNFT, kerneltest.IPSet)
	s := newSite(t)
	s.check(s.kubeProxy("--init-only", "--proxy-mode=iptables", "--conntrack-max-per-core=0").Wait())
	set, err := s.node.Run(t.Context(), "cat", "/proc/sys/net/ipv4/conf/all/route_localnet")
	s.check(err)
	rules, err := s.node.Run(t.Context(), "iptables-nft-save", "-t", "filter")
	s.check(err)
	if string(set) != "1\n" || !strings.Contains(string(rules), "-j SLIP-LOCALNET") || !strings.Contains(string(rules), "-A SLIP-LOCALNET") {
		t.Errorf("route_localnet is %s, and the rules are\n%s", set, rules)
	}
}

const localhostGate = "--feature-gates=KubeProxyNFTablesLocalhostNodePorts=true"

// TestNFTablesLocalhostNodePorts checks that NodePorts answer the node on 127.0.0.1 in nftables
// mode, if the gate and the keyword are there, until the proxy stops. At first another program
// has the port.
func TestNFTablesLocalhostNodePorts(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	s := newSite(t)
	loopback := netip.MustParseAddrPort("127.0.0.1:30080")
	other, err := s.node.Serve(lab.TCP, loopback)
	s.check(err)
	s.save("web.yaml", nodePort(0, 1))
	args := []string{"--proxy-mode=nftables", localhostGate, "--nodeport-addresses=localhost", "--metrics-bind-address=127.0.0.1:10249"}
	p := s.run(args...)
	s.until("the Event is in the log", func() bool {
		return strings.Contains(s.log.String(), `service="default/web" reason="FailedToServeLoopbackNodePort" note="Service default/web: NodePort 30080 cannot be served on 127.0.0.1:30080/TCP: listen tcp4 127.0.0.1:30080: bind: address already in use"`)
	})
	const listeners, failures = `kubeproxy_nftables_localhost_nodeport_listeners{ip_family="IPv4"} %d`, `kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total{ip_family="IPv4"} 0`
	if m := s.metrics(); !strings.Contains(m, fmt.Sprintf(listeners, 0)) || strings.Contains(m, failures) {
		t.Errorf("beside another program, the metrics are:\n%s", m)
	}
	s.check(other.Close())
	s.untilReachedFrom(s.node, loopback, "web-0", "web-1")
	s.untilReached("web-0", "web-1")
	if m := s.metrics(); !strings.Contains(m, fmt.Sprintf(listeners, 1)) || strings.Contains(m, failures) {
		t.Errorf("the metrics are:\n%s", m)
	}
	if got, err := reached(s.node, netip.AddrPortFrom(ownAddr, 30080), 1); err == nil {
		t.Errorf("at an address that is not selected, connections reach %v", got)
	}
	if out, err := s.verify(args[:3]...); err != nil {
		t.Errorf("verify: %v: %s", err, out)
	}

	s.check(p.Signal(syscall.SIGTERM))
	if err := p.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	if got, err := reached(s.node, loopback, 1); !errors.Is(err, lab.ErrRefused) {
		t.Errorf("without the proxy, connections reach %v (%v)", got, err)
	}
	if out, err := s.verify(args[:3]...); err == nil || !strings.Contains(out, "- Service default/web: listener on 127.0.0.1:30080/TCP\n") {
		t.Errorf("verify without the proxy: %v: %s", err, out)
	}
	s.run(args...)
	s.untilReachedFrom(s.node, loopback, "web-0", "web-1")
}

// TestLocalhostNodePortsRefused checks that the gate has NodePorts refused and counted on
// loopback addresses, if no range is about these alone, also those that a program listens on.
func TestLocalhostNodePortsRefused(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	s := newSite(t)
	loopback := netip.MustParseAddrPort("127.0.0.1:30080")
	_, err := s.node.Serve(lab.TCP, loopback)
	s.check(err)
	s.save("web.yaml", nodePort(0, 1))
	s.run("--proxy-mode=nftables", localhostGate, "--nodeport-addresses=all", "--metrics-bind-address=127.0.0.1:10249")
	s.untilReached("web-0", "web-1")
	if got, err := reached(s.node, loopback, 1); !errors.Is(err, lab.ErrRefused) {
		t.Errorf("connections reach %v (%v)", got, err)
	}
	m := s.metrics()
	for _, want := range []string{`ip_family="IPv4",protocol="TCP"} 1`, `ip_family="IPv4",protocol="UDP"} 0`, `ip_family="IPv6",protocol="TCP"} 0`} {
		if !strings.Contains(m, "kubeproxy_nftables_localhost_nodeport_rejected_packets_total{"+want) {
			t.Errorf("no %s in the metrics:\n%s", want, m)
		}
	}
}

// TestLoopbackNodePorts checks for which settings NodePorts on loopback addresses of a family
// are served by relays, and for which they are refused.
func TestLoopbackNodePorts(t *testing.T) {
	const ignored, relayed, refused = desired.LoopbackIgnored, desired.LoopbackRelayed, desired.LoopbackRefused
	for args, want := range map[string][2]desired.LoopbackNodePorts{
		"--nodeport-addresses localhost":                                        {ignored, ignored},
		"--proxy-mode iptables --nodeport-addresses localhost " + localhostGate: {ignored, ignored},
		localhostGate: {refused, refused},
		"--nodeport-addresses all " + localhostGate:                      {refused, refused},
		"--nodeport-addresses 126.0.0.0/7 " + localhostGate:              {refused, refused},
		"--nodeport-addresses localhost " + localhostGate:                {relayed, relayed},
		"--nodeport-addresses all,localhost " + localhostGate:            {relayed, relayed},
		"--nodeport-addresses primary,127.0.0.9/32 " + localhostGate:     {relayed, refused},
		"--nodeport-addresses 10.0.0.0/8,::1/128 " + localhostGate:       {refused, relayed},
		"--nodeport-addresses 127.1.2.3/8 --feature-gates AllAlpha=true": {relayed, refused},
	} {
		if got := loopbackNodePorts(parsed(t, "--proxy-mode nftables "+args)); got != want {
			t.Errorf("%s: %v; want %v", args, got, want)
		}
	}
}
