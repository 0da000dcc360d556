// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
	"unique"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/iptables"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/ipvs"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/node/conntrack"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// TestDeparted deletes Nodes and removes endpoints in all orders.
func TestDeparted(t *testing.T) {
	for _, test := range []struct {
		name   string
		events []string // "slice: endpoint@node ...", "+node", "-node"
		stale  string
	}{
		{"Node first", []string{"+a", "s: 1@a 2@b", "-a", "s: 2@b"}, "10.0.0.1:80"},
		{"endpoint first", []string{"+a", "s: 1@a 2@b", "s: 2@b", "-a"}, "10.0.0.1:80"},
		{"the whole slice", []string{"s: 1@a 2@a", "-a", "s:"}, "10.0.0.1:80 10.0.0.2:80"},
		{"the Node exists", []string{"+a", "s: 1@a", "s:"}, ""},
		{"the endpoint is listed", []string{"+a", "s: 1@a", "-a"}, ""},
		{"another Node", []string{"s: 1@a", "s:", "-b"}, ""},
		{"the Node is back", []string{"s: 1@a", "-a", "+a", "s:"}, ""},
		{"in two slices", []string{"s: 1@a", "r: 1@a", "-a", "s:"}, ""},
		{"in no slice of two", []string{"s: 1@a", "r: 1@a", "-a", "s:", "r:"}, "10.0.0.1:80"},
		{"moves between slices", []string{"s: 1@a", "-a", "r: 1@a", "s:"}, ""},
		{"the address is used again", []string{"s: 1@a", "s:", "s: 1@b", "-a"}, ""},
		{"and leaves again", []string{"s: 1@a", "s:", "s: 1@b", "s:", "-a"}, ""},
		{"and leaves with its Node", []string{"s: 1@a", "s:", "s: 1@b", "s:", "-a", "-b"}, "10.0.0.1:80"},
		{"is back before it is reported", []string{"s: 1@a", "-a", "s:", "r: 1@b"}, ""},
		{"without a Node", []string{"s: 1@", "s:", "-"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := newDeparted()
			for _, e := range append([]string{"+a", "+b", "+"}, test.events...) {
				d.play(t, e)
			}
			got := ""
			for _, f := range d.drain(klog.Background()) {
				slices.SortFunc(f.Backends, desired.Backend.Compare)
				for _, b := range f.Backends {
					got += " " + b.String()
				}
			}
			want := ""
			for _, e := range strings.Fields(test.stale) { // the address too, for ranges of ports
				want += " " + strings.TrimSuffix(e, ":80") + " " + e
			}
			if got != want || d.drain(klog.Background()) != nil {
				t.Errorf("%q, want %q", got, want)
			}
			for _, slice := range []string{"s:", "r:"} {
				d.play(t, slice)
			}
			for _, node := range []string{"-a", "-b", "-"} {
				d.play(t, node)
			}
			d.drain(klog.Background())
			if n := len(d.slices) + len(d.listed) + len(d.onNode) + len(d.left) + len(d.last) + len(d.nodes) + len(d.deleted); n > 0 {
				t.Errorf("it retains %+v", d)
			}
		})
	}
}

// play applies an event of TestDeparted.
func (d *departed) play(t *testing.T, event string) {
	t.Helper()
	name := event[:1]
	switch {
	case name == "+":
		d.setNode(event[1:])
		return
	case name == "-":
		d.deleteNode(event[1:])
		return
	}
	s := &discoveryv1.EndpointSlice{Ports: []discoveryv1.EndpointPort{
		{Port: ptr.To[int32](80)}, {Port: ptr.To[int32](53), Protocol: ptr.To(corev1.ProtocolUDP)}, {},
	}}
	for _, endpoint := range strings.Fields(event[2:]) {
		e := discoveryv1.Endpoint{Addresses: []string{"10.0.0." + endpoint[:1]}}
		if node := endpoint[2:]; node != "" {
			e.NodeName = &node
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	d.setSlice(types.NamespacedName{Name: name}, placedIn(s))
}

// TestDepartedIsBounded adds and removes endpoints of one Node many times.
func TestDepartedIsBounded(t *testing.T) {
	d := newDeparted()
	d.setNode("a")
	for i := range 10 * mostLeft {
		e := placed{desired.NewBackend(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80)), unique.Make("a")}
		d.setSlice(types.NamespacedName{Name: "s"}, []placed{e})
		d.setSlice(types.NamespacedName{Name: "s"}, nil)
	}
	if len(d.left) != mostLeft || len(d.last[unique.Make("a")]) != mostLeft {
		t.Errorf("%d endpoints, %d in the list", len(d.left), len(d.last[unique.Make("a")]))
	}
	d.deleteNode("a")
	if n := len(d.drain(klog.Background())[0].Backends); n != mostLeft || len(d.left) != 0 {
		t.Errorf("%d are stale, %d stay", n, len(d.left))
	}
}

// TestDepartedFromNoNode adds and removes endpoints on Nodes that do not exist, as whoever may write
// EndpointSlices can: nothing is kept of them.
func TestDepartedFromNoNode(t *testing.T) {
	d := newDeparted()
	d.setNode("a")
	for i := range 100 {
		e := placed{desired.NewBackend(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80)), unique.Make(fmt.Sprint("invented-", i))}
		d.setSlice(types.NamespacedName{Name: "s"}, []placed{e})
		d.setSlice(types.NamespacedName{Name: "s"}, nil)
	}
	if n := len(d.left) + len(d.last); n > 0 {
		t.Errorf("it retains %d entries of Nodes that do not exist", n)
	}
}

