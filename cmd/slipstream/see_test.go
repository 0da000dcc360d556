// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/observe/see"
	"github.com/slipstream-proxy/slipstream/internal/source/api"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
)

// socketPath returns a path that is short enough for a Unix socket.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "see")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s", "sock")
}

// see runs slipstream on the node and returns its output and exit status.
func (s *site) see(args ...string) (out string, status int) {
	s.t.Helper()
	cmd := s.command(args...)
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	p, err := s.node.Start(cmd)
	s.check(err)
	var exit *exec.ExitError
	if err := p.Wait(); errors.As(err, &exit) {
		status = exit.ExitCode()
	} else {
		s.check(err)
	}
	return b.String(), status
}

func contains(t *testing.T, out string, all ...string) {
	t.Helper()
	for _, want := range all {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in the output:\n%s", want, out)
		}
	}
}

// TestStatus asks for the status before, during and after a run.
func TestStatus(t *testing.T) {
	s := newSite(t)
	socket := socketPath(t)
	ask := func() (string, int) { return s.see("status", "--socket", socket) }
	out, status := ask()
	contains(t, out, "no proxy answers", "nothing of Slipstream")
	if status != int(exitNoProxy) {
		t.Errorf("exit status %d without a proxy", status)
	}
	s.save("web.yaml", web(0, 1))
	p := s.run("--status-socket", socket, "--verify-period", "50ms")
	s.untilReached("web-0", "web-1")
	s.until("the status says that all is well and verified", func() bool {
		out, status = ask()
		return status == 0 && strings.Contains(out, ": 0 differences")
	})
	contains(t, out, "Health       well", "Mode         nftables", "has all that the mode needs", "Fast path    ", "manifests in "+s.dir, "1 Service, 1 frontend, 1 pool, 2 endpoints", "conntrack: ")
	info, err := os.Stat(socket)
	s.check(err)
	if mode := info.Mode().Perm(); mode != 0o600 {
		t.Errorf("the socket has mode %o", mode)
	}
	if out, status := s.see("status", "--socket", socket, "-o", "json"); status != 0 || !strings.Contains(out, `"problems": []`) {
		t.Errorf("status %d: %s", status, out)
	}

	s.save("web.yaml", web(0))
	s.until("the change is shown", func() bool {
		out, _ := ask()
		return strings.Contains(out, "1 pool, 1 endpoint") && strings.Contains(out, "change of 0 frontends and 1 pool,")
	})
	p.Kill()
	<-p.Done()
	out, status = ask() // of the kernel alone; the socket is stale
	contains(t, out, "nftables table ip slipstream with 1 frontend\n")
	if status != int(exitNoProxy) {
		t.Errorf("exit status %d after the proxy was killed", status)
	}
	s.run("--status-socket", socket) // replaces the stale socket
	s.until("a new run answers", func() bool { _, status := ask(); return status == 0 })
}

// TestStatusOfProblem checks that a missing feature is a problem, with exit status 2.
func TestStatusOfProblem(t *testing.T) {
	t.Setenv(lacks, "IPv6")
	s := newSite(t)
	socket := socketPath(t)
	s.save("web.yaml", web(0))
	s.run("--status-socket", socket, "--proxy-mode", "nftables")
	s.untilReached("web-0")
	out, status := s.see("status", "--socket", socket)
	contains(t, out, "PROBLEM  The kernel lacks what mode nftables needs: IPv6", "FeatureMissing", ", lacks IPv6")
	if status != int(exitProblems) {
		t.Errorf("exit status %d", status)
	}
}

// TestStatusWithoutAPIServer checks that the status says since when the API server does not answer.
func TestStatusWithoutAPIServer(t *testing.T) {
	s := newSite(t)
	socket := socketPath(t)
	p, err := s.node.Start(s.command("run", "--master", "http://127.0.0.1:1", "--hostname-override", "n1", "--status-socket", socket))
	s.check(err)
	t.Cleanup(func() { p.Kill() })
	var out string
	s.until("the status says it", func() bool {
		var status int
		out, status = s.see("status", "--socket", socket)
		return status == int(exitProblems) && strings.Contains(out, "which has not answered yet; requests have been failing since ")
	})
	contains(t, out, "connection refused", "PROBLEM  The source has not delivered its objects yet")
	if out, _ := s.see("status", "--socket", socket, "-o", "json"); !strings.Contains(out, `"failing": "20`) || strings.Contains(out, `"heard"`) {
		t.Errorf("in JSON: %s", out)
	}
}

// states is a Service with an endpoint for each reason not to be used.
const states = `apiVersion: v1
kind: Service
metadata: {name: states}
spec: {type: NodePort, externalTrafficPolicy: Local, clusterIP: 10.96.0.20, ports: [{name: http, port: 80, targetPort: 8080, nodePort: 30080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: states, labels: {kubernetes.io/service-name: states}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.244.1.10], nodeName: n1, zone: a}
- {addresses: [10.244.2.10], nodeName: n2, zone: b}
- {addresses: [10.244.1.11], nodeName: n1, conditions: {ready: false, serving: false}}
- {addresses: [10.244.1.12], nodeName: n1, conditions: {ready: false, serving: true, terminating: true}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: states-0, labels: {kubernetes.io/service-name: states}, annotations: {slipstream.io/weight: "0"}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.244.2.11], nodeName: n2}]
`

