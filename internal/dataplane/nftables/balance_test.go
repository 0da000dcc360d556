// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// schedule sets the Service's annotation, and its other specification.
func (s *street) schedule(t *testing.T, scheduler string, spec corev1.ServiceSpec) {
	t.Helper()
	svc := dataplanetest.Service(spec)
	svc.Annotations = map[string]string{desired.AnnotationScheduler: scheduler}
	s.state.SetService(svc)
	s.apply(t)
}

// weigh sets the weight of a backend.
func (s *street) weigh(i int, weight string) {
	slice := dataplanetest.Slice(i)
	slice.Annotations = map[string]string{desired.AnnotationWeight: weight}
	s.state.SetEndpointSlice(slice)
}

func (s *street) apply(t *testing.T) {
	t.Helper()
	dataplanetest.Apply(t, s.Dataplane, s.state)
	dataplanetest.Has(t, s.Dataplane, s.state)
}

// connect makes a connection, from a port unless it is 0, and returns the number of the backend.
func (s *street) connect(t *testing.T, port uint16) int {
	t.Helper()
	opts := []lab.ConnectOption{lab.Timeout(20 * time.Second)}
	if port != 0 {
		opts = append(opts, lab.Source(netip.AddrPortFrom(netip.IPv4Unspecified(), port)))
	}
	reply, err := s.Client.Connect(lab.TCP, webKey(1).AddrPort, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return int(reply.Local.Port()) - dataplanetest.FirstPort
}

// scheduled sets Service default/web number i with two endpoints, and further ones, and a scheduler.
func scheduled(s *desired.State, i int, scheduler string, hosts ...int) {
	web(s, i, append(hosts, dataplanetest.Hosts(2)...)...)
	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("web-%d", i), Annotations: map[string]string{desired.AnnotationScheduler: scheduler}},
		Spec:       corev1.ServiceSpec{ClusterIPs: []string{fmt.Sprintf("10.96.0.%d", i), fmt.Sprintf("fd00:96::%x", i)}, Ports: []corev1.ServicePort{{Port: 80}}},
	})
}

// smallTables limits the size of Maglev tables.
func smallTables(c desired.Config) desired.Config {
	c.MaxTable = desired.TableSizes()[0]
	return c
}

// TestChainsAreCommittedFirst counts the transactions of changes. One that needs a chain needs two
// (see commitChains): with one, 9 of 526,307 connections failed during 3,000 such changes. One after
// which no frontend has a timeout of session affinity needs two more (see dropTimeouts).
func TestChainsAreCommittedFirst(t *testing.T) {
	s := newStreet(t, 4)
	s.config.Step = math.MaxInt             // a table at once
	observer, err := nfnl.Dial(s.Node.FD()) // s.conn does not count its own transactions
	if err != nil {
		t.Fatal(err)
	}
	defer observer.Close()
	count := func(what string, want uint32, change func()) {
		t.Helper()
		before, err := observer.Generation()
		if err != nil {
			t.Fatal(err)
		}
		change()
		s.apply(t)
		after, err := observer.Generation()
		if err != nil {
			t.Fatal(err)
		}
		if after-before != want {
			t.Errorf("%s: %d transactions, want %d", what, after-before, want)
		}
	}
	count("first pool of its size", 2, func() { s.open(4, 2*startSize) })
	count("the size below", 1, func() { s.shut(startSize, 2*startSize) })
	count("again", 1, func() { s.open(4, 2*startSize) })
	s.shut(4, 2*startSize)
	s.apply(t)
	for _, c := range []struct {
		scheduler    string
		affinity     corev1.ServiceAffinity
		transactions uint32
	}{
		{"rr", "", 2}, {"random", "", 1}, {"rr", "", 1}, {"maglev", "", 2}, {"maglev", corev1.ServiceAffinityClientIP, 2}, {"maglev", "", 3}, {"rr", corev1.ServiceAffinityClientIP, 2},
	} {
		count(fmt.Sprintf("%s, affinity %q", c.scheduler, c.affinity), c.transactions, func() {
			svc := dataplanetest.Service(corev1.ServiceSpec{SessionAffinity: c.affinity})
			svc.Annotations = map[string]string{desired.AnnotationScheduler: c.scheduler}
			s.state.SetService(svc)
		})
	}
}

