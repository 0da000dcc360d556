// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/ebpf"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/flows"
	"github.com/slipstream-proxy/slipstream/internal/node/conntrack"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// world is a node with a client and two servers. The nftables dataplane and a Controller
// program the same changes.
type world struct {
	*Controller
	t      *testing.T
	lab    *lab.Lab
	node   *lab.Node
	links  *netlink.Handle
	client *lab.Pod
	web    [2]*lab.Pod

	proxy *nftables.Dataplane
	state *desired.State
	clean *conntrack.Conn
	flows *flows.Conn
	stop  func() // ends Run
}

// The Services of a world: web and other, both protocols, both families.
const (
	webPort   = 80
	targets   = 8080
	threshold = 20
)

func frontend(p desired.Protocol, service int, ipv6 bool) desired.FrontendKey {
	a := netip.MustParseAddr(fmt.Sprintf("10.96.0.%d", service))
	if ipv6 {
		a = netip.MustParseAddr(fmt.Sprintf("fd00:96::%d", service))
	}
	return desired.FrontendKey{AddrPort: netip.AddrPortFrom(a, webPort), Protocol: p}
}

// Numbers of the Services, in their addresses.
const (
	web   = 10
	other = 20
)

var serviceName = map[int]string{web: "web", other: "other"}

// needs is what the engines need.
var needs = map[Engine]kerneltest.Feature{Flowtable: kerneltest.Flowtable, EBPF: kerneltest.BPFIngress}

// engines runs a test for each engine that the kernel has. A test that needs more is not run for
// the others: the runner has no kernel with BPF and, for example, VLANs, but Debian's has them.
func engines(t *testing.T, test func(*testing.T, Engine), more ...kerneltest.Feature) {
	kerneltest.Require(t, more...)
	for engine, feature := range needs {
		if err := feature.Probe(); err != nil && len(more) > 0 {
			t.Logf("not run for the engine %s: %v", engine, err)
			continue
		}
		t.Run(string(engine), func(t *testing.T) {
			kerneltest.Require(t, feature)
			test(t, engine)
		})
	}
}

// newWorld makes a world in which the first server serves both Services.
func newWorld(t *testing.T, c Config) *world {
	w := newQuietWorld(t, cmp.Or(c.Engine, Flowtable))
	w.start(c)
	return w
}

// newQuietWorld makes one without a Controller.
func newQuietWorld(t *testing.T, engine Engine) *world {
	kerneltest.Require(t, needs[engine])
	w := &world{t: t, state: desired.New(desired.Config{NodeName: "n1"})}
	var err error
	w.lab, err = lab.New()
	w.check(err)
	t.Cleanup(func() { w.lab.Close() })
	w.node = w.newNode("n1", 11, 1)
	w.links, err = netlink.NewHandleAt(netns.NsHandle(w.node.FD()), unix.NETLINK_ROUTE)
	w.check(err)
	t.Cleanup(w.links.Close)
	w.unreachable(w.node)
	w.client = w.newPod(w.node, "client", 2)
	for i := range w.web {
		w.web[i] = w.newPod(w.node, fmt.Sprintf("web-%d", i+1), 11+i)
		w.serve(w.web[i])
	}
	fd := w.node.FD()
	w.proxy, err = nftables.New(dataplane.Config{NetNS: fd, MasqueradeBit: dataplane.DefaultMasqueradeBit})
	w.check(err)
	t.Cleanup(func() { w.proxy.Close() })
	w.clean, err = conntrack.New(fd)
	w.check(err)
	t.Cleanup(func() { w.clean.Close() })
	w.flows, err = flows.New(fd)
	w.check(err)
	t.Cleanup(func() { w.flows.Close() })
	for s := range serviceName {
		w.addService(s)
		w.endpoints(s, w.web[0])
	}
	_, err = w.proxy.Reconcile(w.t.Context(), &w.state.Full().Change)
	w.check(err)
	return w
}

