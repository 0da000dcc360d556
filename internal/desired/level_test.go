// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
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
		all      []candidate
		expected float64
		want     []uint8
	}{
		{"nothing known", []candidate{{0, 1}, {0, 1}, {0, 1}}, 0, []uint8{10, 10, 10}},
		{"by weight", []candidate{{0, 1}, {0, 2}}, 30, []uint8{5, 10}},
		{"by weight, level", []candidate{{10, 1}, {20, 2}}, 30, []uint8{5, 10}},
		{"one has more than all will have", []candidate{{0, 1}, {0, 1}, {100, 1}}, 10, []uint8{10, 10, 0}},
		{"a new one lacks 10, the others 5", []candidate{{5, 1}, {5, 1}, {0, 1}}, 20, []uint8{5, 5, 10}},
		{"a new one beside busy ones", []candidate{{100, 1}, {100, 1}, {0, 1}}, 30, []uint8{3, 3, 10}},
		{"a new one beside a busy one", []candidate{{100, 1}, {0, 1}}, 30, []uint8{0, 10}},
		{"drained", []candidate{{0, 0}, {7, 1}}, 10, []uint8{0, 10}},
		{"all drained", []candidate{{0, 0}, {1, 0}}, 10, []uint8{0, 0}},
		{"none", nil, 10, nil},
	} {
		if got := level(test.all, test.expected); !slices.Equal(got, test.want) {
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
		all[i].weight = 1
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
		loads.changed = []FrontendKey{{netip.MustParseAddrPort(c.destination), TCP}}
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
