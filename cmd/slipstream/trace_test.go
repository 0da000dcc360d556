// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/observe/see"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// traced is a Service of both families and protocols with one endpoint.
const traced = `apiVersion: v1
kind: Service
metadata: {name: traced}
spec:
  clusterIPs: [10.96.0.40, "fd00:96::40"]
  ipFamilies: [IPv4, IPv6]
  ports: [{name: tcp, port: 80, targetPort: 8080}, {name: udp, protocol: UDP, port: 80, targetPort: 8080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: traced-4, labels: {kubernetes.io/service-name: traced}}
addressType: IPv4
ports: [{name: tcp, port: 8080}, {name: udp, protocol: UDP, port: 8080}]
endpoints: [{addresses: [10.244.1.10], nodeName: n1}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: traced-6, labels: {kubernetes.io/service-name: traced}}
addressType: IPv6
ports: [{name: tcp, port: 8080}, {name: udp, protocol: UDP, port: 8080}]
endpoints: [{addresses: ["fd00:244:1::10"], nodeName: n1}]
`

// TestTrace traces connections that work, and connections that rules of another table drop.
func TestTrace(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	s := newSiteOf(t, true)
	socket := socketPath(t)
	s.save("traced.yaml", traced)
	s.run("--status-socket", socket, "--cluster-cidr", "10.244.0.0/16,fd00:244::/32")
	v4, v6 := netip.MustParseAddrPort("10.96.0.40:80"), netip.MustParseAddrPort("[fd00:96::40]:80")
	for _, to := range []netip.AddrPort{v4, v6} {
		s.untilReachedFrom(s.client, to, "web-0")
	}
	inPod, err := s.client.Start(exec.Command("sleep", "infinity")) // a pod has a process
	s.check(err)
	defer inPod.Kill()
	trace := func(args ...string) (string, int) {
		t.Helper()
		return s.see(append([]string{"explain", "--socket", socket, "--trace", "--timeout", "20s"}, args...)...)
	}
	for _, to := range []netip.AddrPort{v4, v6} {
		endpoint := netip.AddrPortFrom(s.servers[0].Addr(to.Addr().Is6()), 8080)
		for _, from := range []string{"node", s.client.Addr(to.Addr().Is6()).String()} {
			for _, protocol := range []string{"TCP", "UDP"} {
				if (protocol == "TCP") != (to.Addr().Is4() == (from == "node")) {
					continue // half of the combinations have each pair of values
				}
				t.Run(fmt.Sprintf("from %s to %s over %s", from, to, protocol), func(t *testing.T) {
					out, status := trace("--from", from, to.String()+"/"+protocol)
					if status != 0 {
						t.Errorf("exit status %d", status)
					}
					if strings.Count(out, "The packet goes from ") != strings.Count(out, " to "+endpoint.String()+".\n")+1 || strings.Contains(out, "leaves on .") {
						t.Errorf("not one packet:\n%s", out)
					}
					seen := "with the client's address"
					if from == "node" {
						seen = "masqueraded as "
					}
					contains(t, out, "A probe was sent: "+protocol+" from ", " to "+endpoint.String()+".\n", "The packet leaves on "+s.servers[0].NodeLink(),
						fmt.Sprintf("%s is translated to endpoint %s, %s", to, endpoint, seen), "A reply was seen.", "The reply goes from "+endpoint.String(), "The connection was answered within ")
				})
			}
		}
	}
	client := s.client.Addr(false).String()
	for name, c := range map[string]struct{ rules, title, text, rule string }{
		"a rule drops the packet": {"add table inet other; add chain inet other f; add chain inet other forward { type filter hook forward priority 5; }; add rule inet other forward counter jump f; add rule inet other f tcp dport 8080 drop",
			"forward", "The packet is dropped here. table inet other chain f: drop.", ": tcp dport 8080 drop"},
		"a rule rejects the packet": {"add table ip other; add chain ip other raw { type filter hook prerouting priority -300; }; add rule ip other raw ip daddr 10.96.0.40 reject",
			"prerouting", "The packet is dropped here. table ip other chain raw: drop.", ": ip daddr 10.96.0.40 reject"},
		"a policy drops the packet": {"add table inet other; add chain inet other post { type filter hook postrouting priority 0; policy drop; }",
			"postrouting", "The packet is dropped here. table inet other chain post: drop.", "the policy of the chain"},
		"a rule drops the reply": {"add table inet other; add chain inet other forward { type filter hook forward priority 5; }; add rule inet other forward tcp sport 8080 drop",
			"forward", "The reply is dropped here. table inet other chain forward: drop.", ": tcp sport 8080 drop"},
	} {
		t.Run(name, func(t *testing.T) {
			s.nft(c.rules)
			defer s.nft("delete table " + strings.Fields(c.rules)[2] + " other")
			var x see.Explanation
			out, status := trace("-o", "json", "--from", client, v4.String())
			text, _, _ := strings.Cut(out, "\nslipstream:")
			if err := json.Unmarshal([]byte(text), &x); err != nil || status != int(exitProblems) {
				t.Fatalf("exit status %d, %v: %s", status, err, out)
			}
			found := false
			for _, step := range x.Steps {
				found = found || step.Title == c.title && step.Cause == see.Firewall && step.Text == c.text && strings.HasSuffix(step.Rule, c.rule)
			}
			if !found {
				t.Errorf("no such step: %s", out)
			}
		})
	}
	t.Run("iptables-legacy", func(t *testing.T) {
		kerneltest.Require(t, kerneltest.IPTablesLegacy)
		rule := func(op string) {
			out, err := s.node.Run(t.Context(), "iptables-legacy", op, "FORWARD", "-p", "tcp", "--dport", "8080", "-j", "DROP")
			if err != nil {
				t.Fatal(err, string(out))
			}
		}
		rule("-A")
		defer rule("-D")
		out, status := trace("--from", client, "--timeout", "1s", v4.String())
		contains(t, out, "does not trace rules of iptables-legacy, which this node has (tables ", "neither dropped by these rules", "The connection has no entry", "No answer within 1")
		if status != int(exitProblems) {
			t.Errorf("exit status %d", status)
		}
	})
	if out, status := trace("--from", client, "10.96.0.40:81"); status != int(exitProblems) || !strings.Contains(out, "Slipstream refuses or drops the packet here") || !strings.Contains(out, "The connection was refused") {
		t.Errorf("exit status %d, want a refusal:\n%s", status, out)
	}
	for args, want := range map[string]string{"--timeout 0s traced": "--timeout", "--from outside 0.0.0.0:80": "give an address of this node"} {
		if out, _ := trace(strings.Fields(args)...); !strings.Contains(out, want) {
			t.Errorf("%s: %s", args, out)
		}
	}
	if tables := s.nft("list tables"); strings.Contains(tables, "slipstream-trace") {
		t.Errorf("tables are left: %s", tables)
	}
}

