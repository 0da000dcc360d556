// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/vishvananda/netlink"
)

// recordIPVS adds the objects of kube-proxy's IPVS mode other than rules.
func (n *node) recordIPVS() {
	n.Helper()
	n.run(testdata(n, "ipvs.ipset"), "ipset", "restore")
	n.run("", "ip", "link", "add", dummy, "type", "dummy")
	for _, a := range []string{"10.96.0.1/32", "203.0.113.2/32", "fd00:96::1533/128"} {
		n.run("", "ip", "addr", "add", a, "dev", dummy)
	}
	n.run(testdata(n, "ipvs.ipvsadm"), "ipvsadm", "--restore")
}

// TestIPVS removes everything of IPVS mode, except excluded virtual servers, those with direct routing, and other
// programs' sets.
func TestIPVS(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPVS, kerneltest.IPTablesNFT)
	n := newNode(t)
	n.run("create KUBE-OTHER hash:ip\nadd KUBE-OTHER 192.0.2.1\n", "ipset", "restore")
	n.run("-A -t 192.0.2.80:80 -s rr\n-a -t 192.0.2.80:80 -r 192.0.2.81:80 -m -w 1\n-A -f 7 -s rr\n-A -t 198.51.100.80:80 -s wlc\n-a -t 198.51.100.80:80 -r 10.0.0.7:80 -g -w 1\n", "ipvsadm", "--restore")
	state := func() string {
		return n.run("", "ip", "-brief", "link") + n.run("", "ipset", "save", "-sorted") + n.run("", "ipvsadm", "--save", "-n")
	}
	before := state()
	n.recordIPVS()
	rules := &iptables{n, "iptables-nft"}
	rules.restoreRecorded("ipvs")
	o := n.options()
	o.ExcludeCIDRs = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	if err := n.ns.Do(func() error { return Remove(t.Context(), o) }); err != nil {
		t.Fatal(err)
	}
	compare(t, "the node", state(), before)
	if said := strings.Join(n.removed, ", "); !strings.Contains(said, "35 IPVS virtual servers") || !strings.Contains(said, "its ipsets") {
		t.Errorf("reported: %s", said)
	}
	n.takeOver()
	if len(n.removed) > 0 {
		t.Errorf("a second time removed %v", n.removed)
	}
}

// TestIPVSNotKubeProxy keeps virtual servers if there is no kube-ipvs0.
func TestIPVSNotKubeProxy(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPVS)
	n := newNode(t)
	n.run("-A -t 192.0.2.80:80 -s rr\n", "ipvsadm", "--restore")
	n.takeOver()
	if out := n.run("", "ipvsadm", "--save", "-n"); !strings.Contains(out, "192.0.2.80:80") {
		t.Errorf("left: %q", out)
	}
}

