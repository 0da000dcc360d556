// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"
)

// crowd is a street with two Services with session affinity, "web" and "other", and a client
// machine with many addresses.
type crowd struct {
	*street
	t       testing.TB
	clients *Clients
	now     time.Time
}

// many are the addresses of the client machine.
var many = netip.MustParsePrefix("10.128.0.0/9")

const firstClient = 10<<24 | 128<<16 // as a number

// clientAddr returns the address of a client, counted from 0.
func clientAddr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(firstClient+i))))
}

// newCrowd creates a crowd of at most size clients, whose Services have ports of the server as
// backends.
func newCrowd(t testing.TB, size uint32, ports int) *crowd {
	set := schemas[desired.IPv4].affinity
	before := set.Size
	t.Cleanup(func() { set.Size = before })
	set.Size = size
	c := &crowd{t: t, street: newStreet(t, ports), now: time.Now()}
	for i, name := range []string{"web", "other"} {
		c.state.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: corev1.ServiceSpec{
				ClusterIP: webKey(i + 1).Addr().String(), SessionAffinity: corev1.ServiceAffinityClientIP,
				Ports: []corev1.ServicePort{{Name: "tcp", Port: 80}, {Name: "udp", Port: 80, Protocol: corev1.ProtocolUDP}},
			},
		})
		for i := range ports {
			c.setBackend(name, i)
		}
	}
	dataplanetest.Apply(t, c.Dataplane, c.state)
	c.clients = c.Clients()
	if err := c.clients.dial(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.clients.conn.Close() })
	if err := c.Client.AddLocalRange(many); err != nil {
		t.Fatal(err)
	}
	link, err := c.Node.Netlink().LinkByName(c.Client.NodeLink())
	if err == nil {
		err = c.Node.Netlink().RouteAdd(&netlink.Route{
			Dst: &net.IPNet{IP: many.Addr().AsSlice(), Mask: net.CIDRMask(many.Bits(), 32)}, LinkIndex: link.Attrs().Index,
			Gw: net.IPv4(10, 244, 1, 2), Flags: int(netlink.FLAG_ONLINK),
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// setBackend makes a port of the server an endpoint of a Service. No server answers to UDP.
func (c *crowd) setBackend(service string, i int) {
	slice := dataplanetest.Slice(i)
	slice.Name, slice.Labels = sliceName(service, i), map[string]string{discoveryv1.LabelServiceName: service}
	slice.Ports[0].Name = ptr.To("tcp")
	slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: ptr.To("udp"), Port: ptr.To(int32(9)), Protocol: ptr.To(corev1.ProtocolUDP)})
	c.state.SetEndpointSlice(slice)
}

func sliceName(service string, i int) string { return fmt.Sprint(service, "-of-", i) }

// connect returns the port that a client reaches at a Service.
func (c *crowd) connect(service, client int) uint16 {
	c.t.Helper()
	from := netip.AddrPortFrom(clientAddr(client), 0)
	reply, err := c.Client.Connect(lab.TCP, webKey(service).AddrPort, lab.Source(from), lab.Timeout(10*time.Second))
	if err != nil {
		c.t.Fatal(err)
	}
	return reply.Local.Port()
}

// stays fails the test unless a client reaches the port again.
func (c *crowd) stays(service, client int, port uint16) {
	c.t.Helper()
	for range 8 {
		if got := c.connect(service, client); got != port {
			c.t.Fatalf("client %d of Service %d was sent to %d and to %d", client, service, port, got)
		}
	}
}

// recorded returns the recorded clients from first up to (without) end.
func (c *crowd) recorded(first, end int) (clients []int) {
	c.t.Helper()
	s := &schemas[desired.IPv4]
	err := c.conn.Elements(s.table, s.affinity.Name, func(e nfnl.Element) {
		i := int(binary.BigEndian.Uint32(e.Key[8:])) - firstClient
		if first <= i && i < end {
			clients = append(clients, i)
		}
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return clients
}

// update counts and limits clients, as the proxy does, and returns the Services that have become
// full.
func (c *crowd) update() (full []types.NamespacedName) {
	c.t.Helper()
	c.now = c.now.Add(time.Hour)
	full, err := c.clients.update(int(desired.IPv4), c.now)
	if err != nil {
		c.t.Fatal(err)
	}
	return full
}

// counted compares the numbers that the proxy knows.
func (c *crowd) counted(want ClientCount, unrecorded uint64) {
	c.t.Helper()
	if got := c.clients.Count()[desired.IPv4]; got != want {
		c.t.Errorf("%+v; want %+v", got, want)
	}
	if n, err := c.Counts(); err != nil || n.Unrecorded[desired.IPv4] != unrecorded {
		c.t.Errorf("%d unrecorded connections, %v; want %d", n.Unrecorded[desired.IPv4], err, unrecorded)
	}
}

// TestTooManyClients has more clients with session affinity of one Service than are recorded.
// Those that are keep their affinity, also when all backends are replaced. Clients of another
// Service are recorded.
func TestTooManyClients(t *testing.T) {
	const size, once, most, end = 160, 160 / atOnce, 160 / (share + 1), 80
	c := newCrowd(t, size, 8)
	for i := 4; i < 8; i++ {
		c.state.DeleteEndpointSlice("default", sliceName("web", i))
	}
	dataplanetest.Apply(t, c.Dataplane, c.state)
	first := c.connect(1, 0)
	for i := 1; i < end/2; i++ {
		c.connect(1, i)
	}
	if n := len(c.recorded(0, end)); n != once {
		t.Errorf("%d recorded clients before they were counted; want %d", n, once)
	}
	if full := c.update(); full != nil {
		t.Errorf("%v are full", full)
	}
	c.counted(ClientCount{Recorded: once, Most: size}, end/2-once)
	for i := end / 2; i < end; i++ {
		c.connect(1, i)
	}
	if full := c.update(); !slices.Equal(full, []types.NamespacedName{{Namespace: "default", Name: "web"}}) {
		t.Errorf("%v are full", full)
	}
	c.counted(ClientCount{Recorded: most, Most: size, Full: 1}, end-most)
	c.stays(1, 0, first)
	for i := end; i < end+once; i++ {
		c.stays(2, i, c.connect(2, i))
	}

	for i := range 4 {
		c.state.DeleteEndpointSlice("default", sliceName("web", i))
		c.setBackend("web", 4+i)
	}
	dataplanetest.Apply(t, c.Dataplane, c.state)
	for _, i := range c.recorded(0, end) {
		c.stays(1, i, c.connect(1, i))
	}
	if full := c.update(); full != nil {
		t.Errorf("%v are full again", full)
	}
	c.counted(ClientCount{Recorded: most + once, Most: size, Full: 1}, end-most)
}

// TestRun lets clients be counted in the background, until a Service is full.
func TestRun(t *testing.T) {
	const size, most = 160, 160 / (share + 1)
	c := newCrowd(t, size, 4)
	c.clients.conn.Close() // Run opens its own
	c.clients.period = 10 * time.Millisecond
	log := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	ctx, stop := context.WithTimeout(klog.NewContext(t.Context(), log), time.Minute)
	full, ended := make(chan string, 1), make(chan bool)
	go func() {
		defer close(ended)
		c.clients.Run(ctx, func(s types.NamespacedName, f desired.Family) {
			select {
			case full <- fmt.Sprint(s, " ", f):
			default: // again, as one client more or less is at the boundary
			}
		})
	}()
	client := 0
	for got := ""; got == ""; {
		c.connect(1, client)
		client++
		select {
		case got = <-full:
			if got != "default/web IPv4" {
				t.Errorf("%s is full", got)
			}
		case <-ctx.Done():
			t.Fatalf("the Service is not full with %d clients: %+v", client, c.clients.Count()[desired.IPv4])
		default:
		}
	}
	if n := len(c.recorded(0, client)); n < most*9/10 || n > most+10 {
		t.Errorf("%d clients are recorded, want about %d", n, most)
	}
	before := c.conn.Dumps
	if err := c.Check(t.Context()); err != nil || c.conn.Dumps != before {
		t.Errorf("Check: %v, and %d dumps; want none", err, c.conn.Dumps-before)
	}
	stop()
	<-ended
	for _, entry := range log.GetSink().(ktesting.Underlier).GetBuffer().Data() {
		t.Error(entry.Message, entry.Err)
	}
}

// flood sends a packet from each of n further client addresses to a Service.
func (c *crowd) flood(service, first, n int) error {
	return c.Client.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW) // the packet has its IP header
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		to := &unix.SockaddrInet4{Addr: webKey(service).Addr().As4()}
		const ipHeader, udpHeader = 20, 8
		packet := make([]byte, ipHeader+udpHeader)
		packet[0], packet[8], packet[9] = 4<<4|ipHeader/4, 64, unix.IPPROTO_UDP
		copy(packet[16:], to.Addr[:])
		binary.BigEndian.PutUint16(packet[ipHeader:], 40000)
		binary.BigEndian.PutUint16(packet[ipHeader+2:], 80)
		binary.BigEndian.PutUint16(packet[ipHeader+4:], udpHeader)
		for i := range n {
			addr := clientAddr(first + i).As4()
			copy(packet[12:], addr[:])
			if err := unix.Sendto(fd, packet, 0, to); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestFlood sends packets of more clients to one Service than are recorded of all, as fast as
// it can, before and after they are counted. Another Service's new clients are recorded.
func TestFlood(t *testing.T) {
	const size, clients, others, rounds = 1024, 3 * 1024, 20, 3
	c := newCrowd(t, size, 4)
	for round := range rounds {
		flood := make(chan error)
		go func() { flood <- c.flood(1, round*clients, clients) }()
		next := rounds*clients + 2*round*others
		c.newClients(next, others)
		if err := <-flood; err != nil {
			t.Fatal(err)
		}
		c.newClients(next+others, others)
		c.update()
		if n := len(c.recorded(0, rounds*clients)); n < size/atOnce || n > size/share {
			t.Errorf("round %d: %d recorded clients of one Service", round, n)
		}
	}
	if n := c.clients.Count()[desired.IPv4]; n.Full != 1 {
		t.Errorf("%d full Services", n.Full)
	}
}

// TestFloodOfNamespace does so to many Services of another namespace. They get half of the places.
func TestFloodOfNamespace(t *testing.T) {
	const size, services, clients, others, rounds = 1024, 20, 100, 10, 3
	c := newCrowd(t, size, 4)
	for i := range services {
		name := fmt.Sprint("s", i)
		c.state.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: name},
			Spec: corev1.ServiceSpec{
				ClusterIP: webKey(i + 10).Addr().String(), SessionAffinity: corev1.ServiceAffinityClientIP,
				Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolUDP}},
			},
		})
		c.state.SetEndpointSlice(&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "tenant", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{c.Server.Addr(false).String()}}},
			Ports:       []discoveryv1.EndpointPort{{Port: ptr.To[int32](9), Protocol: ptr.To(corev1.ProtocolUDP)}},
		})
	}
	dataplanetest.Apply(t, c.Dataplane, c.state)
	next := rounds * services * clients
	for round := range rounds {
		for i := range services {
			if err := c.flood(i+10, (round*services+i)*clients, clients); err != nil {
				t.Fatal(err)
			}
		}
		n := len(c.recorded(0, rounds*services*clients))
		if most := size/namespaceAtOnce + round*size/2; n < size/namespaceAtOnce-10 || n > min(most, size/2)+10 {
			t.Errorf("round %d: %d recorded clients of a namespace", round, n)
		}
		c.newClients(next, others)
		next += others
		c.update()
	}
}