// start starts a Controller with the content of the dataplane.
func (w *world) start(c Config) {
	w.t.Helper()
	w.startWith(c, func(*Controller) {})
}

func (w *world) startWith(c Config, prepare func(*Controller)) {
	w.t.Helper()
	c.NetNS = w.node.FD()
	c.lease = cmp.Or(c.lease, time.Hour) // tests stop a Controller and look at what it leaves, on busy machines
	c.excludePause = cmp.Or(c.excludePause, 1)
	var err error
	w.Controller, err = New(c)
	w.check(err)
	prepare(w.Controller)
	w.check2(w.Controller.Reconcile(w.t.Context(), &w.state.Full().Change))
	w.run()
	ctl := w.Controller
	w.t.Cleanup(func() {
		w.stop()
		_ = ctl.Close()
		_ = ebpf.Remove(c.NetNS) // pinned objects would remain
	})
}

// run starts Run.
func (w *world) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func(c *Controller) { done <- c.Run(ctx) }(w.Controller)
	stopped := false
	w.stop = func() {
		w.t.Helper()
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			w.check(err)
		case <-time.After(time.Minute):
			w.t.Fatal("Run goes on after its context has ended")
		}
	}
}

func (w *world) check(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) check2(_ any, err error) {
	w.t.Helper()
	w.check(err)
}

func (w *world) newNode(name string, host, pods int) *lab.Node {
	w.t.Helper()
	n, err := w.lab.Node(name, lab.NodeOptions{
		Addresses: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("192.168.100.%d/24", host)), netip.MustParsePrefix(fmt.Sprintf("fd00:100::%d/64", host))},
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", pods)), netip.MustParsePrefix(fmt.Sprintf("fd00:244:%d::/64", pods))},
	})
	w.check(err)
	return n
}

// unreachable makes a node drop packets to a pod that does not exist. Otherwise the default
// route would take a repeated packet to the gateway, and the connection would be offloaded
// again, which is correct but not the subject of the tests.
func (w *world) unreachable(n *lab.Node) {
	w.t.Helper()
	for _, cidr := range n.PodCIDRs() {
		w.check2(n.Run(context.Background(), "ip", "route", "add", "unreachable", cidr.String(), "metric", "4096"))
	}
}

func (w *world) newPod(n *lab.Node, name string, host int) *lab.Pod {
	w.t.Helper()
	cidrs := n.PodCIDRs()
	v4, v6 := cidrs[0].Addr().As4(), cidrs[1].Addr().As16()
	v4[3], v6[15] = byte(host), byte(host)
	p, err := n.Pod(name, netip.AddrFrom4(v4), netip.AddrFrom16(v6))
	w.check(err)
	return p
}

func (w *world) serve(p *lab.Pod) {
	w.t.Helper()
	for _, protocol := range []lab.Protocol{lab.TCP, lab.UDP} {
		w.check2(p.Serve(protocol, netip.AddrPortFrom(netip.Addr{}, targets)))
	}
}

// addService adds one of the Services to the state.
func (w *world) addService(service int) { w.annotate(service, "") }

// annotate adds a Service that opts out of the fast path if the value is "off".
func (w *world) annotate(service int, fastPath string) {
	w.state.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: serviceName[service], Annotations: map[string]string{desired.AnnotationFastPath: fastPath}},
		Spec: corev1.ServiceSpec{
			ClusterIPs: []string{frontend(desired.TCP, service, false).Addr().String(), frontend(desired.TCP, service, true).Addr().String()},
			Ports: []corev1.ServicePort{
				{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: webPort},
				{Name: "udp", Protocol: corev1.ProtocolUDP, Port: webPort},
			},
		},
	})
}

// annotatePod adds a pod to the state, which opts out of the fast path if the value is "off".
func (w *world) annotatePod(p *lab.Pod, fastPath string) {
	w.state.SetPod(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: p.Name(), Annotations: map[string]string{desired.AnnotationFastPath: fastPath}},
		Status:     corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: p.Addr(false).String()}, {IP: p.Addr(true).String()}}},
	})
}

