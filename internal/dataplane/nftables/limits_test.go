// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// limited has Services "web", with limits, and "other", without.
type limited struct{ *crowd }

func newLimited(t testing.TB, annotations map[string]string) limited {
	l := limited{newCrowd(t, 1<<10, 1)}
	l.annotate(annotations)
	return l
}

// annotate gives web annotations, and no session affinity.
func (l limited) annotate(annotations map[string]string) {
	l.t.Helper()
	l.state.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: annotations},
		Spec: corev1.ServiceSpec{
			ClusterIP: webKey(1).Addr().String(), Ports: []corev1.ServicePort{{Name: "tcp", Port: 80}, {Name: "udp", Port: 80, Protocol: corev1.ProtocolUDP}},
		},
	})
	if update := l.change(); len(update) > 0 {
		l.t.Fatal(update)
	}
}

// change applies the state's change, and returns what was not programmed.
func (l limited) change() []desired.Problem {
	l.t.Helper()
	update := l.state.Change()
	stats, err := l.Apply(l.t.Context(), &update.Change)
	if err != nil {
		l.t.Fatal(err)
	}
	return append(update.Problems, stats.Refused...)
}

// hold connects a client to web and keeps the connection. It returns the error otherwise.
func (l limited) hold(client int, timeout time.Duration) (net.Conn, error) {
	l.t.Helper()
	return l.holdTo(webKey(1).AddrPort, client, timeout)
}

func (l limited) holdTo(to netip.AddrPort, client int, timeout time.Duration) (conn net.Conn, err error) {
	l.t.Helper()
	from := net.TCPAddrFromAddrPort(netip.AddrPortFrom(clientAddr(client), 0))
	_ = l.Client.Do(func() error {
		conn, err = (&net.Dialer{LocalAddr: from, Timeout: timeout}).Dial("tcp4", to.String())
		return nil
	})
	if err == nil {
		l.t.Cleanup(func() { conn.Close() })
	}
	return conn, err
}

// holds fails the test unless the client is connected.
func (l limited) holds(client int) net.Conn {
	l.t.Helper()
	conn, err := l.hold(client, 10*time.Second)
	if err != nil {
		l.t.Fatalf("client %d: %v", client, err)
	}
	return conn
}

func (l limited) refused(client int) {
	l.t.Helper()
	if _, err := l.hold(client, 10*time.Second); err == nil || !strings.Contains(err.Error(), "refused") {
		l.t.Fatalf("client %d: %v, want a refusal", client, err)
	}
}

// counts returns a counter of IPv4.
func (l limited) counts(reason string) uint64 {
	l.t.Helper()
	c, err := l.Counts()
	if err != nil {
		l.t.Fatal(err)
	}
	return c.Rejected[desired.IPv4][reason]
}

func TestLimitOfConnections(t *testing.T) {
	l := newLimited(t, map[string]string{desired.AnnotationMaxConnections: "5", desired.AnnotationMaxPerClient: "3"})
	first := l.holds(1)
	l.holds(1)
	l.holds(1)
	l.refused(1)
	if n := l.counts(dataplane.TooManyOfClient); n != 1 {
		t.Errorf("%d connections of too many of a client, want 1", n)
	}
	l.holds(2)
	l.holds(2)
	l.refused(3)
	if n := l.counts(dataplane.TooManyConnections); n != 1 {
		t.Errorf("%d connections beyond the Service's, want 1", n)
	}
	if at, err := l.RejectedAt(); err != nil || at[webKey(1)] != 2 {
		t.Errorf("%v, %v, want 2 at %s", at, err, webKey(1))
	}
	dataplanetest.Has(t, l.Dataplane, l.state)

	// The same Dataplane and another one start anew: what is open still counts.
	dataplanetest.Reconcile(t, l.Dataplane, l.state)
	l.refused(3)
	if _, faults, err := l.Rules(t.Context(), l.state.Reported()); err != nil || len(faults) > 0 {
		t.Errorf("faults %q, %v", faults, err)
	}
	if err := l.Check(t.Context()); err != nil {
		t.Error(err)
	}

	// A connection that ends makes room.
	first.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		if _, err := l.hold(3, time.Second); err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("no room for a connection after another one has ended")
		}
		time.Sleep(100 * time.Millisecond)
	}

	// Without limits, nothing is left.
	l.annotate(nil)
	l.holds(3)
	if table, err := l.conn.Contents(limitSchemas[desired.IPv4].table); err != nil || table != nil {
		t.Errorf("the table of limits: %v, %v", table, err)
	}
}

