// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/iptables"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/ipvs"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/node/conntrack"
	"github.com/slipstream-proxy/slipstream/internal/node/load"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
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
	return newCrossingIn(t, ports, service, inNFTables(t))
}

// newCrossingIn is newCrossing in a mode.
func newCrossingIn(t testing.TB, ports int, service *corev1.Service, mode func(dataplane.Config) (dataplane.Dataplane, error)) *crossing {
	x := &crossing{Street: dataplanetest.NewStreet(t, ports), events: make(script)}
	kernel, err := mode(dataplane.Config{NetNS: x.Node.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit})
	check(t, err)
	config := desired.Config{}
	if k, byIPVS := kernel.(*ipvs.Dataplane); byIPVS {
		config.IPVS, config.Scheduler = true, k.Scheduler
	}
	counter := load.New(x.Node.FD(), config.IPVS)
	config.Loads = counter
	done := make(chan error, 1)
	table, err := conntrack.New(x.Node.FD())
	check(t, err)
	cleaner := conntrack.NewCleaner(context.WithoutCancel(t.Context()), table.Clean, func(_ conntrack.Stats, err error) { check(t, err) })
	p := New(x.events, desired.New(config), kernel, metrics.New(), Options{CheckPeriod: 100 * time.Millisecond, Loads: counter, Events: &x.told, StaleFlows: cleaner, Probe: x.probe})
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

// inNFTables, inIPTables and inIPVS are modes for newCrossingIn.
func inNFTables(t testing.TB) func(dataplane.Config) (dataplane.Dataplane, error) {
	kerneltest.Require(t, kerneltest.NFTables)
	return func(c dataplane.Config) (dataplane.Dataplane, error) { return nftables.New(c) }
}

func inIPTables(t testing.TB) func(dataplane.Config) (dataplane.Dataplane, error) {
	kerneltest.Require(t, kerneltest.IPTablesNFT, kerneltest.IPSet)
	return func(c dataplane.Config) (dataplane.Dataplane, error) {
		return iptables.New(t.Context(), c, iptables.Options{Variant: iptables.NFT})
	}
}

func inIPVS(t testing.TB) func(dataplane.Config) (dataplane.Dataplane, error) {
	kerneltest.Require(t, kerneltest.NFTables, kerneltest.IPVS)
	return func(c dataplane.Config) (dataplane.Dataplane, error) { return ipvs.New(c, ipvs.Options{}) }
}

// probe connects from the node.
func (x *crossing) probe(ctx context.Context, to desired.Target, dns bool) error {
	return load.Probe(ctx, x.Node.FD(), to, dns)
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

// TestLeastConnectionsShares has seven endpoints of unequal weights, of which some refuse connections, reset them, do not answer,
// or answer with an error at once. None gets more than twice its share, and each is tried. With UDP, some do not answer.
func TestLeastConnectionsShares(t *testing.T) {
	const (
		good = iota
		refuses
		resets
		silent
		quick
	)
	for _, c := range []struct {
		network string
		kinds   []int
	}{
		{"tcp", []int{good, good, refuses, resets, silent, quick, good}},
		{"udp", []int{good, good, refuses, good, silent, silent, good}},
	} {
		t.Run(c.network, func(t *testing.T) {
			kerneltest.Require(t, kerneltest.NFTBinary)
			service := annotated(desired.AnnotationScheduler, "lc", corev1.ServiceSpec{})
			service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: "more", Port: 90, Protocol: corev1.Protocol(strings.ToUpper(c.network))})
			x := newCrossing(t, 1, service)
			weights, total := []uint64{3, 1, 1, 2, 1, 1, 1}, 10.0
			for i, kind := range c.kinds {
				port := fmt.Sprint(9000 + i)
				slice := dataplanetest.Slice(0)
				slice.Name, slice.Annotations = "more-"+port, map[string]string{desired.AnnotationWeight: fmt.Sprint(weights[i])}
				slice.Ports = []discoveryv1.EndpointPort{{Name: ptr.To("more"), Protocol: &service.Spec.Ports[1].Protocol, Port: ptr.To(int32(9000 + i))}}
				x.events <- []source.Event{{Type: source.Set, Object: slice}}
				switch {
				case kind == silent:
					out, err := x.Server.Run(t.Context(), "nft", "add table inet silent; add chain inet silent in { type filter hook input priority 0; }; add rule inet silent in "+c.network+" dport "+port+" drop")
					if err != nil {
						t.Fatalf("%v: %s", err, out)
					}
				case kind == refuses:
				case c.network == "udp":
					answerDatagrams(t, x.Server, port)
				default:
					answerConnections(t, x.Server, port, kind == resets, kind == quick)
				}
			}
			counts, mu := map[string]int{}, sync.Mutex{}
			var clients sync.WaitGroup
			const each, all, warm = 12, 120, 30
			for range each {
				clients.Go(func() {
					for n := range all {
						if got := exchange(x.Client, c.network); n >= warm {
							mu.Lock()
							counts[got]++
							mu.Unlock()
						}
					}
				})
			}
			clients.Wait()
			t.Logf("%v", counts)
			shares := map[string]uint64{}
			for i, kind := range c.kinds {
				shares[map[int]string{good: fmt.Sprint(9000 + i), quick: fmt.Sprint(9000 + i), refuses: "refused", resets: "reset", silent: "silent"}[kind]] += weights[i]
			}
			for what, share := range shares {
				even := each * (all - warm) * float64(share) / total
				// The square root is the standard deviation.
				if n := float64(counts[what]); n > 2*even+5*math.Sqrt(2*even) || n == 0 {
					t.Errorf("%s: %v connections, where an even share is %v", what, n, even)
				}
			}
			if sum := len(counts); sum != len(shares) {
				t.Errorf("other results: %v", counts)
			}
		})
	}
}

// exchange sends a line to the second port of the Service. It returns the answer, or what happened instead.
func exchange(from *lab.Pod, network string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 150*time.Millisecond)
	defer cancel()
	c, err := from.DialContext(ctx, network, "10.96.0.1:90")
	if err == nil {
		defer c.Close()
		deadline, _ := ctx.Deadline()
		_ = c.SetDeadline(deadline)
		var answer [100]byte
		n := 0
		if _, err = c.Write([]byte("?")); err == nil {
			n, err = c.Read(answer[:])
		}
		if err == nil {
			return string(answer[:n])
		}
	}
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return "refused"
	case errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE):
		return "reset"
	case errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded):
		return "silent"
	}
	return err.Error()
}

// answerConnections answers with the port after some time, or at once, or resets connections.
func answerConnections(t *testing.T, server *lab.Pod, port string, reset, quick bool) {
	l, err := server.Listen("tcp", ":"+port)
	check(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if reset {
					_ = c.(*net.TCPConn).SetLinger(0)
					return
				}
				var question [1]byte
				_, _ = c.Read(question[:])
				if !quick {
					time.Sleep(50 * time.Millisecond)
				}
				_, _ = c.Write([]byte(port))
			}()
		}
	}()
}

// answerDatagrams answers with the port.
func answerDatagrams(t *testing.T, server *lab.Pod, port string) {
	var c net.PacketConn
	check(t, server.Do(func() (err error) {
		c, err = net.ListenPacket("udp4", ":"+port)
		return err
	}))
	t.Cleanup(func() { c.Close() })
	go func() {
		var question [100]byte
		for {
			_, from, err := c.ReadFrom(question[:])
			if err != nil {
				return
			}
			_, _ = c.WriteTo([]byte(port), from)
		}
	}()
}
