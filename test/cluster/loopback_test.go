// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
)

// TestLoopbackNodePorts compares the two proxies' NodePorts on loopback addresses in nftables
// mode, with what docs/services.md says is different.
func TestLoopbackNodePorts(t *testing.T) {
	for _, setting := range []string{"localhost", "all"} {
		t.Run(setting, func(t *testing.T) {
			e := newEnv(t)
			configure := func(o *proxies.Options) {
				o.Configure = func(config map[string]any) {
					config["mode"] = "nftables"
					config["featureGates"] = map[string]bool{"KubeProxyNFTablesLocalhostNodePorts": true}
					config["nodePortAddresses"] = []string{setting}
				}
			}
			both := []*proxies.Proxy{e.start(proxies.KubeProxyNFTables, e.Nodes[0], configure), e.start(proxies.Slipstream, e.Nodes[1], configure)}
			pods := []*runningPod{e.pod(0, "web"), e.pod(1, "web"), e.pod(2, "web")}
			svc := e.service("web", nodePorts)
			for i, p := range both {
				n := e.Nodes[i]
				e.knows(n, svc, pods...)
				for _, ipv6 := range families {
					if setting == "localhost" {
						e.reaches(&n.Machine, lab.TCP, onLoopback(svc, corev1.ProtocolTCP, ipv6), pods...)
						if p.Kind.IsSlipstream() {
							e.reaches(&n.Machine, lab.UDP, onLoopback(svc, corev1.ProtocolUDP, ipv6), pods...)
							continue
						}
						e.refused(n, corev1.ProtocolUDP, onLoopback(svc, corev1.ProtocolUDP, ipv6))
						e.rejected(p, corev1.ProtocolUDP, ipv6)
						continue
					}
					for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
						e.refused(n, protocol, onLoopback(svc, protocol, ipv6))
						e.rejected(p, protocol, ipv6)
					}
				}
			}
			if setting == "all" {
				return
			}
			_, err := e.patchService(t.Context(), svc.Name, map[string]any{"spec": map[string]any{"externalTrafficPolicy": "Local"}})
			e.check(err)
			for _, ipv6 := range families {
				e.reaches(&e.Nodes[0].Machine, lab.TCP, onLoopback(svc, corev1.ProtocolTCP, ipv6), pods[0])
				e.reaches(&e.Nodes[1].Machine, lab.TCP, onLoopback(svc, corev1.ProtocolTCP, ipv6), pods...)
			}
		})
	}
}

// onLoopback is a Service's NodePort at a loopback address.
func onLoopback(svc *corev1.Service, p corev1.Protocol, ipv6 bool) netip.AddrPort {
	ip := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if ipv6 {
		ip = netip.IPv6Loopback()
	}
	for _, port := range svc.Spec.Ports {
		if port.Protocol == p {
			return netip.AddrPortFrom(ip, uint16(port.NodePort))
		}
	}
	return netip.AddrPort{}
}

// refused waits until connections of a node are refused.
func (e *env) refused(n *site.Node, p corev1.Protocol, to netip.AddrPort) {
	e.Helper()
	e.until(fmt.Sprintf("%s %v is refused on %s", p, to, n.Name()), func() error {
		r, err := n.Connect(lab.Protocol(p), to)
		if !errors.Is(err, lab.ErrRefused) {
			return fmt.Errorf("answered by %q: %w", r.Server, err)
		}
		return nil
	})
}

// rejected waits until a proxy has counted a rejected packet.
func (e *env) rejected(p *proxies.Proxy, protocol corev1.Protocol, ipv6 bool) {
	e.Helper()
	family := map[bool]string{false: "IPv4", true: "IPv6"}[ipv6]
	counted := regexp.MustCompile(fmt.Sprintf(`(?m)^kubeproxy_nftables_localhost_nodeport_rejected_packets_total\{ip_family="%s",protocol="%s"\} [1-9]`, family, protocol))
	e.until(fmt.Sprintf("%s has counted %s by %s", p.Kind, protocol, family), func() error {
		if _, body := e.get(p, "http://127.0.0.1:10249/metrics"); !counted.MatchString(body) {
			return errors.New("no such line in the metrics")
		}
		return nil
	})
}