// TestLimitsTriedAgain has the kernel refuse the table of limits for a while, as another process owns it.
func TestLimitsTriedAgain(t *testing.T) {
	l := newLimited(t, nil)
	conn, err := nfnl.Dial(l.config.NetNS)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var owned nfnl.Batch
	owned.AddOwnedTable(limitSchemas[desired.IPv4].table)
	if err := conn.Commit(0, &owned); err != nil {
		t.Fatal(err)
	}
	set := func(name string) {
		l.state.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{desired.AnnotationMaxConnections: "1"}},
			Spec:       corev1.ServiceSpec{ClusterIP: webKey(1).Addr().String(), Ports: []corev1.ServicePort{{Name: "tcp", Port: 80}}},
		})
	}
	set("web")
	if problems := l.change(); len(problems) != 1 || !strings.Contains(problems[0].Reason, "not limited") {
		t.Fatalf("problems %v, want one", problems)
	}
	l.state.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "other"},
		Spec:       corev1.ServiceSpec{ClusterIP: webKey(2).Addr().String(), Ports: []corev1.ServicePort{{Name: "tcp", Port: 80}}},
	})
	if problems := l.change(); len(problems) > 0 {
		t.Errorf("the same problems again: %v", problems)
	}
	l.holds(1)
	l.holds(1)
	conn.Close() // the kernel deletes the table
	l.limits[desired.IPv4].tried = time.Time{}
	if err := l.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.holds(1)
	l.refused(1)
	if err := l.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestLimitOfRate(t *testing.T) {
	l := newLimited(t, map[string]string{desired.AnnotationRatePerClient: "1/m", desired.AnnotationLimitAction: "drop"})
	l.holds(1)
	if _, err := l.hold(1, 300*time.Millisecond); err == nil || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("beyond the rate: %v, want a timeout", err)
	}
	if n := l.counts(dataplane.TooFast); n == 0 {
		t.Error("no connection was too many")
	}
	l.holds(2)
}

// TestLimitsOfIPv6Networks connects from two addresses of one network and from another network.
func TestLimitsOfIPv6Networks(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	node, err := kerneltest.NewLab(t).Node("n1", lab.NodeOptions{
		Addresses: []netip.Prefix{netip.MustParsePrefix("fd00:100::11/64")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("fd00:244:1::/64")},
	})
	must(err)
	client, err := node.Pod("client", netip.MustParseAddr("fd00:244:1::2"))
	must(err)
	server, err := node.Pod("server", netip.MustParseAddr("fd00:244:1::3"))
	must(err)
	_, err = server.Serve(lab.TCP, netip.MustParseAddrPort("[::]:8080"))
	must(err)
	networks := netip.MustParsePrefix("fd00:9::/32")
	must(client.AddLocalRange(networks))
	link, err := node.Netlink().LinkByName(client.NodeLink())
	must(err)
	must(node.Netlink().RouteAdd(&netlink.Route{
		Dst: &net.IPNet{IP: networks.Addr().AsSlice(), Mask: net.CIDRMask(32, 128)}, LinkIndex: link.Attrs().Index, Gw: net.ParseIP("fd00:244:1::2"), Flags: int(netlink.FLAG_ONLINK),
	}))
	d, err := New(dataplane.Config{NetNS: node.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit})
	must(err)
	t.Cleanup(func() { d.Close() })
	state := desired.New(desired.Config{NodeName: "n1"})
	state.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: map[string]string{desired.AnnotationRatePerClient: "1/m"}},
		Spec:       corev1.ServiceSpec{ClusterIP: "fd00:96::1", Ports: []corev1.ServicePort{{Port: 80}}},
	})
	slice := dataplanetest.Slice(0)
	slice.AddressType, slice.Endpoints[0].Addresses, slice.Ports[0].Port = discoveryv1.AddressTypeIPv6, []string{"fd00:244:1::3"}, ptr.To[int32](8080)
	state.SetEndpointSlice(slice)
	dataplanetest.Reconcile(t, d, state)
	for _, c := range []struct {
		from string
		want bool
	}{{"fd00:9:0:1::1", true}, {"fd00:9:0:1:ffff::2", false}, {"fd00:9:0:2::1", true}} {
		_, err := client.Connect(lab.TCP, netip.MustParseAddrPort("[fd00:96::1]:80"), lab.Source(netip.AddrPortFrom(netip.MustParseAddr(c.from), 0)), lab.Timeout(10*time.Second))
		if (err == nil) != c.want {
			t.Errorf("from %s: %v", c.from, err)
		}
	}
	if _, faults, err := d.Rules(t.Context(), state.Reported()); err != nil || len(faults) > 0 {
		t.Errorf("faults %q, %v", faults, err)
	}
}

