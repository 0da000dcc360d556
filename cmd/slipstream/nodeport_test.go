// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// nodePort is the manifest of Service default/web with some of the servers, a
// NodePort and health checks.
func nodePort(servers ...int) string {
	return strings.Replace(web(servers...), "spec: {clusterIP: 10.96.0.10, ports: [{port: 80, targetPort: 8080}]}",
		"spec: {type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 32000, clusterIP: 10.96.0.10, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}", 1)
}

// thisNode is the manifest of the Node that the proxy is on.
const thisNode = `apiVersion: v1
kind: Node
metadata: {name: n1}
status: {addresses: [{type: Hostname, address: n1}, {type: InternalIP, address: 192.168.100.11}]}
`

// The node's addresses: its own, and one that is added and deleted.
var (
	ownAddr   = netip.MustParseAddr("192.168.100.11")
	otherAddr = netip.MustParseAddr("192.168.100.77")
)

// outside is a client that is not in the cluster.
func (s *site) outside() *lab.Host {
	s.t.Helper()
	h, err := s.lab.Host("outside", netip.MustParsePrefix("192.168.100.200/24"))
	s.check(err)
	return h
}

// address adds or deletes an address of the node with ip(8).
func (s *site) address(do string, a netip.Addr) {
	s.t.Helper()
	_, err := s.node.Run(s.t.Context(), "ip", "address", do, a.String()+"/24", "dev", "eth0")
	s.check(err)
}

// get makes an HTTP request from a machine, and returns status and body, or the error.
func (s *site) get(from *lab.Host, to netip.Addr, port uint16) string {
	status, text, err := request(from.Do, netip.AddrPortFrom(to, port).String(), "/")
	if err != nil {
		return err.Error()
	}
	return status + " " + text
}

// TestNodePortPrimary checks that NodePorts answer on the Node's own address, once the Node
// object exists.
func TestNodePortPrimary(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	s := newSite(t)
	client := s.outside()
	s.address("add", otherAddr)
	s.save("web.yaml", nodePort(0, 1))
	s.run()
	s.untilReached("web-0", "web-1")
	own, other := netip.AddrPortFrom(ownAddr, 30080), netip.AddrPortFrom(otherAddr, 30080)
	if got, err := reached(client, own, 1); err == nil {
		t.Errorf("without a Node, connections reach %v", got)
	}
	s.until("the log says why", func() bool { return strings.Contains(s.log.String(), "NodePorts answer nowhere") })
	s.save("node.yaml", thisNode)
	s.untilReachedFrom(client, own, "web-0", "web-1")
	s.untilHealth(client, ownAddr, 200, 2)
	if got, err := reached(client, other, 1); err == nil {
		t.Errorf("at an address that is not the Node's, connections reach %v", got)
	}
	if got := s.get(client, otherAddr, 32000); !strings.Contains(got, "refused") {
		t.Errorf("health check at an address that is not the Node's: %s", got)
	}
	s.save("web.yaml", nodePort(2))
	s.untilReachedFrom(client, own, "web-2")
	s.hasManifests()
}

// TestNodePortRanges checks that NodePorts and health checks follow addresses that are added
// and deleted.
func TestNodePortRanges(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	s := newSite(t)
	client := s.outside()
	s.save("web.yaml", nodePort(0, 1))
	s.run("--nodeport-addresses", "192.168.100.64/26,fd00::/8,127.0.0.0/8")
	s.untilReached("web-0", "web-1")
	if log := s.log.String(); !strings.Contains(log, `NodePorts do not answer on loopback addresses: [127.0.0.0/8]`) {
		t.Error("no warning about the range of loopback addresses")
	}
	own, other := netip.AddrPortFrom(ownAddr, 30080), netip.AddrPortFrom(otherAddr, 30080)
	for range 2 {
		s.address("add", otherAddr)
		s.untilReachedFrom(client, other, "web-0", "web-1")
		if r, err := client.Connect(lab.TCP, other); err != nil || r.Seen.Addr() != client.Addr(false) {
			t.Errorf("with externalTrafficPolicy Local, %v is seen as %v, %v", client.Addr(false), r.Seen, err)
		}
		s.untilHealth(client, otherAddr, 200, 2)
		if got, err := reached(client, own, 1); err == nil {
			t.Errorf("at an address that is not selected, connections reach %v", got)
		}
		if got := s.get(client, ownAddr, 32000); !strings.Contains(got, "refused") {
			t.Errorf("health check at an address that is not selected: %s", got)
		}
		s.address("del", otherAddr)
		s.until("the address is gone from the kernel's rules", func() bool {
			b := s.kernel()
			defer b.Close()
			c, err := b.Read(t.Context())
			s.check(err)
			return !strings.Contains(strings.Join(c.Lines(), "\n"), otherAddr.String())
		})
	}
}

// untilHealth waits until the answer to a health check is this one.
func (s *site) untilHealth(from *lab.Host, to netip.Addr, status, endpoints int) {
	s.t.Helper()
	want := fmt.Sprintf("%d %s {\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": true\n}", status, http.StatusText(status), endpoints)
	var got string
	defer func() {
		if s.t.Failed() {
			s.t.Logf("health check answers %s\nwant %s", got, want)
		}
	}()
	s.until("the health check's answer", func() bool {
		got = s.get(from, to, 32000)
		return got == want
	})
}

// TestHealthChecks sends requests like a load balancer, while endpoints and the proxy start
// and stop.
func TestHealthChecks(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	s := newSite(t)
	client := s.outside()
	s.save("node.yaml", thisNode)
	s.save("web.yaml", nodePort(0, 1))
	p := s.run()
	s.untilHealth(client, ownAddr, 200, 2)
	s.save("web.yaml", nodePort())
	s.untilHealth(client, ownAddr, 503, 0)
	s.save("web.yaml", strings.Replace(nodePort(0, 1, 2), "{addresses: [10.244.1.11], nodeName: n1}", "{addresses: [10.244.2.11], nodeName: n2}", 1))
	s.untilHealth(client, ownAddr, 200, 2)
	s.check(p.Kill())
	<-p.Done()
	if got := s.get(client, ownAddr, 32000); !strings.Contains(got, "refused") {
		t.Errorf("without endpoints, the answer is %s", got)
	}
	s.run()
	s.untilHealth(client, ownAddr, 200, 2)
	s.save("web.yaml", web(0))
	s.until("the port is closed", func() bool { return strings.Contains(s.get(client, ownAddr, 32000), "refused") })

	// A port that another program listens on is one error; all others are served.
	_, err := s.node.Serve(lab.TCP, netip.AddrPortFrom(netip.IPv4Unspecified(), 32000))
	s.check(err)
	s.save("web.yaml", nodePort(1))
	s.untilReached("web-1")
	s.until("the error is in the log", func() bool {
		return strings.Contains(s.log.String(), "Service default/web: spec.healthCheckNodePort: cannot answer on port 32000: listen tcp4 192.168.100.11:32000: bind: address already in use")
	})
}
