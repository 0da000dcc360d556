// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipvs"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// endpoints is the number of endpoints of each Service in TestDistribution.
const endpoints = 4

// definitions are what schedulers do with endpoints of weight 1. Those in one line do the same.
// None depends on chance: the kernel hashes with fixed keys, and addresses and ports are fixed.
var definitions = []struct {
	schedulers string
	holds      func(m *measured) bool
}{
	{"rr wrr", func(m *measured) bool {
		return m.beginAnywhere() && inTurn(m.open) && inTurn(m.more) && inTurn(m.short)
	}},
	// The fewest connections, open ones first, or only open ones.
	{"lc wlc", func(m *measured) bool { return m.beginAnywhere() && inTurn(m.open) && m.evensOut() && spread(m.short) }},
	{"sed nq", func(m *measured) bool { return m.beginAnywhere() && inTurn(m.open) && m.evensOut() && one(m.short) }},
	// By destination address the same endpoint, or one of a set, unless it has more connections
	// than its weight while another has none.
	{"lblc", func(m *measured) bool {
		return m.beginAnywhere() && inPairs(m.open) && len(m.open) == opened && one(m.open[6:]) && one(m.short)
	}},
	{"lblcr", func(m *measured) bool {
		return m.beginAnywhere() && inPairs(m.open) && len(m.open) == opened && spread(m.open) && spread(m.short)
	}},
	// Up to the weight exceeded by one, then the next endpoint, then none.
	{"ovf", func(m *measured) bool { return inPairs(m.open) && len(m.open) == 2*endpoints }},
	{"fo", func(m *measured) bool { return one(m.open) && m.failsOver() }},
	{"dh", func(m *measured) bool { return one(m.open) && same(m.addresses[:2]) && spread(m.addresses[0]) }},
	// With the fallback, clients of an endpoint that drains are served, and only those move. When
	// it is deleted, sh distributes all anew, mh does not.
	{"sh sh,sh-fallback", func(m *measured) bool {
		return one(m.open) && same(m.clients[:2]) && spread(m.clients[0]) && m.moved(m.clients, 2) == 0 && m.moved(m.clients, 3) > 0.25
	}},
	{"mh,mh-fallback", func(m *measured) bool {
		return one(m.open) && same(m.clients[:2]) && spread(m.clients[0]) && m.moved(m.clients, 2) == 0 && m.moved(m.clients, 3) < 0.1
	}},
	{"sh,sh-port", func(m *measured) bool {
		return !inTurn(m.ports[0]) && same(m.ports[:2]) && spread(m.ports[0]) && m.moved(m.ports, 2) == 0 && m.moved(m.ports, 3) > 0.25
	}},
	{"mh", func(m *measured) bool {
		return !inTurn(m.ports[0]) && same(m.ports[:2]) && spread(m.ports[0]) && m.moved(m.ports, 2) == 0 && m.moved(m.ports, 3) < 0.1
	}},
}

// measured has the endpoints of connections to one Service in the order of connections. 0 is
// a connection that was refused.
type measured struct {
	open  []uint16 // at the same time, until one was refused
	kept  uint16   // the only endpoint that keeps its open connections
	more  []uint16 // further open ones
	short []uint16 // one after the other, with no other open

	// In rounds: two with all endpoints, one while an endpoint drains, one without it.
	addresses, clients, ports [][]uint16
	removed                   uint16
}

// Numbers of connections.
const (
	opened     = 32
	further    = 12
	inRound    = 24
	ofService  = 12    // addresses
	chiSquare6 = 30.67 // of three degrees of freedom, exceeded once in a million
)

// inTurn reports whether connections go to all endpoints in turn.
func inTurn(all []uint16) bool {
	for i := endpoints; i < len(all); i++ {
		if all[i] != all[i-endpoints] {
			return false
		}
	}
	return len(all) >= 2*endpoints && len(counts(all[:endpoints])) == endpoints
}

// inPairs reports whether the first connections go to all endpoints, two after each other.
func inPairs(all []uint16) bool {
	for i := 0; i < 2*endpoints && len(all) >= 2*endpoints; i += 2 {
		if all[i] != all[i+1] {
			return false
		}
	}
	return len(all) >= 2*endpoints && len(counts(all[:2*endpoints])) == endpoints
}

func one(all []uint16) bool { return len(counts(all)) == 1 && all[0] != 0 }

func same(rounds [][]uint16) bool { return slices.Equal(rounds[0], rounds[1]) }