// TestLimitsAndSources: packets from addresses that a Service does not admit do not count.
func TestLimitsAndSources(t *testing.T) {
	l := newLimited(t, nil)
	balancer := netip.MustParseAddrPort("192.0.2.9:80")
	admit := func(clients ...int) {
		t.Helper()
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: map[string]string{desired.AnnotationRatePerClient: "1/m"}},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, ClusterIP: webKey(1).Addr().String(), Ports: []corev1.ServicePort{{Name: "tcp", Port: 80}},
			},
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.9"}}}},
		}
		for _, client := range clients {
			svc.Spec.LoadBalancerSourceRanges = append(svc.Spec.LoadBalancerSourceRanges, clientAddr(client).String()+"/32")
		}
		l.state.SetService(svc)
		if problems := l.change(); len(problems) > 0 {
			t.Fatal(problems)
		}
		if _, faults, err := l.Rules(t.Context(), l.state.Reported()); err != nil || len(faults) > 0 {
			t.Errorf("faults %q, %v", faults, err)
		}
	}
	try := func(client int, timeout time.Duration, want string) {
		t.Helper()
		conn, err := l.holdTo(balancer, client, timeout)
		if err == nil {
			conn.Close()
		}
		if got := fmt.Sprint(err); !strings.Contains(got, want) {
			t.Errorf("client %d: %s, want %s", client, got, want)
		}
	}
	admit(1, 3)
	for range 3 {
		try(2, 300*time.Millisecond, "timeout")
	}
	if tooFast, dropped := l.counts(dataplane.TooFast), l.counts(dataplane.SourceNotAllowed); tooFast > 0 || dropped < 3 {
		t.Errorf("%d connections were too many and %d not admitted, want 0 and 3", tooFast, dropped)
	}
	try(1, 10*time.Second, "<nil>")
	try(1, 10*time.Second, "refused")
	admit(1, 2)
	try(2, 10*time.Second, "<nil>")
	try(2, 10*time.Second, "refused")
	try(3, 300*time.Millisecond, "timeout")
	admit()
	try(3, 10*time.Second, "<nil>")
	l.annotate(map[string]string{desired.AnnotationRatePerClient: "1/m"})
	if _, faults, err := l.Rules(t.Context(), l.state.Reported()); err != nil || len(faults) > 0 {
		t.Errorf("faults %q, %v", faults, err)
	}
}

// TestLimitsUnderAttack sends datagrams from 100,000 addresses to a Service with limits. Those of a Service with the
// same limits in another namespace hold, also for clients that it has not seen before.
func TestLimitsUnderAttack(t *testing.T) {
	annotations := map[string]string{desired.AnnotationMaxPerClient: "5", desired.AnnotationRatePerClient: "10/m"}
	l := newLimited(t, annotations)
	victim := webKey(2).AddrPort
	l.state.DeleteService("default", "other")
	l.state.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "victim", Name: "web", Annotations: annotations},
		Spec:       corev1.ServiceSpec{ClusterIP: victim.Addr().String(), Ports: []corev1.ServicePort{{Port: 80}}},
	})
	slice := dataplanetest.Slice(0)
	slice.Namespace = "victim"
	l.state.SetEndpointSlice(slice)
	if problems := l.change(); len(problems) > 0 {
		t.Fatal(problems)
	}
	for range 5 {
		l.holds(1)
	}
	l.refused(1)
	if c, err := l.Counts(); err != nil || c.Unlimited[desired.IPv4] != 0 {
		t.Errorf("%d connections without a limit, %v, before a set is full", c.Unlimited[desired.IPv4], err)
	}
	const sources = 100000
	l.flood(2, sources, 1)
	table, err := l.conn.Contents(limitSchemas[desired.IPv4].table)
	if err != nil {
		t.Fatal(err)
	}
	full := 0
	for _, set := range table.Sets {
		n := 0
		if err := l.conn.Elements(limitSchemas[desired.IPv4].table, set.Name, func(nfnl.Element) { n++ }); err != nil || n > mostLimited {
			t.Errorf("%s has %d elements, %v, want at most %d", set.Name, n, err, mostLimited)
		}
		if n > mostLimited/2 {
			full++
		}
	}
	if full == 0 {
		t.Error("no set is full")
	}
	if c, err := l.Counts(); err != nil || c.Unlimited[desired.IPv4] < sources-mostLimited {
		t.Errorf("%d connections without a limit, %v", c.Unlimited[desired.IPv4], err)
	}
	l.refused(1) // it has connected before
	for range 6 {
		l.holds(sources + 100) // it has not, and cannot be counted
	}
	for n := range 6 {
		conn, err := l.holdTo(victim, sources+200, 10*time.Second)
		if err == nil {
			t.Cleanup(func() { conn.Close() })
		}
		if (err == nil) != (n < 5) {
			t.Errorf("connection %d to another namespace's Service: %v", n+1, err)
		}
	}
	// A restart keeps what was counted.
	dataplanetest.Reconcile(t, l.Dataplane, l.state)
	l.refused(1)
	if _, faults, err := l.Rules(t.Context(), l.state.Reported()); err != nil || len(faults) > 0 {
		t.Errorf("faults %q, %v", faults, err)
	}
	// Sets of places that nobody has any more are deleted.
	l.annotate(nil)
	table, err = l.conn.Contents(limitSchemas[desired.IPv4].table)
	if err != nil || len(table.Sets) != 10 {
		t.Errorf("%d sets, %v, want 10", len(table.Sets), err)
	}
}