// TestCheckFindsChains deletes what leads to a slot.
func TestCheckFindsChains(t *testing.T) {
	slow(t)
	for _, damage := range []string{"flush chain ip slipstream slot-next-0", "delete element ip slipstream picks { 0x00a000fb }", "flush chain ip6 slipstream slot-hash-251", "flush chain ip slipstream draw-128"} {
		t.Run(damage, func(t *testing.T) {
			k := newKernel(t)
			s := desired.New(smallTables(desired.Config{}))
			scheduled(s, 3, "rr")
			scheduled(s, 4, "maglev")
			web(s, 5, dataplanetest.Hosts(startSize+1)...)
			dataplanetest.Reconcile(t, k.Dataplane, s)
			if err := k.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			k.nft(strings.Fields(strings.ReplaceAll(damage, "0x00a000fb", fmt.Sprintf("%#x", 251|hashSelector)))...)
			if err := k.Check(t.Context()); !errors.Is(err, dataplane.ErrDamaged) {
				t.Errorf("Check: %v", err)
			}
			dataplanetest.Reconcile(t, k.Dataplane, s)
			k.has(s)
			// Chains that are no longer needed are deleted, some by the Reconcile after the next.
			s.DeleteService("default", "web-3")
			s.DeleteService("default", "web-4")
			s.DeleteService("default", "web-5")
			dataplanetest.Reconcile(t, k.Dataplane, s)
			dataplanetest.Reconcile(t, k.Dataplane, s)
			k.sameRules(k.Dataplane, s)
		})
	}
}

