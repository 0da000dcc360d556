// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// udp is the manifest of Service default/web over UDP with some of the servers.
func udp(servers ...int) string {
	return strings.NewReplacer(
		"ports: [{port: 80, targetPort: 8080}]", "ports: [{port: 80, targetPort: 8080, protocol: UDP}]",
		"ports: [{port: 8080}]", "ports: [{port: 8080, protocol: UDP}]",
	).Replace(web(servers...))
}

// TestStaleFlows uses a UDP client that never changes its port: for the kernel, all of its
// packets are one flow.
func TestStaleFlows(t *testing.T) {
	s := newSite(t)
	p := s.run("--metrics-bind-address", "127.0.0.1:10249")
	source := lab.Source(netip.AddrPortFrom(netip.Addr{}, 40000))
	next := func(server string) {
		t.Helper()
		s.until("the client reaches "+server, func() bool {
			r, err := s.client.Connect(lab.UDP, webAddr, source)
			return err == nil && r.Server == server
		})
	}
	deleted := func(n string) {
		t.Helper()
		s.until(n+" entries are counted", func() bool {
			m := s.metrics()
			return strings.Contains(m, `kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv4"} `+n+"\n") && strings.Contains(m, "slipstream_conntrack_failures_total 0\n")
		})
	}

	// The flow begins before the Service exists.
	s.until("the proxy has started", func() bool { return strings.Contains(s.log.String(), `kind="full"`) })
	if r, err := s.client.Connect(lab.UDP, webAddr, source); err == nil {
		t.Fatalf("without a Service, %s answered", r.Server)
	}
	s.save("web.yaml", udp(0))
	next("web-0")
	deleted("1")

	// The endpoint is replaced by another.
	s.save("web.yaml", udp(1))
	next("web-1")
	deleted("2")

	// And again while the proxy is away.
	s.check(p.Kill())
	<-p.Done()
	s.save("web.yaml", udp(2))
	next("web-1")
	p = s.run("--metrics-bind-address", "127.0.0.1:10249")
	next("web-2")
	deleted("1")

	// The Service is deleted while the proxy is away.
	s.check(p.Kill())
	<-p.Done()
	s.save("web.yaml", "")
	next("web-2")
	s.run("--metrics-bind-address", "127.0.0.1:10249")
	s.until("the client reaches nothing", func() bool {
		_, err := s.client.Connect(lab.UDP, webAddr, source)
		return err != nil
	})
}