// flood sends datagrams from clients, n from each.
func (l limited) flood(first, clients, n int) { l.floodTo(webKey(1).AddrPort, first, clients, n) }

func (l limited) floodTo(dst netip.AddrPort, first, clients, n int) {
	l.t.Helper()
	err := l.Client.Do(func() error {
		conn, err := net.ListenPacket("udp4", "0.0.0.0:0")
		if err != nil {
			return err
		}
		defer conn.Close()
		p, to := ipv4.NewPacketConn(conn), net.UDPAddrFromAddrPort(dst)
		for i := first; i < first+clients; i++ {
			for range n {
				if _, err := p.WriteTo([]byte{0}, &ipv4.ControlMessage{Src: clientAddr(i).AsSlice()}, to); err != nil {
					return fmt.Errorf("client %d: %w", i, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		l.t.Fatal(err)
	}
}

func TestTooManyLimits(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	l := newLimited(t, nil)
	for n := 1; n <= desired.MaxLimits+1; n++ {
		l.state.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("ns", n%5), Name: fmt.Sprint("s", n), Annotations: map[string]string{desired.AnnotationMaxConnections: fmt.Sprint(n), desired.AnnotationMaxPerClient: "5", desired.AnnotationRatePerClient: "5/s"}},
			Spec:       corev1.ServiceSpec{ClusterIPs: []string{fmt.Sprintf("10.96.1.%d", n), fmt.Sprintf("fd00:96::%d", n)}, Ports: []corev1.ServicePort{{Port: 80, NodePort: int32(30000 + n)}}},
		})
	}
	problems := l.change()
	if len(problems) != 1 || !strings.Contains(problems[0].Reason, "32 other limits") {
		t.Fatalf("problems %v, want one Service that is not limited", problems)
	}
	dataplanetest.Has(t, l.Dataplane, l.state)
	if _, faults, err := l.Rules(t.Context(), l.state.Reported()); err != nil || len(faults) > 0 {
		t.Errorf("faults %q, %v", faults, err)
	}
	// Chains that no Service needs any more are deleted.
	for n := 1; n <= desired.MaxLimits+1; n++ {
		if n != 7 && problems[0].Service.Name != fmt.Sprint("s", n) {
			l.state.DeleteService(fmt.Sprint("ns", n%5), fmt.Sprint("s", n))
		}
	}
	l.change()
	for _, table := range []string{"ip", "ip6"} {
		saved := dataplanetest.RunIn(t, l.Node.Namespace, "", "nft", "list", "table", table, "slipstream-limits")
		dataplanetest.RunIn(t, l.Node.Namespace, "flush ruleset\n"+saved, "nft", "-c", "-f", "-")
	}
	if _, faults, err := l.Rules(t.Context(), l.state.Reported()); err != nil || len(faults) > 0 {
		t.Errorf("faults %q, %v", faults, err)
	}
	table, err := l.conn.Contents(limitSchemas[desired.IPv4].table)
	if err != nil {
		t.Fatal(err)
	}
	var chains []string
	for _, c := range table.Chains {
		if strings.HasPrefix(c.Name, limitPrefix) {
			chains = append(chains, c.Name)
		}
	}
	if slices.Sort(chains); len(chains) != 2 {
		t.Errorf("chains %v, want two", chains)
	}
}

// BenchmarkLimit measures the processor's time for the first packet of a connection, beside connections that
// are open. It needs -benchtime 1000x.
func BenchmarkLimit(b *testing.B) {
	for _, open := range []int{0, 100, 1000, 9000} {
		b.Run(fmt.Sprint(open), func(b *testing.B) {
			annotations := map[string]string{desired.AnnotationMaxConnections: fmt.Sprint(desired.MostConnections)}
			if open == 0 {
				annotations = nil
			}
			l := newLimited(b, annotations)
			l.flood(1, open, 1)
			var before, after unix.Timespec
			err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &before)
			l.flood(1+open, b.N, 1)
			if err := errors.Join(err, unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &after)); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(after.Nano()-before.Nano())/float64(b.N), "cpu-ns/op")
		})
	}
}