// TestServices checks the list, the page of one Service, and that connections are counted.
func TestServices(t *testing.T) {
	s := newSite(t)
	socket := socketPath(t)
	s.save("web.yaml", web(0))
	s.save("states.yaml", states)
	s.save("empty.yaml", strings.NewReplacer("name: web", "name: empty", "10.96.0.10", "10.96.0.11").Replace(web()))
	s.run("--status-socket", socket)
	s.untilReached("web-0")
	stream, err := s.client.Stream(lab.TCP, webAddr, 20*time.Millisecond)
	s.check(err)
	defer stream.Close()

	list := func(args ...string) string {
		out, status := s.see(append([]string{"services", "--socket", socket}, args...)...)
		if status != 0 {
			t.Errorf("exit status %d", status)
		}
		return out
	}
	fields := func(out, service string) []string {
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) > 0 && f[0] == service {
				return f
			}
		}
		t.Fatalf("no line of %s:\n%s", service, out)
		return nil
	}
	out := list("--sort", "connections")
	if f := fields(out, "default/web"); f[1] != "10.96.0.10:80/TCP" || f[2] != "1" || f[3] != "1/1" || f[4] == "0" {
		t.Errorf("%q, want a connection", f)
	}
	if f := fields(out, "default/empty"); f[2] != "0" || !strings.Contains(out, "There is no endpoint in its 1 EndpointSlice") {
		t.Errorf("%q:\n%s", f, out)
	}
	if lines := strings.Split(out, "\n"); !strings.HasPrefix(lines[1], "default/web ") {
		t.Errorf("the Service with connections is not first:\n%s", out)
	}
	if out := list("--unserved"); strings.Contains(out, "default/web") || !strings.Contains(out, "default/empty") {
		t.Errorf("--unserved:\n%s", out)
	}
	out = list("states")
	contains(t, out, "Frontend 10.96.0.20:80/TCP (ClusterIP)", "Frontend 0.0.0.0:30080/TCP (NodePort)", "externalTrafficPolicy Local",
		"Pool Cluster: uses 2 of 5 endpoints, the ready endpoints;", "Pool Local: uses 1 of 5 endpoints, the ready endpoints on this node;")
	for address, want := range map[string]string{
		"10.244.1.10:8080": "used", "10.244.2.10:8080": "Cluster: used, Local: not on this node", "10.244.1.11:8080": "not ready",
		"10.244.1.12:8080": "terminating", "10.244.2.11:8080": "weight 0",
	} {
		if line := strings.Join(fields(out, address), " "); !strings.HasSuffix(line, " "+want) {
			t.Errorf("%s, want %s", line, want)
		}
	}
	for _, args := range [][]string{{"none"}, {"-o", "json", "none"}} {
		if out, status := s.see(append([]string{"services", "--socket", socket}, args...)...); status != 1 || !strings.Contains(out, "serves no Service none") {
			t.Errorf("%s: exit status %d: %s", args, status, out)
		}
	}
	names, _ := s.see("__complete", "services", "--socket", socket, "")
	contains(t, names, "default/empty\ndefault/states\ndefault/web\n")
	namespaces, _ := s.see("__complete", "explain", "--socket", socket, "-n", "")
	contains(t, namespaces, "default\n:4\n")

	service, _, _ := strings.Cut(states, "---\n")
	s.save("states.yaml", service)
	for strings.Contains(list("states"), "2 of 5") {
		time.Sleep(10 * time.Millisecond)
	}
	const since = "The Service has no EndpointSlice, since 20"
	contains(t, list("states"), since)
	contains(t, list("--unserved"), since)
	if out, _ := s.see("explain", "--socket", socket, "states"); !strings.Contains(out, since) {
		t.Errorf("explain:\n%s", out)
	}
	if out := list("empty"); strings.Contains(out, "EndpointSlice, since") {
		t.Errorf("a Service that had no endpoint when the proxy started:\n%s", out)
	}
}

// situation is something that is broken, and what explain says about it.
type situation struct {
	name     string
	manifest string // in place of Service default/web
	node     string // commands on the node
	undo     string
	from, to string // the client pod, and default/web, if empty
	probe    bool
	want     see.Cause // "" if nothing stops the connection
	possible bool
	text     string // in the step of the cause, or in any step
	needs    []kerneltest.Feature
}

const (
	other   = "nft 'add table inet other; "
	forward = other + "add chain inet other forward { type filter hook forward priority 0; }; add rule inet other forward "
)

const (
	undoLegacy = "iptables-legacy -P FORWARD ACCEPT; iptables-legacy -F; iptables-legacy -X; iptables-legacy -t raw -F; iptables-legacy -t mangle -F"
	undoNFT    = "iptables-nft -P FORWARD ACCEPT; iptables-nft -F; iptables-nft -X"
)

// routingRules are those of 'ip rule'.
var routingRules = kerneltest.Define("rules of routing (ip rule)", func() error {
	_, err := netlink.RuleList(netlink.FAMILY_V4)
	return err
})

// bridged puts the client and an endpoint on a bridge.
const (
	bridgeCalls = "/proc/sys/net/bridge/bridge-nf-call-iptables"
	bridged     = "ip link add cni0 type bridge; ip link set cni0 up; ip link set LINK master cni0; ip link set CLIENT master cni0; ip neigh flush dev CLIENT; ip route replace 10.244.1.2 dev cni0 src 192.168.100.11; ip route replace 10.244.1.10 dev cni0 src 192.168.100.11; "
	unbridged   = "ip link del cni0; ip route replace 10.244.1.2 dev CLIENT src 192.168.100.11; ip route replace 10.244.1.10 dev LINK src 192.168.100.11"
)

// bridgedRules: packets on a bridge pass the node's rules.
var bridgedRules = kerneltest.Define("rules for packets on bridges (br_netfilter)", func() error {
	_, err := os.Stat(bridgeCalls)
	return err
})

// toItself is the Service with the client as its only endpoint, and learned what the bridge knows once the client has sent something.
var toItself = strings.ReplaceAll(web(0), "10.244.1.10", "10.244.1.2")

const learned = "ip neigh replace 10.244.1.2 lladdr 02:00:00:00:00:07 dev cni0 nud permanent; bridge fdb replace 02:00:00:00:00:07 dev CLIENT master static; "

