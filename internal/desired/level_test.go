// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestLevel(t *testing.T) {
	for _, test := range []struct {
		name     string
		open     []float64
		weights  []float64
		expected float64
		want     []uint64
	}{
		{"nothing known", []float64{0, 0, 0}, []float64{1, 1, 1}, 0, []uint64{10, 10, 10}},
		{"by weight", []float64{0, 0}, []float64{1, 2}, 30, []uint64{10, 10}},
		{"by weight, level", []float64{10, 20}, []float64{1, 2}, 30, []uint64{10, 10}},
		{"one has more than all will have", []float64{0, 0, 100}, []float64{1, 1, 1}, 10, []uint64{10, 10, 1}},
		{"a new one lacks 10, the others 5", []float64{5, 5, 0}, []float64{1, 1, 1}, 20, []uint64{5, 5, 10}},
		{"a new one beside busy ones", []float64{100, 100, 0}, []float64{1, 1, 1}, 30, []uint64{3, 3, 10}},
		{"a new one beside a busy one", []float64{100, 0}, []float64{1, 1}, 30, []uint64{1, 10}},
		{"drained", []float64{0, 7}, []float64{0, 1}, 10, []uint64{1, 10}},
		{"all drained", []float64{0, 1}, []float64{0, 0}, 10, []uint64{1, 1}},
		{"none", nil, nil, 10, nil},
	} {
		var all []candidate
		for i, w := range test.weights {
			all = append(all, candidate{test.open[i], w, w})
		}
		if got := level(all, test.expected); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// TestLevels draws backends by the weights of many updates, while one of them keeps its
// connections ten times as long as the others. It must not get more connections than they have.
func TestLevels(t *testing.T) {
	const backends, updates, arrivals = 5, 400, 40
	random := rand.New(rand.NewPCG(1, 2))
	all := make([]candidate, backends)
	for i := range all {
		all[i].weight, all[i].share = 1, 1
	}
	worst := 0.0
	for update := range updates {
		weights := level(all, arrivals)
		sum := 0
		for _, w := range weights {
			sum += int(w)
		}
		for range arrivals {
			n := random.IntN(sum)
			for i, w := range weights {
				if n -= int(w); n < 0 {
					all[i].open++
					break
				}
			}
		}
		for i := range all {
			end := 2.0 // of so many connections, one ends in each update
			if i == 0 {
				end = 20
			}
			all[i].open -= all[i].open / end
		}
		if update > updates/2 {
			for i := range all[1:] {
				worst = max(worst, all[0].open-all[i+1].open)
			}
		}
	}
	// Evenly drawn connections would leave the slow one with 19 times as many as the others.
	if worst > arrivals {
		t.Errorf("the slow backend had %v connections more than another: %+v", worst, all)
	}
}

// town has nodes that level their own connections to servers which handle one connection after
// the other. Time goes by in milliseconds.
type town struct {
	random *rand.Rand
	nodes  []*levelling
	queues [][]*levelling // of connections, by server: the node that made each
	left   []int          // time that a server needs for its first connection
	took   func(server int) int
	counts []int // of connections that each server got
}

// levelling is a node. It is a Loads.
type levelling struct {
	backends []Backend
	loads    map[Backend]*Load
	weights  map[Backend]uint64
}

func (n *levelling) Of(_ Protocol, b Backend) Load { return *n.loads[b] }
func (n *levelling) Changed() []FrontendKey        { return nil }

func newTown(nodes, servers int, took func(server int) int) *town {
	w := &town{random: rand.New(rand.NewPCG(1, 2)), took: took}
	w.queues, w.left, w.counts = make([][]*levelling, servers), make([]int, servers), make([]int, servers)
	for range nodes {
		n := &levelling{loads: map[Backend]*Load{}, weights: map[Backend]uint64{}}
		for i := range servers {
			b := NewBackend(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80))
			n.backends, n.loads[b], n.weights[b] = append(n.backends, b), &Load{}, DefaultWeight
		}
		w.nodes = append(w.nodes, n)
	}
	return w
}