// TestVerifyLimits damages the table with limits. Check and a process that has not written the table find it.
func TestVerifyLimits(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	k := newKernel(t)
	s := desired.New(desired.Config{})
	s.SetNodeAddresses([]netip.Addr{netip.MustParseAddr("192.0.2.1")})
	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: map[string]string{desired.AnnotationMaxConnections: "1"}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: webKey(1).Addr().String(), LoadBalancerSourceRanges: []string{"198.51.100.0/24"},
			Ports: []corev1.ServicePort{{Name: "tcp", Port: 80, NodePort: 30080}},
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "203.0.113.5"}}}},
	})
	for _, c := range []struct{ damage, want string }{
		{"", ""},
		{"delete table ip T", "connections are not limited"},
		{"delete table ip T; add table ip T", "set limits is missing"},
		{"add table ip T { flags dormant; }", "the table is dormant"},
		{"add chain ip T prerouting { policy drop; }", "chain prerouting has another hook or policy"},
		{"flush chain ip T output; delete chain ip T output; add chain ip T output; add rule ip T output jump limited", "chain output has another hook or policy"},
		{"add chain ip T other { type filter hook input priority 0; policy drop; }", "chain other does not belong there"},
		{"add chain ip T other", "chain other does not belong there"},
		{"add set ip T other { type ipv4_addr; }", "set other does not belong there"},
		{"add element ip T node-addresses { 192.0.2.9 }", "set node-addresses has c0000209"},
		{"add chain ip T other; add rule ip T other drop", "chain other does not belong there"},
		{"flush map ip T limits", "set limits lacks "},
		{"flush set ip T node-addresses", "set node-addresses lacks "},
		{"flush set ip T restricted", "set restricted lacks 203.0.113.5:80/TCP"},
		{"flush set ip T sources", "set sources lacks "},
		{"flush map ip T limited", "set limited lacks 10.96.0.1:80/TCP (default/web:tcp)"},
		{"flush map ip T limited-node-ports", "set limited-node-ports lacks "},
		{"flush chain ip T limited", "chain limited has 0 rules"},
	} {
		t.Run(c.damage, func(t *testing.T) {
			dataplanetest.Reconcile(t, k.Dataplane, s)
			reader := k.open()
			defer reader.Close()
			if c.damage != "" {
				if out, err := k.ns.Run(t.Context(), "nft", strings.ReplaceAll(c.damage, " T", " slipstream-limits")); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			v, err := dataplane.Look(t.Context(), reader, &s.Full().Change)
			if err != nil || !strings.Contains(v.String(), c.want) || c.want == "" && len(v.Differences) > 0 {
				t.Errorf("error %v, no %q in\n%s", err, c.want, v)
			}
			surplus := strings.HasPrefix(c.damage, "add set") || strings.HasPrefix(c.damage, "add element") // only verification finds it
			if v, err := dataplane.Look(t.Context(), reader, &desired.New(desired.Config{}).Full().Change); c.damage == "" && (err != nil || !strings.Contains(v.String(), "no Service has limits")) {
				t.Errorf("without limits: error %v\n%s", err, v)
			}
			if err := k.Check(t.Context()); (err == nil) != (c.damage == "" || surplus) {
				t.Errorf("Check: %v", err)
			}
			dataplanetest.Reconcile(t, k.Dataplane, s)
			if v, err = dataplane.Look(t.Context(), reader, &s.Full().Change); err != nil || len(v.Differences) > 0 {
				t.Errorf("after the repair: error %v\n%s", err, v)
			}
		})
	}
}