// TestResetDeletedNodes silences the backend of an established connection, like a machine that
// has lost its power. When its endpoint was removed and its Node is deleted, the client sees a
// reset, with and without another endpoint; before, and without the option, it does not.
func TestResetDeletedNodes(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables, kerneltest.NFTBinary)
	for _, mode := range []string{"nftables", "iptables", "ipvs"} {
		for _, others := range []int{0, 1} {
			for _, on := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/others=%d/%t", mode, others, on), func(t *testing.T) { resetDeletedNodes(t, mode, others, on, false) })
			}
		}
	}
	t.Run("range", func(t *testing.T) { resetDeletedNodes(t, "nftables", 0, true, true) })
}

// resetDeletedNodes connects to a port of the Service, or through a range to a port of the endpoint that no slice has.
func resetDeletedNodes(t *testing.T, mode string, others int, on, ranged bool) {
	s := dataplanetest.NewStreet(t, 2)
	c := dataplane.Config{NetNS: s.Node.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit}
	var kernel dataplane.Dataplane
	var err error
	switch mode {
	case "iptables":
		kerneltest.Require(t, kerneltest.IPTablesNFT, kerneltest.IPSet)
		kernel, err = iptables.New(t.Context(), c, iptables.Options{Variant: iptables.NFT})
	case "ipvs":
		kerneltest.Require(t, kerneltest.IPVS)
		kernel, err = ipvs.New(c, ipvs.Options{})
	default:
		kernel, err = nftables.New(c)
	}
	check(t, err)
	defer kernel.Close()
	conn, err := conntrack.New(s.Node.FD())
	check(t, err)
	defer conn.Close()
	flows := conntrack.NewCleaner(t.Context(), conn.Clean, func(_ conntrack.Stats, err error) { check(t, err) })
	defer flows.Close()
	l := &loop{t: t, events: make(script), metrics: metrics.New(), done: make(chan error, 1)}
	l.proxy = New(l.events, desired.New(desired.Config{NodeName: "n1", IPVS: mode == "ipvs"}), kernel, l.metrics, Options{
		CheckPeriod: time.Hour, StaleFlows: flows, NodeName: "n1", ResetDeletedNodes: on,
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { l.done <- l.proxy.Run(ctx) }()
	defer func() { cancel(); check(t, <-l.done) }()

	// The client repeats a packet after up to some seconds.
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("waited in vain: %s", what)
			}
		}
	}
	dead := dataplanetest.Slice(0)
	dead.Endpoints[0].NodeName = ptr.To("n2")
	service, web := dataplanetest.Service(corev1.ServiceSpec{}), netip.MustParseAddrPort("10.96.0.1:80")
	if ranged {
		web = netip.AddrPortFrom(web.Addr(), uint16(*dead.Ports[0].Port))
		service.Annotations = map[string]string{desired.AnnotationPortRanges: fmt.Sprintf("tcp/%d-%d", web.Port(), web.Port())}
		dead.Ports[0].Port = ptr.To(int32(1))
	}
	n2 := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}
	set := func(o source.Object) source.Event { return source.Event{Type: source.Set, Object: o} }
	l.events <- []source.Event{set(n2), set(service), set(dead), synced}
	until("the Service is served", func() bool { _, err := s.Client.Connect(lab.TCP, web); return err == nil })
	var stream *lab.Stream
	until("a connection", func() bool { // the timeout is short, to find out soon that echoes are missing
		stream, err = s.Client.Stream(lab.TCP, web, 5*time.Millisecond, lab.Timeout(100*time.Millisecond))
		return err == nil
	})
	defer stream.Close()
	until("echoes", func() bool { return stream.Stats().Received > 3 })

	// What IPVS sends does not pass hook forward.
	drop := fmt.Sprintf("add table ip dead; add chain ip dead post { type filter hook postrouting priority 0; }; "+
		"add rule ip dead post ip daddr 10.244.1.3 tcp dport %d drop", dataplanetest.FirstPort)
	if out, err := s.Node.Run(t.Context(), "nft", drop); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	until("no echo", func() bool { return stream.Stats().Failed > 1 })
	events := []source.Event{{Type: source.Delete, Object: dead}}
	for i := range others {
		events = append(events, set(dataplanetest.Slice(1+i)))
	}
	l.events <- events
	hangs := func(why string) {
		t.Helper()
		before := stream.Stats().Failed
		until("more messages without an echo", func() bool { return stream.Stats().Ended || stream.Stats().Failed > before+2 })
		if s := stream.Stats(); s.Ended {
			t.Errorf("%s, the connection ended: %v", why, s.Last)
		}
	}
	hangs("although the Node exists")
	l.events <- []source.Event{{Type: source.Delete, Object: n2}}
	if !on {
		hangs("although the option is off")
		return
	}
	until("the connection is reset", func() bool { return stream.Stats().Ended })
	if s := stream.Stats(); !errors.Is(s.Last, unix.ECONNRESET) {
		t.Errorf("the connection ended by %v", s.Last)
	}
}