// run has connections made at a rate, in a second, for some seconds.
func (w *town) run(seconds, rate int) {
	clear(w.counts)
	keep := math.Exp(-0.001 / LoadMemory.Seconds())
	for now := range seconds * 1000 {
		for i, n := range w.nodes {
			for _, l := range n.loads {
				l.Begun, l.Ended, l.Held = l.Begun*keep, l.Ended*keep, l.Held*keep+0.001*float64(l.Open)
			}
			if w.random.Float64() < float64(rate)/1000/float64(len(w.nodes)) {
				w.connect(n)
			}
			if period := int(LoadPeriod / time.Millisecond); (now+i*period/len(w.nodes))%period == 0 {
				former := n.weights
				n.weights = map[Backend]uint64{}
				for _, b := range n.backends {
					n.weights[b] = DefaultWeight
				}
				levelWeights(n, TCP, n.weights, former)
			}
		}
		for i, q := range w.queues {
			if len(q) == 0 {
				continue
			}
			if w.left[i]--; w.left[i] <= 0 {
				l := q[0].loads[q[0].backends[i]]
				l.Open--
				l.Ended++
				w.queues[i], w.left[i] = q[1:], w.took(i)
			}
		}
	}
}

func (w *town) connect(n *levelling) {
	sum := 0
	for _, weight := range n.weights {
		sum += int(weight)
	}
	draw := w.random.IntN(sum)
	for i, b := range n.backends {
		if draw -= int(n.weights[b]); draw < 0 {
			n.loads[b].Open++
			n.loads[b].Begun++
			w.counts[i]++
			if len(w.queues[i]) == 0 {
				w.left[i] = w.took(i)
			}
			w.queues[i] = append(w.queues[i], n)
			return
		}
	}
}

// share is the percentage of the connections that the first server got.
func (w *town) share() float64 {
	sum := 0
	for _, n := range w.counts {
		sum += n
	}
	return 100 * float64(w.counts[0]) / float64(sum)
}

// Connections that end before the next update are levelled too: the longer they are with a backend,
// the fewer it gets. With 1.4 % of them, the slow server has as many open as each of the others.
func TestShortConnections(t *testing.T) {
	slow := 10
	w := newTown(3, 8, func(server int) int {
		if server == 0 {
			return 10 * slow
		}
		return 10
	})
	w.run(30, 72)
	w.run(60, 72)
	if got := w.share(); got > 5 {
		t.Errorf("the slow server gets %.1f %% of the connections", got)
	}
	// At a rate that it could not handle evenly.
	w.run(60, 300)
	if got := w.share(); got > 3 {
		t.Errorf("the slow server gets %.1f %% of more connections", got)
	}
	slow = 1
	w.run(30, 72)
	w.run(60, 72)
	if got := w.share(); math.Abs(got-12.5) > 3 {
		t.Errorf("a server that is as fast as the others again gets %.1f %%, want 12.5 %%", got)
	}
}

// given is a Loads.
type given struct {
	loads   map[Backend]Load
	changed []FrontendKey
}

func (g *given) Of(_ Protocol, b Backend) Load { return g.loads[b] }
func (g *given) Changed() []FrontendKey        { return g.changed }

// TestLoadsChanged: a Service is weighed again if connections to one of its addresses have changed,
// and no other Service is.
func TestLoadsChanged(t *testing.T) {
	loads := &given{loads: map[Backend]Load{}}
	s := New(Config{NodeName: "n1", Loads: loads})
	s.SetNodeAddresses([]netip.Addr{netip.MustParseAddr("192.0.2.1")})
	for i, scheduler := range []string{"lc", "lc", "random"} {
		name := fmt.Sprint("web-", i)
		s.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{AnnotationScheduler: scheduler}},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeNodePort, ClusterIP: fmt.Sprint("10.96.0.", 1+i), Ports: []corev1.ServicePort{{Port: 80, NodePort: int32(30000 + i)}},
			},
		})
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Port: ptr.To[int32](8080)}},
		}
		for n := range 2 {
			a := netip.AddrFrom4([4]byte{10, 0, byte(i), byte(n)})
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a.String()}})
		}
		s.SetEndpointSlice(slice)
	}
	s.Full()
	for i := range 3 { // the first endpoints of all Services
		loads.loads[NewBackend(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i), 0}), 8080))] = Load{Open: 100, Begun: 100}
	}
	if s.LoadsChanged() || !s.Change().Empty() {
		t.Error("a change without connections")
	}
	for _, c := range []struct{ destination, want string }{
		{"10.96.0.1:80", "web-0"}, {"192.0.2.1:30001", "web-1"}, {"10.96.0.3:80", ""}, {"10.96.0.9:80", ""}, {"192.0.2.1:30009", ""},
	} {
		loads.changed = []FrontendKey{{AddrPort: netip.MustParseAddrPort(c.destination), Protocol: TCP}}
		changed := s.LoadsChanged()
		got := ""
		for _, p := range s.Change().Pools {
			if len(p.Weights) > 0 {
				got += p.Service.Name
			}
		}
		if got != c.want || changed != (c.want != "") {
			t.Errorf("connections to %s changed: weights of %q, %v; want %q", c.destination, got, changed, c.want)
		}
	}
}