// annotateNamespace adds the Namespace of all Services and pods to the state.
func (w *world) annotateNamespace(fastPath string) {
	w.state.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Annotations: map[string]string{desired.AnnotationFastPath: fastPath}}})
}

// endpoints makes pods the endpoints of a Service, in the state.
func (w *world) endpoints(service int, pods ...*lab.Pod) {
	for _, ipv6 := range []bool{false, true} {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: fmt.Sprintf("%s-%t", serviceName[service], ipv6),
				Labels: map[string]string{discoveryv1.LabelServiceName: serviceName[service]},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{
				{Name: ptr.To("tcp"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(int32(targets))},
				{Name: ptr.To("udp"), Protocol: ptr.To(corev1.ProtocolUDP), Port: ptr.To(int32(targets))},
			},
		}
		if ipv6 {
			slice.AddressType = discoveryv1.AddressTypeIPv6
		}
		for _, p := range pods {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{p.Addr(ipv6).String()}})
		}
		w.state.SetEndpointSlice(slice)
	}
}

// apply programs changes: the dataplane, the fast path, conntrack.
func (w *world) apply() {
	w.t.Helper()
	change := w.state.Change()
	w.check2(w.proxy.Apply(w.t.Context(), &change.Change))
	w.check2(w.Controller.Apply(w.t.Context(), &change.Change))
	w.check2(w.clean.Clean(w.t.Context(), change.Flows))
}

// stream has the client talk to a Service, a message every 2 ms.
func (w *world) stream(p lab.Protocol, service int, ipv6 bool) *stream {
	w.t.Helper()
	return w.streamFrom(w.client, p, service, ipv6, interval)
}

func (w *world) streamFrom(from *lab.Pod, p lab.Protocol, service int, ipv6 bool, interval time.Duration) *stream {
	w.t.Helper()
	protocol := map[lab.Protocol]desired.Protocol{lab.TCP: desired.TCP, lab.UDP: desired.UDP}[p]
	return w.streamTo(from, p, frontend(protocol, service, ipv6), interval)
}

func (w *world) streamTo(from *lab.Pod, p lab.Protocol, to desired.FrontendKey, interval time.Duration) *stream {
	w.t.Helper()
	s, err := from.Stream(p, to.AddrPort, interval, lab.Timeout(2*time.Second))
	w.check(err)
	w.t.Cleanup(func() { s.Close() })
	return &stream{s, w, to}
}

// stream is a client that goes on, and how to find its connection.
type stream struct {
	*lab.Stream
	w  *world
	to desired.FrontendKey
}

// flow is the stream's connection, if it is offloaded.
func (s *stream) flow() (flow flows.Flow, offloaded bool) {
	s.w.t.Helper()
	source := s.Stats().Source
	s.w.check(s.w.flows.Each(s.w.t.Context(), func(f *flows.Flow) {
		if f.Source == source && f.Frontend() == s.to {
			flow, offloaded = *f, true
		}
	}))
	return flow, offloaded
}

// until waits for something, two minutes at the most.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("waited for: %s\n%s", what, w.sh("nft list table inet "+TableName+"; cat /proc/net/nf_conntrack; conntrack -L"))
		}
	}
}

// fast waits until streams are offloaded.
func (w *world) fast(all ...*stream) {
	w.t.Helper()
	for _, s := range all {
		w.until(fmt.Sprintf("%v is offloaded", s.to), func() bool { _, is := s.flow(); return is })
	}
}

// goesOn waits for ten more answers, and fails if the stream has ended.
func (w *world) goesOn(all ...*stream) {
	w.t.Helper()
	for _, s := range all {
		before := s.Stats().Received
		w.until(fmt.Sprintf("%v goes on: %+v", s.to, s.Stats()), func() bool { return s.Stats().Received >= before+10 })
	}
}