// newClients connects clients to the second Service, and fails the test unless they stay with
// their backends.
func (c *crowd) newClients(first, n int) {
	c.t.Helper()
	for i := range n {
		c.stays(2, first+i, c.connect(2, first+i))
	}
}

// TestLimits fills the map with clients of several Services, and counts them now and then.
func TestLimits(t *testing.T) {
	s := &schemas[desired.IPv4]
	size := int(s.affinity.Size)
	for n := 1; n <= 16; n++ { // of different namespaces
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			clients, total, limits := map[uint32]int{}, 0, map[uint32]uint32{}
			var full map[uint32]bool
			for range 100 {
				for i := range uint32(n) {
					id := i<<16 | 1
					more, limited := limits[id]
					if !limited {
						more = s.newAtOnce()
					}
					clients[id] += int(more)
					total += int(more)
				}
				limits, full = s.limits(clients, total)
			}
			if len(full) != n {
				t.Errorf("%d Services are full", len(full))
			}
			if free := size - total; n < 15 && free < size/12 {
				t.Errorf("%d of %d places are free", free, size)
			}
			if most := size / (n + share); n == 1 && clients[1] > most+100 || n < 12 && clients[1] < most {
				t.Errorf("a Service has %d clients of %d", clients[1], most)
			}
		})
	}
}

