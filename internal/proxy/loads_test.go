// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/node/conntrack"
	"github.com/slipstream-proxy/slipstream/internal/node/load"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
)

// crossing is a street with a proxy.
type crossing struct {
	*dataplanetest.Street
	events script
	told   noted
	proxy  *Proxy
}

var web = netip.MustParseAddrPort("10.96.0.1:80")

// newCrossing serves a number of ports, and starts a proxy with the first one and a Service.
func newCrossing(t testing.TB, ports int, service *corev1.Service) *crossing {
	kerneltest.Require(t, kerneltest.NFTables)
	return newCrossingIn(t, ports, service, func(c dataplane.Config) (dataplane.Dataplane, error) { return nftables.New(c) })
}

// newCrossingIn is newCrossing in a mode.
func newCrossingIn(t testing.TB, ports int, service *corev1.Service, mode func(dataplane.Config) (dataplane.Dataplane, error)) *crossing {
	x := &crossing{Street: dataplanetest.NewStreet(t, ports), events: make(script)}
	kernel, err := mode(dataplane.Config{NetNS: x.Node.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit})
	check(t, err)
	counter := load.New(x.Node.FD())
	done := make(chan error, 1)
	table, err := conntrack.New(x.Node.FD())
	check(t, err)
	cleaner := conntrack.NewCleaner(context.WithoutCancel(t.Context()), table.Clean, func(_ conntrack.Stats, err error) { check(t, err) })
	p := New(x.events, desired.New(desired.Config{Loads: counter}), kernel, metrics.New(), Options{CheckPeriod: 100 * time.Millisecond, Loads: counter, Events: &x.told, StaleFlows: cleaner, Probe: x.probe})
	x.proxy = p
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		check(t, <-done)
		cleaner.Close()
		check(t, table.Close())
		kernel.Close()
	})
	x.events <- []source.Event{{Type: source.Set, Object: service}, {Type: source.Set, Object: dataplanetest.Slice(0)}, synced}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := x.Client.Connect(lab.TCP, web); err == nil {
			return x
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// probe connects from the node.
func (x *crossing) probe(ctx context.Context, to netip.AddrPort) error {
	return dataplane.Inside(x.Node.FD(), func() error {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", to.String())
		if err == nil {
			err = c.Close()
		}
		return err
	})
}

// annotated is the street's Service with an annotation.
func annotated(name, value string, spec corev1.ServiceSpec) *corev1.Service {
	service := dataplanetest.Service(spec)
	service.Annotations = map[string]string{name: value}
	return service
}

// add adds endpoints.
func (x *crossing) add(from, to int) {
	for i := from; i < to; i++ {
		x.events <- []source.Event{{Type: source.Set, Object: dataplanetest.Slice(i)}}
	}
}

// await connects until the first backend has so many of 100 tries.
func (x *crossing) await(t *testing.T, what string, enough func(n int) bool) {
	t.Helper()
	x.awaitFrom(t, what, func() (lab.Reply, error) { return x.Client.Connect(lab.TCP, web) }, enough)
}

func (x *crossing) awaitFrom(t *testing.T, what string, connect func() (lab.Reply, error), enough func(n int) bool) {
	t.Helper()
	const tries = 100
	for deadline := time.Now().Add(time.Minute); ; {
		n := 0
		for range tries {
			reply, err := connect()
			check(t, err)
			if reply.Local.Port() == dataplanetest.FirstPort {
				n++
			}
		}
		if enough(n) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: the first backend got %d of %d connections", what, n, tries)
		}
	}
}