// TestFailingBackends: two of three backends refuse, and the third keeps its connections. It gets the
// most that a backend can get.
func TestFailingBackends(t *testing.T) {
	n := newTown(1, 3, nil).nodes[0]
	random, served := rand.New(rand.NewPCG(1, 2)), 0
	const updates, arrivals = 200, 3
	for range updates {
		for _, l := range n.loads {
			keep := math.Exp(-LoadPeriod.Seconds() / LoadMemory.Seconds())
			*l = Load{l.Open, l.Begun * keep, l.Ended * keep, l.Failed * keep, l.Held*keep + LoadPeriod.Seconds()*float64(l.Open)}
		}
		former := n.weights
		n.weights = map[Backend]uint64{}
		sum := uint64(0)
		for _, b := range n.backends {
			n.weights[b] = DefaultWeight
		}
		levelWeights(n, TCP, n.weights, former)
		for _, w := range n.weights {
			sum += w
		}
		for range arrivals {
			draw := random.Uint64N(sum)
			for i, b := range n.backends {
				if w := n.weights[b]; draw >= w {
					draw -= w
					continue
				}
				l := n.loads[b]
				if l.Begun++; i == 0 {
					l.Open++
					served++
				} else {
					l.Failed++
				}
				break
			}
		}
	}
	if share := 100 * served / (updates * arrivals); share < 55 || share > 70 {
		t.Errorf("the good one gets %d %%, not about 66", share)
	}
}

// TestFailingInTurns: an endpoint that works and fails in turns, each for a minute, gets its share again while it works, and
// few connections while it fails. All but one that fail leave that one as much as it may have, whatever the weights are.
func TestFailingInTurns(t *testing.T) {
	n := newTown(1, 7, nil).nodes[0]
	random := rand.New(rand.NewPCG(1, 2))
	const period, arrivals, stays = 0.25, 10, 0.5 // a connection is open for 0.5 s
	for turn := range 6 {
		begun, total := 0, 0
		for update := range 240 {
			former := n.weights
			n.weights = map[Backend]uint64{}
			sum := uint64(0)
			for _, b := range n.backends {
				n.weights[b] = DefaultWeight
			}
			n.weights[n.backends[6]] = 0
			levelWeights(n, TCP, n.weights, former)
			for i, b := range n.backends {
				if w := n.weights[b]; (w == 0) != (i == 6) {
					t.Fatalf("weight %d of endpoint %d", w, i)
				}
				sum += n.weights[b]
				l := n.loads[b]
				keep := math.Exp(-period / LoadMemory.Seconds())
				ended := 0
				for range l.Open {
					if random.Float64() < period/stays {
						ended++
					}
				}
				*l = Load{l.Open - ended, l.Begun * keep, l.Ended*keep + float64(ended), l.Failed * keep, l.Held*keep + period*float64(l.Open)}
			}
			for range arrivals {
				draw := random.Uint64N(sum)
				for i, b := range n.backends {
					if w := n.weights[b]; draw >= w {
						draw -= w
						continue
					}
					l := n.loads[b]
					if l.Begun++; i == 0 && turn%2 == 1 {
						l.Failed++
					} else {
						l.Open++
					}
					if update >= 120 {
						total++
						if i == 0 {
							begun++
						}
					}
					break
				}
			}
		}
		share := 100 * begun / total // of six, 16.7 % each
		if least, most := []int{8, 0}[turn%2], []int{25, 6}[turn%2]; share < least || share > most {
			t.Errorf("minute %d: %d %% of the connections", turn, share)
		}
	}
}