var situations = []situation{
	{name: "works"},
	{name: "works from the node", from: "node"},
	{name: "external policy Local, from the node", manifest: strings.NewReplacer("n1", "n2", "spec: {", "spec: {externalTrafficPolicy: Local, externalIPs: [192.0.2.1], ").Replace(web(0)),
		from: "node", to: "192.0.2.1:80", text: "does not apply to clients on this node"},
	{name: "source range of an unknown client", manifest: balanced, from: "outside", to: "192.0.2.9:80", want: see.SourceRange, possible: true},
	{name: "within the source range", manifest: balanced, from: "203.0.113.7", to: "192.0.2.9:80"},
	{name: "contested", manifest: strings.Replace(web(0), "spec: {", "spec: {externalIPs: [192.0.2.1], ", 1) + "---\n" +
		strings.NewReplacer("name: web", "name: rival", "10.96.0.10", "10.96.0.12", "spec: {", "spec: {externalIPs: [192.0.2.1], ").Replace(strings.SplitAfter(web(0), "---\n")[0]),
		want: see.FrontendContested, possible: true, text: "default/rival"},

	{name: "another address is contested", to: "10.96.0.10:80", manifest: strings.Replace(web(0), "spec: {", "spec: {externalIPs: [192.0.2.1], ", 1) + "---\n" +
		strings.NewReplacer("name: web", "name: rival", "10.96.0.10", "10.96.0.12", "spec: {", "spec: {externalIPs: [192.0.2.1], ").Replace(strings.SplitAfter(web(0), "---\n")[0])},
	{name: "rule for replies", node: other + `add chain inet other forward { type filter hook forward priority 0; }; add rule inet other forward tcp sport 8080 drop'`, want: see.Firewall, text: "chain forward"},

	{name: "policy of another table", node: other + `add chain inet other forward { type filter hook forward priority 0; policy drop; }'`, want: see.Firewall, text: "policy of chain forward"},
	{name: "policy with an exception", node: other + `add chain inet other forward { type filter hook forward priority 0; policy drop; }; add rule inet other forward ip saddr 10.244.1.0/24 tcp dport 8000-9000 accept; add rule inet other forward ct state established,related accept'`},
	{name: "rule for the endpoints' port", node: other + `add chain inet other forward { type filter hook forward priority 0; }; add rule inet other forward tcp dport 8080 reject'`, want: see.Firewall},
	{name: "rule for another port", node: other + `add chain inet other forward { type filter hook forward priority 0; }; add rule inet other forward tcp dport 9999 drop'`},
	{name: "rule in a chain that is jumped to", node: other + `add chain inet other f; add chain inet other forward { type filter hook forward priority 0; }; add rule inet other forward iifname "veth*" jump f; add rule inet other f ct state new drop'`, want: see.Firewall, text: "chain f,"},
	{name: "rule for one endpoint", node: other + `add chain inet other forward { type filter hook forward priority 0; }; add rule inet other forward ip daddr { 10.244.1.10, 10.9.9.9 } drop'`, want: see.Firewall, possible: true, text: "10.244.1.10:8080)"},
	{name: "rule with a limit", node: other + `add chain inet other forward { type filter hook forward priority 0; }; add rule inet other forward limit rate over 1/second drop'`, want: see.Firewall, possible: true},
	{name: "rule before the translation", node: other + `add chain inet other raw { type filter hook prerouting priority -300; }; add rule inet other raw ip daddr 10.96.0.0/16 drop'`, want: see.Firewall},
	{name: "rule by a verdict map", node: other + `add chain inet other forward { type filter hook forward priority 0; }; add rule inet other forward tcp dport vmap { 8080 : drop, 80 : accept }'`, want: see.Firewall},
	{name: "rule with a comment", node: other + `add chain inet other forward { type filter hook forward priority 0; }; add rule inet other forward tcp dport 8080 drop comment "of the pods"'`, want: see.Firewall,
		text: `, "of the pods" (nft -a list chain inet other forward)`},
	{name: "packets are not tracked", node: other + `add chain inet other raw { type filter hook prerouting priority -300; }; add rule inet other raw ip daddr 10.96.0.10 notrack'`, want: see.Firewall, text: "chain raw"},
	{name: "another table translates", node: other + `add chain inet other nat { type nat hook prerouting priority -110; }; add rule inet other nat ip daddr 10.96.0.10 dnat ip to 10.9.9.9'`, want: see.Firewall, text: "chain nat"},
	{name: "rule on the way out of the node", from: "node", node: other + `add chain inet other output { type filter hook output priority 0; }; add rule inet other output tcp flags syn / syn,ack drop'`, want: see.Firewall},
	{name: "rule on another way", node: other + `add chain inet other output { type filter hook output priority 0; policy drop; }'`},

	{name: "policy of iptables-nft", needs: []kerneltest.Feature{kerneltest.IPTablesNFT}, node: "iptables-nft -P FORWARD DROP", undo: undoNFT, want: see.Firewall, text: "table ip filter: the policy of chain FORWARD"},
	{name: "chain of iptables-nft", needs: []kerneltest.Feature{kerneltest.IPTablesNFT}, node: "iptables-nft -N F; iptables-nft -A FORWARD -s 10.244.1.0/24 -j F; iptables-nft -A F -p tcp --dport 8080 -j DROP", undo: undoNFT, want: see.Firewall, text: "chain F, rule"},
	{name: "policy of iptables-legacy", needs: []kerneltest.Feature{kerneltest.IPTablesLegacy}, node: "iptables-legacy -P FORWARD DROP", undo: undoLegacy, want: see.Firewall, text: "iptables-legacy -t filter: the policy of chain FORWARD"},
	{name: "policy of iptables-legacy with an exception", needs: []kerneltest.Feature{kerneltest.IPTablesLegacy}, undo: undoLegacy, text: "iptables-legacy -t filter chain FORWARD (forward, priority 0, policy drop)",
		node: `iptables-legacy -P FORWARD DROP; iptables-legacy -A FORWARD -p tcp -m multiport --dports 53,8000:8080 -m conntrack --ctstate NEW -m comment --comment 'the pods" -j DROP' -j ACCEPT; iptables-legacy -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; iptables-legacy -A FORWARD -j DROP`},
	{name: "chain of iptables-legacy", needs: []kerneltest.Feature{kerneltest.IPTablesLegacy}, node: "iptables-legacy -N F; iptables-legacy -A FORWARD -d 10.244.1.0/24 -p tcp -m tcp --syn -j F; iptables-legacy -A F ! -i lo -j REJECT", undo: undoLegacy, want: see.Firewall, text: "-A F ! -i lo -j REJECT"},
	{name: "rule of iptables-legacy before the translation", needs: []kerneltest.Feature{kerneltest.IPTablesLegacy}, node: "iptables-legacy -t mangle -A PREROUTING -d 10.96.0.10/32 -i veth+ -p tcp -m tcp --dport 80 -j DROP", undo: undoLegacy, want: see.Firewall, text: "iptables-legacy -t mangle"},
	{name: "rule of iptables-legacy at random", needs: []kerneltest.Feature{kerneltest.IPTablesLegacy}, node: "iptables-legacy -A FORWARD -m statistic --mode random --probability 0.5 -j DROP", undo: undoLegacy, want: see.Firewall, possible: true},
	{name: "rules of iptables-legacy for others", needs: []kerneltest.Feature{kerneltest.IPTablesLegacy}, undo: undoLegacy,
		node: "iptables-legacy -A FORWARD -p udp -j DROP; iptables-legacy -A FORWARD -s 10.9.0.0/16 -j DROP; iptables-legacy -A FORWARD -o lo -j DROP; iptables-legacy -A FORWARD -m state --state INVALID -j DROP; iptables-legacy -t raw -A OUTPUT -j DROP"},

	{name: "rule for the client", node: forward + `ip saddr 10.244.1.2 drop'`, want: see.Firewall},
	{name: "rule for all but a client, which drops replies", node: forward + `ip saddr != 10.244.1.2 drop'`, want: see.Firewall, text: "drops or rejects the replies"},
	{name: "rule for other clients", node: forward + `ip saddr != { 10.244.1.2, 10.244.1.8/29 } drop'`},
	{name: "rule for a range of endpoints", node: forward + `ip daddr 10.244.1.10-10.244.1.20 drop'`, want: see.Firewall},
	{name: "rule for a set with an exception", node: forward + `ip daddr != { 10.244.1.0/24, 10.9.0.0/16 } drop'`},
	{name: "rule for a named set", node: "nft 'add table inet other; add set inet other bad { type ipv4_addr; flags interval; }; add element inet other bad { 10.244.1.0/28 }; add chain inet other forward { type filter hook forward priority 0; }; add rule inet other forward ip daddr @bad drop'", want: see.Firewall},
	{name: "rule for an empty set", node: "nft 'add table inet other; add set inet other bad { type ipv4_addr; }; add chain inet other forward { type filter hook forward priority 0; }; add rule inet other forward ip daddr @bad drop'"},
	{name: "rule for addresses with ports", node: forward + `ip daddr . tcp dport { 10.244.1.10 . 8080, 10.244.1.11 . 8080, 10.244.1.12 . 8080 } drop'`, want: see.Firewall},
	{name: "rule for new connections", node: forward + `ct state new reject with tcp reset'`, want: see.Firewall},
	{name: "rule for established connections", node: forward + `ct state established drop'`, want: see.Firewall},
	{name: "rule for invalid packets", node: forward + `ct state invalid drop'`},
	{name: "rule for translated connections", node: forward + `ct status dnat drop'`, want: see.Firewall},
	{name: "rule for connections that nothing translates", node: forward + `ct status dnat accept; add rule inet other forward drop'`},
	{name: "rule for the ports that clients choose", node: forward + `tcp sport >= 1024 tcp dport 8080 drop'`, want: see.Firewall, text: "drops or rejects the connection"},
	{name: "rule for a range of ports that clients choose", node: forward + `tcp sport 1024-65535 tcp dport 8080 drop'`, want: see.Firewall, text: "drops or rejects the connection"},
	{name: "rule for privileged ports of clients", node: forward + `tcp sport < 1024 drop'`},
	{name: "rule for UDP", node: forward + `meta l4proto udp drop'`},
	{name: "rule for TCP and UDP", node: forward + `meta l4proto { tcp, udp } th dport 8080 drop'`, want: see.Firewall},
	{name: "rule for marked packets", node: forward + `meta mark 0x1000 drop'`, want: see.Firewall, possible: true},
	{name: "rule for the interface to the endpoint", node: forward + `oifname "LINK" drop'`, want: see.Firewall, possible: true},
	{name: "rule for the client's interface", node: forward + `iifname "CLIENT" drop'`, want: see.Firewall},
	{name: "rule for other interfaces", node: forward + `iifname != "veth*" drop'`},
	{name: "replies behind an accepting rule", node: forward + `tcp dport 8080 accept; add rule inet other forward drop'`, want: see.Firewall, text: "repl"},
	{name: "chain that accepts before another that drops", node: "nft 'add table inet other; add chain inet other first { type filter hook forward priority -10; policy accept; }; add rule inet other first accept; add chain inet other second { type filter hook forward priority 10; policy drop; }'", want: see.Firewall, text: "chain second"},
	{name: "jump that returns", node: "nft 'add table inet other; add chain inet other f; add rule inet other f return; add rule inet other f drop; add chain inet other forward { type filter hook forward priority 0; }; add rule inet other forward jump f'"},
	{name: "goto that ends at the policy", node: "nft 'add table inet other; add chain inet other f; add rule inet other f tcp dport 9999 accept; add chain inet other forward { type filter hook forward priority 0; policy drop; }; add rule inet other forward goto f; add rule inet other forward accept'", want: see.Firewall, text: "policy of chain forward"},
	{name: "rule at the end of the way", node: "nft 'add table inet other; add chain inet other post { type filter hook postrouting priority 200; }; add rule inet other post tcp dport 8080 drop'", want: see.Firewall, text: "chain post"},
	{name: "rule for the node's own packets", node: "nft 'add table inet other; add chain inet other input { type filter hook input priority 0; policy drop; }'"},
	{name: "rule for the node's replies", from: "node", node: "nft 'add table inet other; add chain inet other input { type filter hook input priority 0; policy drop; }; add rule inet other input ct state new accept'", want: see.Firewall},
	{name: "table of the family ip", node: "nft 'add table ip other; add chain ip other forward { type filter hook forward priority 0; }; add rule ip other forward tcp dport 8080 drop'", undo: "nft delete table ip other", want: see.Firewall, text: "table ip other"},
	{name: "dormant table", node: "nft 'add table inet other { flags dormant; }; add chain inet other forward { type filter hook forward priority 0; policy drop; }'"},
	{name: "rule by the port of the Service", node: forward + `meta l4proto tcp ct original proto-dst 80 drop'`, want: see.Firewall, possible: true},
	{name: "rule of iptables-nft for a list of ports", needs: []kerneltest.Feature{kerneltest.IPTablesNFT}, node: "iptables-nft -A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT; iptables-nft -A FORWARD -d 10.244.1.0/24 -p tcp -m multiport --dports 80,8080 -j REJECT", undo: undoNFT, want: see.Firewall, possible: true},
	{name: "iptables-nft for others", needs: []kerneltest.Feature{kerneltest.IPTablesNFT}, node: "iptables-nft -A FORWARD -d 10.9.0.0/16 -j DROP; iptables-nft -A FORWARD -p udp -j DROP", undo: undoNFT},

	{name: "no forwarding", node: "echo 0 > /proc/sys/net/ipv4/ip_forward", undo: "echo 1 > /proc/sys/net/ipv4/ip_forward", want: see.Forwarding},
	{name: "unreachable route", manifest: web(0), node: "ip route del 10.244.1.10; ip route add unreachable 10.244.1.10", undo: "ip route del unreachable 10.244.1.10; ip route add 10.244.1.10 dev LINK src 192.168.100.11", want: see.NoRoute},
	{name: "unreachable route to one endpoint", node: "ip route del 10.244.1.10; ip route add blackhole 10.244.1.10", undo: "ip route del blackhole 10.244.1.10; ip route add 10.244.1.10 dev LINK src 192.168.100.11", want: see.NoRoute, possible: true, text: "to endpoint 10.244.1.10: its route is a blackhole."},
	{name: "missing route", manifest: web(0), node: "ip route del 10.244.1.10; ip route del default", undo: "ip route add default dev eth0; ip route add 10.244.1.10 dev LINK src 192.168.100.11", want: see.NoRoute, text: "network is unreachable"},
	{name: "endpoint by the default route", manifest: web(0), node: "ip route del 10.244.1.10", undo: "ip route add 10.244.1.10 dev LINK src 192.168.100.11", text: "by the default route"},
	{name: "node without a route to the ClusterIP", from: "node", node: "ip route del default", undo: "ip route add default dev eth0", want: see.NoRoute, text: "not even a default one"},
	{name: "no neighbor", manifest: web(0), node: "ip neigh replace 10.244.1.10 dev LINK nud failed", undo: "ip neigh del 10.244.1.10 dev LINK", want: see.NoNeighbor},
	{name: "reverse path", node: "echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter; ip route replace 10.244.1.2 dev eth0",
		undo: "echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter; ip route replace 10.244.1.2 dev CLIENT src 192.168.100.11", want: see.ReversePath},
	{name: "reverse path without a route", node: "echo 2 > /proc/sys/net/ipv4/conf/all/rp_filter; ip route del 10.244.1.2; ip route del default",
		undo: "echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter; ip route add default dev eth0; ip route add 10.244.1.2 dev CLIENT src 192.168.100.11", want: see.ReversePath, text: "no route back"},
	{name: "no route back", from: "203.0.113.7", node: "ip route del default", undo: "ip route add default dev eth0", want: see.NoRoute, text: "it gets no reply"},
	{name: "unreachable routes to all endpoints", needs: []kerneltest.Feature{routingRules}, node: "ip rule add to 10.244.1.8/29 prohibit pref 10", undo: "ip rule del pref 10", want: see.NoRoute, text: "its route prohibits it"},
	{name: "routing rule for the client", needs: []kerneltest.Feature{routingRules}, node: "ip rule add from 10.244.1.2 blackhole pref 10", undo: "ip rule del pref 10", want: see.NoRoute, text: "to endpoint 10.244.1.10: its route is a blackhole."},
	{name: "routing rule for the client's interface", needs: []kerneltest.Feature{routingRules}, node: "ip rule add iif CLIENT lookup 99 pref 10; ip route add unreachable default table 99", undo: "ip rule del pref 10; ip route flush table 99", want: see.NoRoute},
	{name: "routing rule for replies", needs: []kerneltest.Feature{routingRules}, node: "ip rule add from 10.244.1.8/29 to 10.244.1.2 unreachable pref 10", undo: "ip rule del pref 10", want: see.NoRoute, text: "There is no route for replies of endpoint 10.244.1.10 to 10.244.1.2"},
	{name: "routing rule for others", needs: []kerneltest.Feature{routingRules}, node: "ip rule add from 10.244.1.3 blackhole pref 10; ip rule add iif eth0 blackhole pref 11", undo: "ip rule del pref 10; ip rule del pref 11"},
	{name: "no forwarding of replies", manifest: web(0), node: "echo 0 > /proc/sys/net/ipv4/conf/LINK/forwarding", undo: "echo 1 > /proc/sys/net/ipv4/conf/LINK/forwarding", want: see.Forwarding, text: "or their replies"},
	{name: "bridge that passes the rules by", manifest: web(0), node: bridged + "[ ! -e " + bridgeCalls + " ] || echo 0 > " + bridgeCalls, undo: "echo 1 > " + bridgeCalls + " || true; " + unbridged, want: see.Bridge, possible: true, text: "on bridge cni0"},
	{name: "bridge of others", manifest: web(0), node: "ip link add cni0 type bridge; ip link set cni0 up; [ ! -e " + bridgeCalls + " ] || echo 0 > " + bridgeCalls, undo: "ip link del cni0; echo 1 > " + bridgeCalls + " || true"},
	{name: "routing rule for marks that a rule sets", needs: []kerneltest.Feature{routingRules}, node: "ip rule add fwmark 7 blackhole pref 10; " + other + `add chain inet other mangle { type filter hook prerouting priority -150; }; add rule inet other mangle ip daddr 10.96.0.10 meta mark set 7'`,
		undo: "ip rule del pref 10; nft delete table inet other", want: see.NoRoute, possible: true, text: "those with the mark 0x7 have no route to endpoint 10.244.1.10 "},
	{name: "routing rule for marks that no rule sets", needs: []kerneltest.Feature{routingRules}, node: "ip rule add fwmark 7 blackhole pref 10", undo: "ip rule del pref 10"},
	{name: "zone of conntrack for one direction", node: other + `add chain inet other raw { type filter hook prerouting priority -300; }; add rule inet other raw iifname "CLIENT" ct zone set 7'`, want: see.Firewall, text: "puts packets of the connection into zone 7"},
	{name: "zone of conntrack for replies", node: other + `add chain inet other raw { type filter hook prerouting priority -300; }; add rule inet other raw tcp sport 8080 ct zone set 7'`, want: see.Firewall, text: "puts packets of the replies into zone 7"},
	{name: "zone of conntrack for both directions", node: other + `add chain inet other raw { type filter hook prerouting priority -300; }; add rule inet other raw iifname "CLIENT" ct zone set 7; add rule inet other raw ct zone set 7'`},
	{name: "zone of conntrack of iptables-nft", needs: []kerneltest.Feature{kerneltest.IPTablesNFT}, node: "iptables-nft -t raw -A PREROUTING -i CLIENT -j CT --zone 7", undo: "iptables-nft -t raw -F", want: see.Firewall, text: "into zone 7"},
	{name: "zone of conntrack of iptables-legacy", needs: []kerneltest.Feature{kerneltest.IPTablesLegacy}, node: "iptables-legacy -t raw -A PREROUTING -i CLIENT -j CT --zone 7", undo: undoLegacy, want: see.Firewall, text: "into zone 7"},
	{name: "bridge that sends no packet back to its pod", needs: []kerneltest.Feature{bridgedRules}, manifest: toItself, node: bridged + learned, undo: unbridged, want: see.Hairpin, text: "of bridge cni0 sends no packet back"},
	{name: "bridge that sends packets back to their pod", needs: []kerneltest.Feature{bridgedRules}, manifest: toItself, node: bridged + learned + "ip link set CLIENT type bridge_slave hairpin on", undo: unbridged},
	{name: "pod does not answer", probe: true, manifest: web(0), node: "ip neigh replace 10.244.1.10 dev LINK lladdr 02:00:00:00:00:99 nud permanent", undo: "ip neigh del 10.244.1.10 dev LINK", want: see.NoAnswer},
	{name: "pod listens on another port", manifest: strings.Replace(web(0), "ports: [{port: 8080}]", "ports: [{port: 8081}]", 1), probe: true, want: see.NotListening},
	{name: "pod listens", probe: true, text: "accepts connections"},
	{name: "damaged", node: "nft flush map ip slipstream endpoints", undo: "true", want: see.Damaged}, // the last one, as nothing repairs it
}