// TestTraceAwaits waits for a packet of a client that it cannot send from, and is killed.
func TestTraceAwaits(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	s := newSite(t)
	socket := socketPath(t)
	s.save("web.yaml", web(0))
	s.save("other.yaml", strings.NewReplacer("name: web", "name: other", "10.96.0.10", "10.96.0.12").Replace(web(0)))
	s.run("--status-socket", socket)
	s.untilReached("web-0")
	otherAddr := netip.MustParseAddrPort("10.96.0.12:80")
	s.untilReachedFrom(s.client, otherAddr, "web-0")
	armed := func() bool { return strings.Contains(s.nft("list tables"), "slipstream-trace") }
	start := func() (p *lab.Process, out *bytes.Buffer) {
		cmd := s.command("explain", "--socket", socket, "--from", "outside", "--trace", "--timeout", "2m", webAddr.String())
		out = &bytes.Buffer{}
		cmd.Stdout = out
		p, err := s.node.Start(cmd)
		s.check(err)
		t.Cleanup(func() { p.Kill() })
		s.until("the trace waits", armed)
		return p, out
	}
	p, out := start()
	_, err := s.client.Connect(lab.TCP, otherAddr, lab.Timeout(patience)) // another connection
	s.check(err)
	if !armed() {
		t.Fatalf("a packet of another connection was traced: %s", out)
	}
	source := netip.AddrPortFrom(s.client.Addr(false), 45678)
	_, err = s.client.Connect(lab.TCP, webAddr, lab.Timeout(patience), lab.Source(source))
	s.check(err)
	s.check(p.Wait())
	contains(t, out.String(), "No probe was sent", "The packet goes from "+source.String()+" to "+webAddr.String(), "to 10.244.1.10:8080.\n",
		"is translated to endpoint 10.244.1.10:8080", "The connection was answered within ")
	if strings.Contains(out.String(), otherAddr.String()) {
		t.Errorf("a packet of another connection was traced: %s", out)
	}
	s.until("the table is deleted at the end", func() bool { return !armed() })

	p, _ = start()
	p.Kill()
	<-p.Done()
	s.until("the table is deleted when the process is killed", func() bool { return !armed() })
}

// TestTraceModes traces connections in the modes that TestTrace does not have.
func TestTraceModes(t *testing.T) {
	for mode, needs := range map[string]kerneltest.Feature{config.IPTables: kerneltest.IPTablesNFT, config.IPVS: kerneltest.IPVS} {
		t.Run(mode, func(t *testing.T) {
			kerneltest.Require(t, needs, kerneltest.NFTBinary)
			s := newSite(t)
			socket := socketPath(t)
			s.save("web.yaml", web(0))
			s.run("--status-socket", socket, "--proxy-mode", mode, "--cluster-cidr", "10.244.0.0/16")
			s.untilReached("web-0")
			// Containers that are no pods have the same address. They come before and after in the list of processes.
			another := func() {
				ns, err := lab.NewNamespace()
				s.check(err)
				t.Cleanup(func() { ns.Close() })
				_, err = ns.Run(t.Context(), "ip", "address", "add", "10.244.1.2/32", "dev", "lo")
				s.check(err)
				p, err := ns.Start(exec.Command("sleep", "infinity"))
				s.check(err)
				t.Cleanup(func() { p.Kill() })
			}
			another()
			inPod, err := s.client.Start(exec.Command("sleep", "infinity"))
			s.check(err)
			defer inPod.Kill()
			another()
			for _, from := range []string{"node", "10.244.1.2"} {
				out, status := s.see("explain", "--socket", socket, "--trace", "--timeout", "2m", "--from", from, "web")
				if status != 0 {
					t.Errorf("exit status %d", status)
				}
				contains(t, out, "A probe was sent: TCP from ", " to 10.244.1.10:8080.\n", "The packet leaves on "+s.servers[0].NodeLink(),
					"10.96.0.10:80 is translated to endpoint 10.244.1.10:8080, ", "A reply was seen.", "The reply goes from 10.244.1.10:8080", "The connection was answered within ")
			}
			s.nft("add table inet other; add chain inet other post { type filter hook postrouting priority 0; }; add rule inet other post tcp dport 8080 drop")
			out, status := s.see("explain", "--socket", socket, "--trace", "--timeout", "2m", "--from", "10.244.1.2", "web")
			if contains(t, out, "The packet is dropped here. table inet other chain post: drop."); status != int(exitProblems) {
				t.Errorf("exit status %d", status)
			}
		})
	}
}