// spread is the chi-square test of a uniform distribution.
func spread(all []uint16) bool {
	mean, sum := float64(len(all))/endpoints, 0.0
	for i := range endpoints {
		d := float64(counts(all)[dataplanetest.FirstPort+uint16(i)]) - mean
		sum += d * d / mean
	}
	return sum < chiSquare6 && !slices.Contains(all, 0)
}

func counts(all []uint16) map[uint16]int {
	n := map[uint16]int{}
	for _, port := range all {
		n[port]++
	}
	return n
}

// beginAnywhere reports whether the first connections to new virtual servers go to different
// endpoints, from virtual server to virtual server as from node to node: otherwise the first
// clients on many nodes meet at one endpoint (kubernetes #121591, and #79213, as each node counts
// only its own connections). They all meet by chance once in a million times.
func (m *measured) beginAnywhere() bool { return !one(m.addresses[0][1:]) }

// evensOut reports whether further connections go evenly to all endpoints without open ones.
func (m *measured) evensOut() bool {
	n := counts(m.more)
	for i := range endpoints {
		port, want := dataplanetest.FirstPort+uint16(i), further/(endpoints-1)
		if port == m.kept {
			want = 0
		}
		if n[port] != want {
			return false
		}
	}
	return true
}

// failsOver reports whether all connections from everywhere go to the endpoint that is removed
// later, and then to another.
func (m *measured) failsOver() bool {
	before := slices.Concat(slices.Concat(m.addresses[:2]...), slices.Concat(m.clients[:2]...))
	after := slices.Concat(slices.Concat(m.addresses[2:]...), slices.Concat(m.clients[2:]...))
	return one(before) && before[0] == m.removed && one(after) && after[0] != m.removed
}

// moved returns the part of the connections in a round that have another endpoint than in the
// first round, without those to the removed endpoint; 1 if one is refused or goes there.
func (m *measured) moved(rounds [][]uint16, round int) float64 {
	n, moved := 0, 0
	for i, before := range rounds[0] {
		switch now := rounds[round][i]; {
		case now == 0 || now == m.removed:
			return 1
		case before == m.removed:
			continue
		case now != before:
			moved++
		}
		n++
	}
	return float64(moved) / float64(n)
}

// TestDistribution makes connections to a Service for each scheduler. Each has to distribute
// them by its own definition, and by no other.
func TestDistribution(t *testing.T) {
	s := newStreet(t, endpoints, Options{})
	clients := netip.MustParsePrefix("10.244.1.64/26")
	if err := s.Client.AddLocalRange(clients); err != nil {
		t.Fatal(err)
	}
	if out, err := s.Node.Run(t.Context(), "ip", "route", "add", clients.String(), "via", s.Client.Addr(false).String(), "dev", s.Client.NodeLink()); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var order []*scheduled
	for _, d := range definitions {
		for scheduler := range strings.FieldsSeq(d.schedulers) {
			if name, _, _ := strings.Cut(scheduler, ","); !slices.Contains(s.backend.schedulers, name) {
				t.Logf("this kernel does not have the scheduler %s", name)
				continue
			}
			of := &scheduled{street: s, scheduler: scheduler, number: len(order) + 1, from: clients}
			order = append(order, of)
			s.state.SetService(of.service())
		}
	}
	s.apply()
	for _, of := range order {
		for i := range endpoints {
			s.state.SetEndpointSlice(of.slice(i))
		}
	}
	s.apply() // most Services have no endpoints at first
	for _, of := range order {
		of.sameByConfiguration()
		of.measureOpen()
		for range 2 {
			of.round()
		}
	}
	const removed = endpoints - 1
	for _, of := range order {
		s.state.DeleteEndpointSlice("default", of.slice(removed).Name)
		of.removed = dataplanetest.FirstPort + removed
	}
	s.apply()
	for _, of := range order {
		of.round()
	}
	s.expire()
	for _, of := range order {
		of.round()
	}
	for _, d := range definitions {
		for _, of := range order {
			belongs := slices.Contains(strings.Fields(d.schedulers), of.scheduler)
			if holds := d.holds(&of.measured); holds && !belongs {
				t.Errorf("%s distributes like %s", of.scheduler, d.schedulers)
			} else if !holds && belongs {
				t.Errorf("%s does not distribute as defined: %+v", of.scheduler, of.measured)
			}
		}
	}
}

// scheduled is a Service with a scheduler.
type scheduled struct {
	*street
	measured
	scheduler string
	number    int
	from      netip.Prefix // clients
}

func (s *scheduled) name() string { return fmt.Sprint("web", s.number) }