// TestNamespaceLimits fills the map with clients of 20 Services of one namespace, and counts them now and then. A
// Service of another namespace may have new clients.
func TestNamespaceLimits(t *testing.T) {
	s := &schemas[desired.IPv4]
	size, clients, limits := int(s.affinity.Size), map[uint32]int{}, map[uint32]uint32{}
	const namespace, other = 7 << 16, 8<<16 | 1
	total, full := 0, map[uint32]bool{}
	for range 100 {
		left, limited := limits[namespace]
		if !limited {
			left = s.affinity.Size / namespaceAtOnce
		}
		for i := range uint32(20) {
			id := namespace | (i + 1)
			more, limited := limits[id]
			if !limited {
				more = s.newAtOnce()
			}
			more = min(more, left)
			left -= more
			clients[id] += int(more)
			total += int(more)
		}
		if limits, full = s.limits(clients, total); total > size/2+1000 {
			t.Fatalf("a namespace has %d of %d places", total, size)
		}
	}
	if len(full) == 0 || full[namespace] {
		t.Errorf("%d full Services: %v", len(full), full)
	}
	clients[other], total = size/16, total+size/16
	if limits, full = s.limits(clients, total); full[other] || limits[other] < uint32(size)/100 {
		t.Errorf("a Service of another namespace may have %d new clients", limits[other])
	}
}