// TestLeastConnections has one backend with many connections. New ones go to the others, as long as the
// kernel reports connections. Without that, and when the Service loses its annotation, the busy backend gets its
// share again.
func TestLeastConnections(t *testing.T) {
	const ports, busy = 3, 30
	x := newCrossing(t, ports, annotated(desired.AnnotationScheduler, "lc", corev1.ServiceSpec{}))
	for range busy {
		s, err := x.Client.Stream(lab.TCP, web, time.Second)
		check(t, err)
		defer s.Close()
	}
	x.add(1, ports)
	// With a tenth of the others' probability, it gets 5 of 100. Of evenly spread connections it would
	// get so few with a probability of 1e-5.
	few, even := func(n int) bool { return n < 14 }, func(n int) bool { return n > 22 }
	x.await(t, "least connections", few)
	reports := func(value string) {
		out, err := x.Node.Run(t.Context(), "sysctl", "-w", "net.netfilter.nf_conntrack_events="+value)
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	reports("0")
	x.await(t, "without events", even)
	const note = "InvalidService on default/web: metadata.annotations[slipstream.io/scheduler]: endpoints are chosen at random, as connections cannot be counted: net.netfilter.nf_conntrack_events is 0: the kernel does not report connections"
	for deadline := time.Now().Add(time.Minute); x.told.count(note) == 0 && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
	}
	if n, all := x.told.count(note), x.told.count("FeatureMissing"); n != 1 || all != 1 {
		t.Errorf("%d Events on the Service and %d on the node: %v", n, all, &x.told)
	}
	reports("1")
	x.await(t, "least connections again", few)
	x.events <- []source.Event{{Type: source.Set, Object: dataplanetest.Service(corev1.ServiceSpec{})}}
	x.await(t, "random", even)
}

// TestLeastConnectionsRefused has three backends of which one refuses connections, which is faster than
// any answer. It gets no more than twice its share.
func TestLeastConnectionsRefused(t *testing.T) {
	const healthy, rounds, each = 2, 60, 6
	x := newCrossing(t, healthy, annotated(desired.AnnotationScheduler, "lc", corev1.ServiceSpec{}))
	x.add(1, healthy+1)
	tries, failed := 0, 0
	for round := range rounds {
		var open []*lab.Stream
		for range each {
			s, err := x.Client.Stream(lab.TCP, web, 20*time.Millisecond)
			if err == nil {
				open = append(open, s)
			}
			if round >= rounds/3 { // the proxy knows its backends
				if tries++; err != nil {
					failed++
				}
			}
		}
		time.Sleep(100 * time.Millisecond)
		for _, s := range open {
			s.Close()
		}
	}
	t.Logf("%d of %d connections failed", failed, tries)
	// A third is its share. Of those with twice its share, so many would fail with a probability of 0.003.
	if failed > tries*3/4 {
		t.Errorf("%d of %d connections went to the backend that refuses them", failed, tries)
	}
	if failed == 0 {
		t.Error("no connection went to the backend that refuses them")
	}
}

// TestLeastConnectionsReset has two backends, of which one accepts connections and resets them at once, as a proxy does whose
// own server is away. It does not get more than its share.
func TestLeastConnectionsReset(t *testing.T) {
	const rounds, each = 60, 6
	x := newCrossing(t, 1, annotated(desired.AnnotationScheduler, "lc", corev1.ServiceSpec{}))
	l, err := x.Server.Listen("tcp", ":8001")
	check(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.(*net.TCPConn).SetLinger(0) // closes with a reset
			_ = c.Close()
		}
	}()
	x.add(1, 2)
	tries, failed := 0, 0
	for round := range rounds {
		var open []*lab.Stream
		for range each {
			s, err := x.Client.Stream(lab.TCP, web, 20*time.Millisecond)
			if err == nil {
				open = append(open, s)
			}
			if round >= rounds/3 { // the proxy knows its backends
				if tries++; err != nil {
					failed++
				}
			}
		}
		time.Sleep(100 * time.Millisecond)
		for _, s := range open {
			s.Close()
		}
	}
	t.Logf("%d of %d connections failed", failed, tries)
	// Half of them is its share. With twice its share, hardly any connection would go elsewhere.
	if failed > tries/2 {
		t.Errorf("%d of %d connections went to the backend that resets them", failed, tries)
	}
	if failed == 0 {
		t.Error("no connection went to the backend that resets them")
	}
}