// TestFailuresAlike: failures that all backends have alike, such as clients that reset, change no weight, also if the
// configured weights differ.
func TestFailuresAlike(t *testing.T) {
	for _, failed := range []float64{0, 1000} {
		n := newTown(1, 3, nil).nodes[0]
		n.weights = map[Backend]uint64{}
		for i, b := range n.backends {
			share := []uint64{100, 100, 10}[i]
			n.weights[b] = share
			n.loads[b] = &Load{Open: int(share), Begun: float64(share) * 10, Failed: failed * float64(share)}
		}
		levelWeights(n, TCP, n.weights, nil)
		if a, b, c := n.weights[n.backends[0]], n.weights[n.backends[1]], n.weights[n.backends[2]]; a != b || a != 10*c {
			t.Errorf("%v failures: weights %d, %d and %d", failed, a, b, c)
		}
	}
}

// TestSmallSteps: a weight that would change by one step stays, as that is mostly noise, and each change moves
// slots.
func TestSmallSteps(t *testing.T) {
	n := newTown(1, 3, nil).nodes[0]
	for _, c := range []struct {
		open [3]int
		want [3]uint64
	}{
		{[3]int{5, 5, 0}, [3]uint64{50, 50, 100}},
		{[3]int{4, 5, 0}, [3]uint64{50, 50, 100}}, // level says 6, 5 and 10 steps
		{[3]int{2, 5, 0}, [3]uint64{80, 50, 100}}, // 8, 4 and 10
	} {
		former := n.weights
		n.weights = map[Backend]uint64{}
		for i, b := range n.backends {
			n.weights[b], n.loads[b] = DefaultWeight, &Load{Open: c.open[i], Begun: 800.0 / 3} // 20 in a period, together
		}
		levelWeights(n, TCP, n.weights, former)
		for i, b := range n.backends {
			if n.weights[b] != c.want[i] {
				t.Errorf("with %v open connections, backend %d has weight %d, want %v", c.open, i, n.weights[b], c.want)
			}
		}
	}
}

// TestManyBackends: with 1,000 backends, an update changes fewer slots than there are backends.
func TestManyBackends(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	l, before := &given{loads: map[Backend]Load{}}, map[Backend]uint64{}
	for update := range 5 {
		now, changed := map[Backend]uint64{}, 0
		for i := range 1000 {
			b := NewBackend(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80))
			now[b], l.loads[b] = DefaultWeight, Load{Open: random.IntN(10), Begun: random.Float64() * 10, Ended: 1, Held: 1}
		}
		levelWeights(l, TCP, now, before)
		unit := slices.Min(slices.Collect(maps.Values(now)))
		for b, w := range now {
			changed += max(int(w/unit), int(before[b]/unit)) - min(int(w/unit), int(before[b]/unit))
		}
		if before = now; update > 0 && changed > 1000 {
			t.Errorf("%d slots change", changed)
		}
	}
}

// TestTableForEachBackend: a table that the configuration limits has a slot for each backend.
func TestTableForEachBackend(t *testing.T) {
	for _, size := range TableSizes() {
		c := Config{MaxTable: size}
		for _, n := range []int{2, 100, 300, 2000} {
			if got := c.tableSize(n); got < n {
				t.Errorf("maglevTableSize %d: %d slots for %d backends", size, got, n)
			}
		}
	}
}

// server says what becomes of a connection to a backend: it is open for a time, or for ever, and served or not.
type server struct {
	updates int // for which a connection is open; 0 if it ends before the next one
	served  bool
}