// TestIPVSDrain checks that established connections through IPVS continue, that new ones follow
// our rules, and that IPVS is removed when the former have ended. New connections of the node
// itself continue after that.
func TestIPVSDrain(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPVS, kerneltest.IPTablesNFT)
	l := kerneltest.NewLab(t)
	machine, err := l.Node("n1", lab.NodeOptions{
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24")},
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
	})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{TB: t, ns: machine.Namespace}
	pod := func(name, addr string) *lab.Pod {
		p, err := machine.Pod(name, netip.MustParseAddr(addr))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	client := pod("client", "10.244.1.2")
	for name, addr := range map[string]string{"old": "10.244.1.10", "new": "10.244.1.11"} {
		p := pod(name, addr)
		for _, protocol := range []lab.Protocol{lab.TCP, lab.UDP} {
			if _, err := p.Serve(protocol, netip.MustParseAddrPort("0.0.0.0:8080")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := n.ns.SetSysctl("ipv4/vs/conntrack", "1"); err != nil {
		t.Fatal(err)
	}
	// kube-proxy sets 1, but only since Linux 5.9 that has connections end with their
	// virtual server.
	if err := n.ns.SetSysctl("ipv4/vs/expire_nodest_conn", "0"); err != nil {
		t.Fatal(err)
	}
	n.recordIPVS()
	(&iptables{n, "iptables-nft"}).restoreRecorded("ipvs") // connections are tracked, with hooks for NAT
	n.run("", "ip", "addr", "add", "10.96.0.10/32", "dev", dummy)
	n.run("", "ip", "addr", "add", "10.96.0.20/32", "dev", dummy)
	n.run(`-A -t 10.96.0.10:80 -s rr
-a -t 10.96.0.10:80 -r 10.244.1.10:8080 -m -w 1
-A -u 10.96.0.20:80 -s rr
-a -u 10.96.0.20:80 -r 10.244.1.10:8080 -m -w 1
`, "ipvsadm", "--restore")

	web, datagrams := netip.MustParseAddrPort("10.96.0.10:80"), netip.MustParseAddrPort("10.96.0.20:80")
	patience := lab.Timeout(3 * time.Minute) // a connection that is lost does not go on within await's time
	stream, err := client.Stream(lab.TCP, web, 20*time.Millisecond, patience)
	if err != nil {
		t.Fatal(err)
	}
	flow := lab.Source(netip.MustParseAddrPort("10.244.1.2:4000"))
	answeredBy := func(p lab.Protocol, to netip.AddrPort, want string, opts ...lab.ConnectOption) {
		t.Helper()
		reply, err := client.Connect(p, to, opts...)
		if err != nil || reply.Server != want {
			t.Errorf("%v %v: answered by %q, %v; want %q", p, to, reply.Server, err, want)
		}
	}
	own := func(addr netip.AddrPort) *lab.Stream {
		t.Helper()
		s, err := machine.Stream(lab.TCP, addr, 20*time.Millisecond, patience)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	goesOn := func(what string, s *lab.Stream) {
		t.Helper()
		sent := s.Stats()
		await(t, what+" goes on", func() bool { return s.Stats().Received > sent.Received+20 })
		if stats := s.Stats(); stats.Failed > 0 {
			t.Errorf("%s lost messages: %+v", what, stats)
		}
	}
	oldOwn := own(web)
	if err := n.ns.Do(Prepare); err != nil {
		t.Fatal(err)
	}
	goesOn("the node's connection", oldOwn)
	seenAs := func(when string) {
		t.Helper()
		reply, err := machine.Connect(lab.TCP, web)
		if got := reply.Source.Addr().String(); err != nil || got != "192.168.100.11" {
			t.Errorf("%s: the node's connection begins with %s, %v", when, got, err)
		}
	}
	seenAs("before")
	answeredBy(lab.TCP, web, "old")
	answeredBy(lab.UDP, datagrams, "old", flow)

	// In the place of ours.
	n.run(`table ip services {
	chain prerouting { type nat hook prerouting priority dstnat; ip daddr { 10.96.0.10, 10.96.0.20 } jump to-new; }
	chain output { type nat hook output priority -100; ip daddr { 10.96.0.10, 10.96.0.20 } jump to-new; }
	chain to-new { meta l4proto tcp dnat to 10.244.1.11:8080; meta l4proto udp dnat to 10.244.1.11:8080; }
	chain postrouting { type nat hook postrouting priority srcnat; }
}
`, "nft", "-f", "-")
	done := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	go func() { done <- n.ns.Do(func() error { Run(ctx, n.options()); return nil }) }()

	seenAs("while IPVS has connections")
	newOwn := own(web)
	if server := newOwn.Stats().Server; server != "new" {
		t.Errorf("the node's new connection is answered by %s", server)
	}
	// It has begun when the address without connections is removed.
	await(t, "the unused address goes", func() bool {
		return !strings.Contains(n.run("", "ip", "route", "show", "table", "local"), "10.96.0.20")
	})
	answeredBy(lab.TCP, web, "new")
	answeredBy(lab.UDP, datagrams, "new", flow)
	goesOn("the stream", stream)
	goesOn("the node's old connection", oldOwn)
	select {
	case <-done:
		t.Error("the take-over has ended while IPVS has a connection")
	case <-stream.Done():
		t.Errorf("the stream has ended: %+v", stream.Stats())
	default:
	}
	for _, s := range []*lab.Stream{stream, oldOwn} {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-done; err != nil || ctx.Err() != nil {
		t.Errorf("the take-over has not ended by itself: %v, %v", err, ctx.Err())
	}
	if len(n.failed) > 0 {
		t.Errorf("failed: %v", n.failed)
	}
	if out := n.run("", "ipvsadm", "--save", "-n"); out != "" {
		t.Errorf("virtual servers are left: %s", out)
	}
	if _, err := n.try("", "ip", "link", "show", dummy); err == nil {
		t.Error("the interface is left")
	}
	if out := n.run("", "ip", "route", "show", "table", "local"); strings.Contains(out, "10.96.") {
		t.Errorf("routes are left: %s", out)
	}
	answeredBy(lab.TCP, web, "new")
	goesOn("the node's new connection", newOwn)
}

// TestIPVSLooksTwice checks that virtual servers without connections are deleted at the second
// look only, so that connections that begin at the first one can end, and that they stay if
// others were added in between: then kube-proxy is running again.
func TestIPVSLooksTwice(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPVS)
	for _, back := range []bool{false, true} {
		t.Run(fmt.Sprint("kube-proxy is back: ", back), func(t *testing.T) {
			n := newNode(t)
			n.recordIPVS()
			servers := func() int { return strings.Count(n.run("", "ipvsadm", "--save", "-n"), "-A ") }
			before, o := servers(), n.options()
			restored := 0
			step := &virtualServers{drain: true, restore: func() error {
				restored++
				_, err := netlink.LinkByName(dummy) // it records what to restore
				return err
			}}
			look := func() (draining bool) {
				n.check(n.ns.Do(func() error {
					out := step.remove(t.Context())
					o.report(out)
					draining = out.draining
					return nil
				}))
				return draining
			}
			if !look() || servers() != before {
				t.Errorf("after the first look there are %d of %d virtual servers", servers(), before)
			}
			want := 0
			if back {
				n.run("-A -t 10.96.7.7:80 -s rr\n", "ipvsadm", "--restore")
				want = before + 1
			}
			if look() || servers() != want {
				t.Errorf("after the second look there are %d virtual servers, want %d", servers(), want)
			}
			if (restored > 0) == back {
				t.Errorf("parameters were restored %d times", restored)
			}
			if said := strings.Join(n.failed, "; "); strings.Contains(said, "running again") != back || !back && said != "" {
				t.Errorf("reported: %q", said)
			}
		})
	}
}

// TestPrepare checks that the node's connections to Services have the node's own address as
// source, and that Services' addresses stay local to the node.
func TestPrepare(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPVS)
	n := newNode(t)
	n.run("", "ip", "link", "add", "eth0", "type", "dummy")
	for _, a := range []string{"192.168.100.11/24", "fd00:100::11/64"} {
		n.run("", "ip", "addr", "add", a, "dev", "eth0", "nodad")
	}
	for _, link := range []string{"lo", "eth0"} {
		n.run("", "ip", "link", "set", link, "up")
	}
	routes := func() string {
		return n.run("", "ip", "route", "show", "table", "local") + n.run("", "ip", "-6", "route", "show", "table", "local")
	}
	before := routes()
	n.recordIPVS()
	addresses := map[string]string{"10.96.0.1": "192.168.100.11", "203.0.113.2": "192.168.100.11", "fd00:96::1533": "fd00:100::11"}
	for range 2 {
		n.check(n.ns.Do(Prepare))
		for service, own := range addresses {
			if got := n.run("", "ip", "route", "get", service); !strings.HasPrefix(got, "local ") || !strings.Contains(got, "src "+own+" ") {
				t.Errorf("to %s: %s", service, got)
			}
		}
		if left := n.run("", "ip", "-brief", "addr", "show", "dev", dummy); strings.Contains(left, "/") {
			t.Errorf("addresses are left: %s", left)
		}
	}
	back := n.options()
	back.KeepVirtualServers = true // IPVS mode is back, with its addresses
	n.check(n.ns.Do(func() error { return Remove(t.Context(), back) }))
	compare(t, "table local", routes(), before)
	for service := range addresses {
		n.run("", "ip", "addr", "add", service, "dev", dummy)
	}
	n.check(n.ns.Do(Prepare))
	n.takeOver()
	compare(t, "table local", routes(), before)
}

// await waits until something is so, at most half a minute.
func await(t testing.TB, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !so(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within two minutes: %s", what)
		}
	}
}