// BenchmarkFlood has a million clients of one Service. One round is enough.
func BenchmarkFlood(b *testing.B) {
	const clients, rounds = 200_000, 5
	c := newCrowd(b, affinities, 4)
	for b.Loop() {
		for round := range rounds {
			start := time.Now()
			if err := c.flood(1, round*clients, clients); err != nil {
				b.Fatal(err)
			}
			sent := time.Now()
			c.update()
			b.Logf("%v for %d packets, %v to count: %+v", sent.Sub(start), clients, time.Since(sent), c.clients.Count()[desired.IPv4])
			c.newClients(rounds*clients+100*round, 100)
		}
	}
}

// TestAffinityIDs: two ports share neither clients nor their limit because one property is equal.
func TestAffinityIDs(t *testing.T) {
	port := desired.ServicePort{Namespace: "default", Name: "web", Port: "http"}
	service, id := affinityID(port, desired.TCP, false)
	for _, c := range []struct {
		what     string
		port     desired.ServicePort
		protocol desired.Protocol
		same     bool // Service
	}{
		{"protocol", port, desired.UDP, true},
		{"port", desired.ServicePort{Namespace: "default", Name: "web", Port: "https"}, desired.TCP, true},
		{"name", desired.ServicePort{Namespace: "default", Name: "other", Port: "http"}, desired.TCP, false},
		{"namespace", desired.ServicePort{Namespace: "other", Name: "web", Port: "http"}, desired.TCP, false},
		{"separation", desired.ServicePort{Namespace: "default", Name: "webhttp", Port: ""}, desired.TCP, false},
	} {
		if s, p := affinityID(c.port, c.protocol, false); p == id || (s == service) != c.same {
			t.Errorf("with another %s: %x and %x; with the first one %x and %x", c.what, s, p, service, id)
		}
	}
}