// TestShares draws backends by the weights of many updates. No backend gets more than twice its configured share, and none
// less than a tenth of what another one gets. One that refuses, resets or does not answer gets less than its share, one
// that answers with errors at once hardly more.
func TestShares(t *testing.T) {
	const updates, warm = 1500, 200
	good := server{2, true}
	short := server{0, true}
	refuses, blackHole := server{0, false}, server{40, false}
	for _, c := range []struct {
		name     string
		shares   []uint64
		servers  []server
		arrivals int     // for each update
		most     float64 // times of its share that the first backend gets, with some for chance; 0 for what all may get
	}{
		{"alike", []uint64{1, 1, 1, 1, 1, 1, 1}, []server{good, good, good, good, good, good, good}, 20, 0},
		{"alike, weights", []uint64{1, 2, 3, 4, 5, 6, 7}, []server{good, good, good, good, good, good, good}, 20, 0},
		{"one is quick", []uint64{1, 1, 1, 1, 1, 1, 1}, []server{short, good, good, good, good, good, good}, 20, 1.3},
		{"one is quick, weights", []uint64{3, 1, 2, 4, 1, 2, 3}, []server{short, good, good, good, good, good, good}, 20, 1.3},
		{"one is quick, few connections", []uint64{1, 1, 1, 1, 1, 1, 1}, []server{short, good, good, good, good, good, good}, 2, 1.3},
		{"one is quick, all are short", []uint64{1, 1, 1}, []server{{-1, true}, short, short}, 20, 1.3},
		{"one is slow", []uint64{1, 1, 1, 1, 1, 1, 1}, []server{{40, true}, good, good, good, good, good, good}, 20, 0.5},
		{"one refuses", []uint64{1, 1, 1, 1, 1, 1, 1}, []server{refuses, good, good, good, good, good, good}, 20, 0.4},
		{"one refuses, weights", []uint64{7, 1, 2, 4, 1, 2, 3}, []server{refuses, good, good, good, good, good, good}, 20, 0.4},
		{"one refuses, few connections", []uint64{1, 1, 1}, []server{refuses, good, good}, 2, 0.4},
		{"one refuses, long connections", []uint64{1, 1, 1}, []server{refuses, {100, true}, {100, true}}, 20, 0.4},
		{"one is quick, long connections", []uint64{1, 1, 1}, []server{short, {100, true}, {100, true}}, 20, 1.6},
		{"one is a black hole", []uint64{1, 1, 1, 1, 1, 1, 1}, []server{blackHole, good, good, good, good, good, good}, 20, 0.4},
		{"all refuse", []uint64{1, 1, 2}, []server{refuses, refuses, refuses}, 20, 0},
		{"two of two differ", []uint64{1, 1}, []server{refuses, good}, 20, 0.4},
	} {
		t.Run(c.name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			n := newTown(1, len(c.shares), nil).nodes[0]
			ends := make([]map[int]int, len(c.shares)) // by backend: how many connections end in an update
			for i := range ends {
				ends[i] = map[int]int{}
			}
			total := uint64(0)
			for i, b := range n.backends {
				total += c.shares[i]
				n.weights[b] = c.shares[i] * DefaultWeight
			}
			got := make([]int, len(c.shares))
			for update := range updates {
				keep := math.Exp(-LoadPeriod.Seconds() / LoadMemory.Seconds())
				for i, b := range n.backends {
					l, end := n.loads[b], ends[i][update]
					delete(ends[i], update)
					l.Open -= end
					l.Begun, l.Ended, l.Failed = l.Begun*keep, l.Ended*keep, l.Failed*keep
					l.Held = l.Held*keep + LoadPeriod.Seconds()*float64(l.Open)
					if c.servers[i].served {
						l.Ended += float64(end)
					} else {
						l.Failed += float64(end)
						l.Held = max(0, l.Held-float64(end*c.servers[i].updates)*LoadPeriod.Seconds())
					}
				}
				former := maps.Clone(n.weights)
				sum := uint64(0)
				for i, b := range n.backends {
					n.weights[b] = c.shares[i] * DefaultWeight
				}
				levelWeights(n, TCP, n.weights, former)
				for i, b := range n.backends {
					sum += n.weights[b]
					for j, other := range n.backends {
						if n.weights[b]*c.shares[j]*10 < n.weights[other]*c.shares[i] {
							t.Fatalf("update %d: weights %v: below the floor", update, n.weights)
						}
					}
				}
				for i, b := range n.backends {
					if n.weights[b]*total > 2*c.shares[i]*sum {
						t.Fatalf("update %d: weights %v: more than twice the share", update, n.weights)
					}
				}
				for range c.arrivals {
					draw, i := random.Uint64N(sum), 0
					for ; draw >= n.weights[n.backends[i]]; i++ {
						draw -= n.weights[n.backends[i]]
					}
					if update >= warm {
						got[i]++
					}
					l := n.loads[n.backends[i]]
					l.Begun++
					switch s := c.servers[i]; {
					case s.updates > 0:
						l.Open++
						ends[i][update+s.updates]++
					case s.served:
						l.Ended++
						l.Held += 0.02 * float64(1+s.updates) // seconds
					default:
						l.Failed++
					}
				}
			}
			share := float64(c.shares[0]) / float64(total) * float64((updates-warm)*c.arrivals)
			if got := float64(got[0]); c.most > 0 && got > c.most*share || got < share/20 {
				t.Errorf("the first backend gets %.2f times its share, want %v at most", got/share, c.most)
			}
		})
	}
}