// TestWeights compares the numbers of connections with the weights of backends. It fails by
// chance in less than one of a million runs.
func TestWeights(t *testing.T) {
	s := newStreet(t, 4)
	stream, err := s.Client.Stream(lab.TCP, webKey(1).AddrPort, 20*time.Millisecond, lab.Timeout(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	for _, weights := range [][]int{{90, 10, 100, 0}, {0, 1, 3, 0}} {
		sum := 0
		for i, w := range weights {
			s.weigh(i, fmt.Sprint(w))
			sum += w
		}
		s.apply(t)
		const n = 500
		hits := map[int]int{}
		for range n {
			hits[s.connect(t, 0)]++
		}
		for i, w := range weights {
			p := float64(w) / float64(sum)
			// Hoeffding: beyond this with a probability of 2e-8.
			if off := math.Abs(float64(hits[i]) - n*p); off > n*math.Sqrt(math.Log(1e8)/(2*n)) || w == 0 && hits[i] > 0 {
				t.Errorf("weights %v: hits %v", weights, hits)
			}
		}
	}
	if err := stream.Close(); err != nil {
		t.Fatal(err)
	}
	if stats := stream.Stats(); stats.Failed > 0 || stats.Moved > 0 || stats.Ended || stats.Received == 0 {
		t.Errorf("the connection from before: %+v", stats)
	}
}

// TestRoundRobin: of as many connections as there are slots, each backend gets its share exactly.
// Two Services have counters of their own.
func TestRoundRobin(t *testing.T) {
	s := newStreet(t, 9)
	s.schedule(t, "rr", corev1.ServiceSpec{})
	expect := func(what string, want ...int) {
		t.Helper()
		slots := 0
		for _, n := range want {
			slots += n
		}
		for range 3 {
			hits := make([]int, 9)
			for range slots {
				hits[s.connect(t, 0)]++
			}
			if fmt.Sprint(hits[:len(want)]) != fmt.Sprint(want) {
				t.Errorf("%s: hits %v, want %v", what, hits, want)
			}
		}
	}
	expect("nine backends", 1, 1, 1, 1, 1, 1, 1, 1, 1)
	s.shut(3, 9)
	s.apply(t)
	expect("three", 1, 1, 1)
	s.weigh(0, "50")
	s.weigh(1, "20")
	s.weigh(2, "10")
	s.schedule(t, "wrr", corev1.ServiceSpec{})
	expect("weights", 5, 2, 1)
	next := &street{Street: s.Street, state: s.state}
	var err error
	if next.Dataplane, err = New(s.config); err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	dataplanetest.Reconcile(t, next.Dataplane, s.state)
	expect("after a restart", 5, 2, 1)
	s.Dataplane, next.Dataplane = next.Dataplane, s.Dataplane
	s.shut(0, 1)
	s.apply(t)
	expect("two", 0, 2, 1)
}

// TestTurns: pools with the same number of backends have counters of their own, and there are
// not more than MaxCounters rules.
func TestTurns(t *testing.T) {
	x := onDemand{chains: map[int]bool{}}
	var all []*pool
	for i := range 3 * MaxCounters {
		p := &pool{}
		p.Algorithm, p.Slots = desired.RoundRobin, make([]desired.Backend, 2+i%2)
		x.assignCounter(p, false)
		all = append(all, p)
	}
	has := func() (n int) {
		seen := map[counter]bool{}
		for _, p := range all {
			if p.counter.number == 0 {
				continue
			}
			if n++; seen[p.counter] || int(p.counter.size) != len(p.Slots) {
				t.Errorf("%+v of a pool with %d slots; another has it: %t", p.counter, len(p.Slots), seen[p.counter])
			}
			seen[p.counter] = true
		}
		return n
	}
	if n := has(); n != MaxCounters {
		t.Errorf("%d pools have a counter", n)
	}
	for _, p := range all {
		p.Slots = p.Slots[:2]
		x.assignCounter(p, false)
	}
	if n := has(); n != MaxCounters {
		t.Errorf("%d pools have a counter after a change of sizes", n)
	}
	for _, p := range all {
		x.assignCounter(p, true)
	}
	if x.taken != 0 {
		t.Errorf("counters are in use: %b", x.taken)
	}
}

// TestMaglev compares the backend of each connection with the table and with the kernel's hash,
// computed here: so it is the same on every node. Other algorithms follow.
func TestMaglev(t *testing.T) {
	s := newStreet(t, 5)
	client := netip.MustParseAddr("10.244.1.2").As4()
	for _, step := range []struct {
		scheduler string
		port      bool
		backends  int
	}{
		{"maglev,maglev-port", true, 5}, {"maglev", false, 5}, {"mh", true, 3}, {"sh", false, 4}, {"sh,sh-port", true, 2},
	} {
		s.shut(step.backends, 5)
		s.open(0, step.backends)
		s.schedule(t, step.scheduler, corev1.ServiceSpec{})
		full := s.state.Full()
		p := dataplane.NewPool(&full.Pools[0])
		p.Update(&full.Pools[0])
		for i := range uint16(40) {
			port, key := 20000+i, client[:]
			if step.port {
				key = binary.BigEndian.AppendUint16(key[:4:4], port)
				key = append(key, 0, 0)
			}
			slot := uint64(jhash(key, hashSeed)) * uint64(len(p.Slots)) >> 32
			if got, want := s.connect(t, port), int(p.Slots[slot].Port())-dataplanetest.FirstPort; got != want {
				t.Fatalf("%s, from port %d: backend %d, want %d", step.scheduler, port, got, want)
			}
		}
	}
	s.schedule(t, "maglev", corev1.ServiceSpec{})
	slots := len(s.pools[0].Slots)
	s.schedule(t, "random", corev1.ServiceSpec{})
	if n := len(s.pools[0].Slots); n != 2 || slots != 1021 {
		t.Errorf("%d slots after %d", n, slots)
	}
}

// jhash is the kernel's, of whole words.
func jhash(key []byte, seed uint32) uint32 {
	a := 0xdeadbeef + uint32(len(key)) + seed
	b, c := a, a
	word := func(i int) uint32 {
		if len(key) < i+4 {
			return 0
		}
		return binary.LittleEndian.Uint32(key[i:])
	}
	rot := bits.RotateLeft32
	for ; len(key) > 12; key = key[12:] {
		a, b, c = a+word(0), b+word(4), c+word(8)
		a, c = (a-c)^rot(c, 4), c+b
		b, a = (b-a)^rot(a, 6), a+c
		c, b = (c-b)^rot(b, 8), b+a
		a, c = (a-c)^rot(c, 16), c+b
		b, a = (b-a)^rot(a, 19), a+c
		c, b = (c-b)^rot(b, 4), b+a
	}
	a, b, c = a+word(0), b+word(4), c+word(8)
	c = (c ^ b) - rot(b, 14)
	a = (a ^ c) - rot(c, 11)
	b = (b ^ a) - rot(a, 25)
	c = (c ^ b) - rot(b, 16)
	a = (a ^ c) - rot(c, 4)
	b = (b ^ a) - rot(a, 14)
	return (c ^ b) - rot(b, 24)
}

// TestAffinityWithAlgorithms: a client keeps its backend with each algorithm.
func TestAffinityWithAlgorithms(t *testing.T) {
	s := newStreet(t, 4)
	for _, scheduler := range []string{"rr", "maglev,maglev-port", "random"} {
		s.schedule(t, scheduler, corev1.ServiceSpec{SessionAffinity: corev1.ServiceAffinityClientIP})
		first := s.connect(t, 0)
		for range 12 {
			if got := s.connect(t, 0); got != first {
				t.Fatalf("%s: backend %d after %d", scheduler, got, first)
			}
		}
		s.weigh(first, "0")
		s.apply(t)
		if got := s.connect(t, 0); got == first {
			t.Errorf("%s: the client stays with a backend of weight 0", scheduler)
		}
		s.weigh(first, "100")
		s.schedule(t, scheduler, corev1.ServiceSpec{})
	}
}

// BenchmarkMaglevEndpoint removes one of 100 endpoints of a Service, or adds it again, with a
// Maglev table and without.
func BenchmarkMaglevEndpoint(b *testing.B) {
	for _, scheduler := range []string{"maglev", "random"} {
		b.Run(scheduler, func(b *testing.B) {
			kerneltest.Require(b, kerneltest.NFTables)
			ns, err := lab.NewNamespace()
			if err != nil {
				b.Fatal(err)
			}
			defer ns.Close()
			backend, err := New(dataplane.Config{NetNS: ns.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit})
			if err != nil {
				b.Fatal(err)
			}
			defer backend.Close()
			s := desired.New(desired.Config{})
			svc := dataplanetest.Service(corev1.ServiceSpec{})
			svc.Annotations = map[string]string{desired.AnnotationScheduler: scheduler}
			s.SetService(svc)
			for i := range 100 {
				s.SetEndpointSlice(dataplanetest.Slice(i))
			}
			dataplanetest.Reconcile(b, backend, s)
			elements, n := 0, 0
			for b.Loop() {
				if n%2 == 0 {
					s.DeleteEndpointSlice("default", dataplanetest.SliceName(n/2%100))
				} else {
					s.SetEndpointSlice(dataplanetest.Slice(n / 2 % 100))
				}
				stats, err := backend.Apply(b.Context(), &s.Change().Change)
				if err != nil {
					b.Fatal(err)
				}
				elements += stats.Elements
				n++
			}
			b.ReportMetric(float64(elements)/float64(n), "elements/op")
		})
	}
}

// TestSmallWeight has a backend whose weight is too small for its share of the table. It gets one slot.
func TestSmallWeight(t *testing.T) {
	const backends = 13
	s := newStreet(t, backends)
	s.weigh(backends-1, "1")
	s.schedule(t, "maglev", corev1.ServiceSpec{SessionAffinity: corev1.ServiceAffinityClientIP}) // compares
	if slots := s.pools.Get(s.state.Full().Pools[0].ID).Slots; !slices.ContainsFunc(slots, func(b desired.Backend) bool { return b.Port() == dataplanetest.FirstPort+backends-1 }) {
		t.Error("the backend has no slot")
	}
}

// TestLargePoolsWalkNoMap looks for the map of endpoints in the rules that a pool above startSize adds, as the kernel
// would walk all of its elements while others wait. A Maglev table, which needs it, shows that it would be seen.
func TestLargePoolsWalkNoMap(t *testing.T) {
	s := &schemas[0]
	for _, c := range []struct {
		selector int
		uses     bool
	}{{2 * startSize, false}, {maxSize, false}, {desired.TableSizes()[0] | hashSelector, true}} {
		for d := range s.eachScopeSets {
			if d.inRange {
				continue
			}
			var batch nfnl.Batch
			s.writeOnDemand(&batch, d, c.selector)
			if uses := bytes.Contains(batch.Wire(), []byte(d.endpoints.Name+"\x00")); uses != c.uses {
				t.Errorf("%s: rules of a pool's value %d use the endpoints: %v", d.prefix, c.selector, uses)
			}
		}
	}
}