// balanced is a Service of a load balancer with source ranges.
var balanced = strings.Replace(web(0), "spec: {", "status: {loadBalancer: {ingress: [{ip: 192.0.2.9}]}}\nspec: {type: LoadBalancer, loadBalancerSourceRanges: [203.0.113.0/24], ", 1)

// TestExplain breaks things, and checks that explain names the cause, and no other one. What stops connections by the
// proxy's own decision is in package see (TestDecided).
func TestExplain(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	s := newSite(t)
	socket := socketPath(t)
	s.save("web.yaml", web(0, 1, 2))
	s.run("--status-socket", socket, "--check-period", "1h", "--proxy-mode", "nftables", "--nodeport-addresses", "all")
	s.untilReached("web-0", "web-1", "web-2")
	s.explains(socket, situations, false, web(0, 1, 2))
}

// explains makes situations in place of one that works, in one address family.
func (s *site) explains(socket string, all []situation, ipv6 bool, works string) {
	for _, c := range all {
		s.t.Run(c.name, func(t *testing.T) {
			kerneltest.Require(t, c.needs...)
			manifest, from, to := c.manifest, c.from, c.to
			if manifest == "" {
				manifest = works
			}
			if from == "" {
				from = s.client.Addr(ipv6).String()
			}
			if to == "" {
				to = "web"
			}
			s.save("web.yaml", manifest)
			commands := func(text string) {
				out, err := s.node.Run(t.Context(), "sh", "-ec", strings.NewReplacer("LINK", s.servers[0].NodeLink(), "CLIENT", s.client.NodeLink()).Replace(text))
				if err != nil {
					t.Fatalf("%s: %v: %s", text, err, out)
				}
			}
			if c.node != "" {
				undo := c.undo
				if undo == "" {
					undo = "nft delete table inet other"
				}
				commands(c.node)
				defer commands(undo)
			}
			q := url.Values{"from": {from}, "to": {to}}
			if c.probe {
				q.Set("probe", "")
			}
			var last see.Explanation
			for begin := time.Now(); !c.explained(&last); time.Sleep(10 * time.Millisecond) {
				if time.Since(begin) > patience {
					var b bytes.Buffer
					printExplanation(&b, &last)
					t.Fatalf("want %s (possible: %t) with the text %q, and nothing else:\n%s", c.want, c.possible, c.text, &b)
				}
				last = see.Explanation{}
				if err := see.Ask(t.Context(), socket, "/explain", q, &last); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// web6 is a Service of IPv6 with an endpoint.
var web6 = strings.NewReplacer("10.96.0.10", `"fd00:96::10"`, "10.244.1.10", `"fd00:244:1::10"`, "addressType: IPv4", "addressType: IPv6").Replace(web(0))

// TestExplainIPv6 does the same with what differs in IPv6.
func TestExplainIPv6(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	s := newSiteOf(t, true)
	socket := socketPath(t)
	s.save("web.yaml", web6)
	s.run("--status-socket", socket, "--check-period", "1h", "--proxy-mode", "nftables")
	s.untilReachedFrom(s.client, netip.MustParseAddrPort("[fd00:96::10]:80"), "web-0")
	legacy := []kerneltest.Feature{kerneltest.IPTablesLegacy}
	s.explains(socket, []situation{
		{name: "works"},
		{name: "no Service has the address", to: "[fd00:9::9]:80", want: see.NoService},
		{name: "not ready", manifest: strings.ReplaceAll(web6, "nodeName: n1", "nodeName: n1, conditions: {ready: false}"), want: see.NoReadyEndpoint},
		{name: "rule for the endpoint", node: other + `add chain inet other forward { type filter hook forward priority 0; }; add rule inet other forward ip6 daddr fd00:244:1::10 tcp dport 8080 drop'`, want: see.Firewall},
		{name: "rule before the translation", node: other + `add chain inet other raw { type filter hook prerouting priority -300; }; add rule inet other raw ip6 saddr fd00:244:1::2 ip6 daddr { fd00:96::/64 } drop'`, want: see.Firewall},
		{name: "rule for IPv4", node: other + `add chain inet other forward { type filter hook forward priority 0; }; add rule inet other forward meta nfproto ipv4 drop'`},
		{name: "chain of ip6tables-legacy", needs: legacy, node: "ip6tables-legacy -N F; ip6tables-legacy -A FORWARD -p tcp -m tcp --dport 8080 -j F; ip6tables-legacy -A F -s fd00:244:1::2 -j DROP",
			undo: "ip6tables-legacy -F; ip6tables-legacy -X", want: see.Firewall, text: "ip6tables-legacy -t filter"},
		{name: "no forwarding", node: "echo 0 > /proc/sys/net/ipv6/conf/all/forwarding", undo: "echo 1 > /proc/sys/net/ipv6/conf/all/forwarding", want: see.Forwarding},
		{name: "unreachable route", node: "ip -6 route replace unreachable fd00:244:1::10 metric 1", undo: "ip -6 route del unreachable fd00:244:1::10 metric 1", want: see.NoRoute},
		{name: "no neighbor", node: "ip neigh replace fd00:244:1::10 dev LINK nud failed", undo: "ip neigh del fd00:244:1::10 dev LINK", want: see.NoNeighbor},
		{name: "pod listens on another port", manifest: strings.Replace(web6, "ports: [{port: 8080}]", "ports: [{port: 8081}]", 1), probe: true, want: see.NotListening},
		{name: "pod listens", probe: true, text: "accepts connections"}, // so that no change repairs the next one
		{name: "damaged", node: "nft flush map ip6 slipstream endpoints", undo: "true", want: see.Damaged},
	}, true, web6)
}

// explained reports whether an explanation has the cause, and no other one.
func (c *situation) explained(x *see.Explanation) bool {
	begins := map[bool]string{false: "STOPS HERE (", true: "MAY STOP ("}[c.possible] + string(c.want) + "): "
	if c.want == "" {
		begins = "Nothing found that stops it."
	}
	found, text := c.want == "" && len(x.Steps) > 0, c.text == ""
	if !strings.HasPrefix(x.Verdict, begins) {
		return false
	}
	for _, s := range x.Steps {
		if s.Cause != c.want && s.Cause != "" {
			return false
		}
		if s.Cause == c.want {
			text = text || strings.Contains(s.Text+s.Rule, c.text)
			found = found || s.Possible == c.possible
		}
	}
	return found && text
}

// TestExplainCommand checks the output, the exit status, and errors in arguments.
func TestExplainCommand(t *testing.T) {
	s := newSite(t)
	socket := socketPath(t)
	s.save("web.yaml", web(0, 1))
	s.run("--status-socket", socket, "--cluster-cidr", "10.244.0.0/16")
	s.untilReached("web-0", "web-1")
	explain := func(args ...string) (string, int) {
		return s.see(append([]string{"explain", "--socket", socket}, args...)...)
	}
	out, status := explain("--from", netip.MustParseAddr("10.244.1.2").String(), "web")
	if status != 0 {
		t.Errorf("exit status %d", status)
	}
	contains(t, out, "From 10.244.1.2 (a pod) to 10.96.0.10:80/TCP", "is a ClusterIP of Service default/web",
		"map ip slipstream frontends { 10.96.0.10 . tcp . 80 }", "The kernel has what was programmed",
		"10.244.1.10:8080 with probability 50 %", "sees the client's address", "connections to 10.96.0.10:80/TCP now")
	var x see.Explanation
	out, status = explain("-o", "json", "--from", "10.244.1.2", "10.9.9.9:80")
	if out, _, _ = strings.Cut(out, "\nslipstream:"); json.Unmarshal([]byte(out), &x) != nil || status != int(exitProblems) ||
		x.To != "10.9.9.9:80/TCP" || len(x.Steps) != 1 || x.Steps[0].Cause != see.NoService {
		t.Errorf("exit status %d:\n%s", status, out)
	}
	if out, status := explain("10.9.9.9:80"); status != int(exitProblems) || !strings.Contains(out, "STOPS HERE (NoService)") {
		t.Errorf("exit status %d:\n%s", status, out)
	}
	for args, want := range map[string]string{
		"10.96.0.10":          "lacks a port",
		"web:81":              "has no port 81",
		"--from nobody web":   "neither an address",
		"--from a/pod web":    "only with the Kubernetes API",
		"--from fd00::1 web":  "of different families",
		"--output yaml web":   "must be one of text, json",
		"--socket /none/ web": "no proxy answers",
	} {
		wantStatus := 1
		if strings.HasPrefix(args, "--socket") {
			wantStatus = int(exitNoProxy)
		}
		if out, status := explain(strings.Fields(args)...); status != wantStatus || !strings.Contains(out, want) {
			t.Errorf("%s: exit status %d, no %q:\n%s", args, status, want, out)
		}
	}
}

// TestExplainAffinity asks where a client with session affinity goes before and after it has an endpoint,
// and after the endpoint is gone.
func TestExplainAffinity(t *testing.T) {
	s := newSiteOf(t, true)
	socket := socketPath(t)
	manifest := strings.Replace(traced, "spec:\n", "spec:\n  sessionAffinity: ClientIP\n", 1)
	manifest = strings.NewReplacer(`"fd00:244:1::10"], nodeName: n1}`, `"fd00:244:1::10"]}, {addresses: ["fd00:244:1::11"]}`, `10.244.1.10], nodeName: n1}`, `10.244.1.10]}, {addresses: [10.244.1.11]}`).Replace(manifest)
	s.save("traced.yaml", manifest)
	s.run("--status-socket", socket, "--cluster-cidr", "10.244.0.0/16,fd00:244::/32")
	for _, to := range []string{"10.96.0.40:80", "[fd00:96::40]:80"} {
		at := netip.MustParseAddrPort(to)
		client := s.client.Addr(at.Addr().Is6())
		explained := func() string {
			out, _ := s.see("explain", "--socket", socket, "--from", client.String(), to)
			return out
		}
		s.until("the client has no endpoint", func() bool {
			out := explained()
			return strings.Contains(out, client.String()+" has none.") && strings.Contains(out, "probability 50 %")
		})
		c, err := s.client.Connect(lab.TCP, at, lab.Timeout(patience))
		s.check(err)
		has := 0
		if c.Server == "web-1" {
			has = 1
		}
		endpoint := netip.AddrPortFrom(s.servers[has].Addr(at.Addr().Is6()), 8080)
		for range 3 {
			contains(t, explained(), fmt.Sprintf("%s has endpoint %s, for ", client, endpoint), endpoint.String()+" with probability 100 %")
		}
		s.save("traced.yaml", strings.Replace(manifest, endpoint.Addr().String(), s.servers[2].Addr(at.Addr().Is6()).String(), 1))
		s.until("the endpoint is gone", func() bool {
			return strings.Contains(explained(), fmt.Sprintf("%s had endpoint %s, which is not used any more", client, endpoint))
		})
	}
}

// TestExplainFromPod asks the API server for a pod by its name.
func TestExplainFromPod(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		items := ""
		if r.URL.Path == "/api/v1/namespaces/ns/pods" && r.URL.Query().Get("fieldSelector") == "metadata.name=client" {
			items = `{"metadata":{"namespace":"ns","name":"client"},"spec":{"nodeName":"n1"},"status":{"podIPs":[{"ip":"10.244.1.2"},{"ip":"fd00::2"}]}}`
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","items":[%s]}`, items)
	}))
	defer server.Close()
	c, err := api.NewClient(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	client, err := c.For(corev1.SchemeGroupVersion, &corev1.Pod{}, &corev1.PodList{})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"client": 1, "other": 0} {
		if all, err := pods(client)(t.Context(), "ns", "metadata.name="+name); err != nil || len(all) != want || want > 0 && all[0].Spec.NodeName != "n1" {
			t.Errorf("%s: %v, %v", name, all, err)
		}
	}
}

// TestExplainModes explains in the modes that TestExplain does not have, and counts a connection.
func TestExplainModes(t *testing.T) {
	for mode, needs := range map[string]kerneltest.Feature{config.IPTables: kerneltest.IPTablesNFT, config.IPVS: kerneltest.IPVS} {
		t.Run(mode, func(t *testing.T) {
			kerneltest.Require(t, needs, kerneltest.NFTBinary)
			s := newSite(t)
			socket := socketPath(t)
			s.save("web.yaml", web(0, 1))
			s.run("--status-socket", socket, "--proxy-mode", mode, "--cluster-cidr", "10.244.0.0/16")
			s.untilReached("web-0", "web-1")
			element := map[string]string{config.IPTables: "chain SLIP-", config.IPVS: "virtual server 10.96.0.10:80/TCP"}[mode]
			explained := func(what string, want see.Cause, possible bool) {
				t.Helper()
				var x see.Explanation
				c := situation{want: want, possible: possible}
				s.until(what, func() bool {
					x = see.Explanation{}
					err := see.Ask(t.Context(), socket, "/explain", url.Values{"from": {"10.244.1.2"}, "to": {"web"}}, &x)
					return err == nil && c.explained(&x) // a slow machine may take longer than an answer may
				})
				var b bytes.Buffer
				printExplanation(&b, &x)
				contains(t, b.String(), "From 10.244.1.2 (a pod) to 10.96.0.10:80/TCP", element, "The kernel has what was programmed")
			}
			explained("nothing stops the connection", "", false)
			stream, err := s.client.Stream(lab.TCP, webAddr, 100*time.Millisecond, lab.Timeout(patience))
			s.check(err)
			defer stream.Close()
			if n := s.traffic(socket)["web"].Connections; n == 0 {
				t.Error("no connection is counted")
			}
			command := func(args ...string) {
				t.Helper()
				out, err := s.node.Run(t.Context(), "nft", args...)
				if err != nil {
					t.Fatal(err, string(out))
				}
			}
			command("add table inet other; add chain inet other postrouting { type filter hook postrouting priority 0; policy drop; }")
			explained("another table drops it", see.Firewall, false)
			command("delete table inet other")
			s.save("web.yaml", web())
			explained("there is no endpoint", see.EmptySlices, false)
		})
	}
}

// TestExplainBehind asks while a change waits, as another one was just made.
func TestExplainBehind(t *testing.T) {
	s := newSite(t)
	socket := socketPath(t)
	s.save("web.yaml", web(0, 1))
	s.run("--status-socket", socket, "--min-sync-period", "30s", "--proxy-mode", "nftables")
	s.untilReached("web-0", "web-1")
	s.explains(socket, []situation{{name: "a change waits", manifest: web(0), want: see.Behind, possible: true, text: "A change has been waiting for "}}, false, "")
}

// TestExplainConntrackFull asks while the limit of connections, which is the machine's, is reached.
func TestExplainConntrackFull(t *testing.T) {
	kerneltest.Require(t, kerneltest.OwnClock) // a machine of its own
	s := newSite(t)
	socket := socketPath(t)
	s.save("web.yaml", web(0))
	s.run("--status-socket", socket, "--proxy-mode", "nftables", "--conntrack-max-per-core", "0")
	s.untilReached("web-0")
	stream, err := s.client.Stream(lab.TCP, webAddr, 20*time.Millisecond)
	s.check(err)
	defer stream.Close()
	const limit = "/proc/sys/net/netfilter/nf_conntrack_max"
	before, err := os.ReadFile(limit)
	s.check(err)
	defer func() { s.check(os.WriteFile(limit, before, 0)) }()
	s.check(os.WriteFile(limit, []byte("1"), 0))
	s.explains(socket, []situation{{name: "full", want: see.ConntrackFull, text: " of 1. Packets of new connections are dropped."}}, false, web(0))
}

// TestExplainIPVS: without clusterCIDR, the answer names IPVS's scheduler, and that connections from the
// node are masqueraded, as the endpoint sees.
func TestExplainIPVS(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPVS)
	s := newSite(t)
	socket := socketPath(t)
	s.save("web.yaml", web(0, 1))
	s.run("--status-socket", socket, "--proxy-mode", config.IPVS)
	s.untilReached("web-0", "web-1")
	var x see.Explanation
	s.until("there is an answer", func() bool {
		x = see.Explanation{}
		return see.Ask(t.Context(), socket, "/explain", url.Values{"from": {"192.168.100.11"}, "to": {"web"}}, &x) == nil
	})
	var b bytes.Buffer
	printExplanation(&b, &x)
	contains(t, b.String(), "The endpoint sees an address of this node in place of the client's", "rr")
	if strings.Contains(b.String(), "at random") {
		t.Errorf("IPVS has rr:\n%s", &b)
	}
}