// unharmed fails the test if any message was lost or a connection broken or moved.
func (w *world) unharmed(all ...*stream) {
	w.t.Helper()
	for _, s := range all {
		if n := s.Stats(); n.Failed > 0 || n.Ended || n.Moved > 0 {
			w.t.Errorf("%v was harmed: %+v", s.to, n)
		}
	}
}

// sh runs a shell command on the node.
func (w *world) sh(command string) string {
	w.t.Helper()
	out, err := w.node.Run(context.Background(), "sh", "-c", command)
	if err != nil {
		return strings.TrimSpace(fmt.Sprintf("%s\n%v", out, err))
	}
	return string(out)
}

// nft runs the command nft on the node.
func (w *world) nft(args string) string {
	w.t.Helper()
	out, err := w.node.Run(context.Background(), "nft", args)
	w.check(err)
	return string(out)
}

// watchSlowPath counts the packets that pass the hook forward on the way to a pod,
// from now on.
func (w *world) watchSlowPath() {
	w.t.Helper()
	kerneltest.Require(w.t, kerneltest.NFTBinary)
	w.nft("add table inet watch; delete table inet watch; add table inet watch; add chain inet watch forward { type filter hook forward priority 2000; };" +
		"add rule inet watch forward ct direction original counter; add rule inet watch forward ct direction reply counter")
}

// slowPackets returns the counted packets of both directions.
func (w *world) slowPackets() (original, reply int) {
	w.t.Helper()
	var n [2]int
	at := 0
	for line := range strings.Lines(w.sh("nft list chain inet watch forward")) {
		if _, rest, ok := strings.Cut(line, "counter packets "); ok {
			w.check2(fmt.Sscan(rest, &n[at]))
			at++
		}
	}
	return n[0], n[1]
}

const interval = 2 * time.Millisecond

func portOf(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, targets) }

// each runs a test for both protocols and families.
func each(t *testing.T, test func(t *testing.T, p lab.Protocol, ipv6 bool)) {
	for _, p := range []lab.Protocol{lab.TCP, lab.UDP} {
		for _, ipv6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/ipv6=%t", p, ipv6), func(t *testing.T) { test(t, p, ipv6) })
		}
	}
}

// entry reads a stream's conntrack entry by the command conntrack, as a second
// opinion: how many packets it has counted, and whether it is offloaded.
func (w *world) entry(s *stream) (packets int, offloaded bool) {
	w.t.Helper()
	return entryOf(w.t, w.entryLine(s))
}

// entryLine is the entry as the command conntrack shows it.
func (w *world) entryLine(s *stream) string {
	w.t.Helper()
	source := s.Stats().Source
	family := "ipv4"
	if source.Addr().Is6() {
		family = "ipv6"
	}
	return w.sh(fmt.Sprintf("conntrack -L -f %s -p %s --sport %d -d %s 2>/dev/null", family, strings.ToLower(s.to.Protocol.String()), source.Port(), s.to.Addr()))
}

// timeout is for how many seconds the stream's entry will stay, which is known of
// those on the slow path.
func (w *world) timeout(s *stream) (seconds int) {
	w.t.Helper()
	line := w.entryLine(s)
	fields := strings.Fields(line)
	if len(fields) < 3 {
		w.t.Fatalf("entry %q", line)
	}
	if _, err := fmt.Sscan(fields[2], &seconds); err != nil {
		w.t.Fatalf("entry %q: %v", line, err)
	}
	return seconds
}

// expire sets the timeout of the stream's entry, in seconds.
func (w *world) expire(s *stream, seconds int) {
	w.t.Helper()
	said := w.sh(fmt.Sprintf("conntrack -U -p %s --sport %d -d %s -t %d 2>&1", strings.ToLower(s.to.Protocol.String()), s.Stats().Source.Port(), s.to.Addr(), seconds))
	if !strings.Contains(said, "1 flow entries have been updated") {
		w.t.Fatal(said)
	}
}