func (s *scheduled) service() *corev1.Service {
	svc := dataplanetest.Service(corev1.ServiceSpec{})
	svc.Name = s.name()
	svc.Annotations = map[string]string{desired.AnnotationScheduler: s.scheduler}
	svc.Spec.ClusterIP = s.address(0).Addr().String()
	svc.Spec.Type = corev1.ServiceTypeLoadBalancer
	for i := 1; i < ofService; i++ {
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: s.address(i).Addr().String()})
	}
	return svc
}

// address returns one of the Service's addresses.
func (s *scheduled) address(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(s.number), byte(1 + i)}), 80)
}

func (s *scheduled) slice(i int) *discoveryv1.EndpointSlice {
	slice := dataplanetest.Slice(i)
	slice.Name = fmt.Sprint(s.name(), "-", i)
	slice.Labels[discoveryv1.LabelServiceName] = s.name()
	return slice
}

// sameByConfiguration: the scheduler of the node's configuration is the same to the kernel as that
// of the annotation.
func (s *scheduled) sameByConfiguration() {
	s.Helper()
	b := open(s, newNamespace(s), Options{Scheduler: s.scheduler})
	state := desired.New(desired.Config{NodeName: "n1", IPVS: true})
	svc := s.service()
	svc.Annotations = nil
	state.SetService(svc)
	dataplanetest.Reconcile(s, b, state)
	dataplanetest.Has(s, b, state)
	find := func(b *Dataplane) (v ipvs.Service) {
		all, err := b.conn.Services(s.Context())
		if err != nil {
			s.Fatal(err)
		}
		for _, v := range all {
			if v.Addr == s.address(0).Addr() {
				return v
			}
		}
		return v
	}
	if ours, nodes := find(s.backend), find(b); ours != nodes || ours.Scheduler == "" {
		s.Errorf("%s: virtual server %+v by annotation, %+v by configuration", s.scheduler, ours, nodes)
	}
}

// connect makes a connection and returns its endpoint's port, or 0 if it is refused.
func (s *scheduled) connect(to netip.AddrPort, from netip.AddrPort) uint16 {
	s.Helper()
	r, err := s.Client.Connect(lab.TCP, to, lab.Source(from), lab.Timeout(20*time.Second))
	if err != nil && lab.Outcome(err) != "refused" {
		s.Fatalf("%s: %v", s.scheduler, err)
	}
	return r.Local.Port()
}

func (s *scheduled) measureOpen() {
	s.Helper()
	var streams []*lab.Stream
	dial := func(n int) (ports []uint16) {
		for range n {
			stream, err := s.Client.Stream(lab.TCP, s.address(0), time.Hour, lab.Timeout(20*time.Second))
			if lab.Outcome(err) == "refused" {
				break
			} else if err != nil {
				s.Fatalf("%s: %v", s.scheduler, err)
			}
			streams = append(streams, stream)
			ports = append(ports, stream.Stats().Local.Port())
		}
		return ports
	}
	end := func(but uint16) {
		for _, stream := range streams {
			if stream.Stats().Local.Port() != but {
				stream.Close()
			}
		}
		active := func() (n uint32) {
			for port, d := range s.destinationsOf(s.address(0)) {
				if port != but {
					n += d.Active
				}
			}
			return n
		}
		for end := time.Now().Add(30 * time.Second); active() > 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				s.Fatalf("%s: connections stay open", s.scheduler)
			}
		}
	}
	s.open = dial(opened)
	s.kept = s.open[0]
	end(s.kept)
	s.more = dial(further)
	end(0)
	for range opened {
		s.short = append(s.short, s.connect(s.address(0), netip.AddrPort{}))
	}
}

// round makes a connection to each address of the Service, from each client, and from each of
// a client's ports. IPVS remembers a port and address for a while, so each round takes another
// address of the Service for those.
func (s *scheduled) round() {
	s.Helper()
	round := len(s.ports)
	var addresses, clients, ports []uint16
	for i := range ofService {
		addresses = append(addresses, s.connect(s.address(i), netip.AddrPort{}))
	}
	for i := range inRound {
		client := netip.AddrPortFrom(lab.Nth(s.from, i), 0)
		clients = append(clients, s.connect(s.address(0), client))
		ports = append(ports, s.connect(s.address(1+round), netip.AddrPortFrom(s.Client.Addr(false), uint16(10_000+i))))
	}
	s.addresses, s.clients, s.ports = append(s.addresses, addresses), append(s.clients, clients), append(s.ports, ports)
}
