// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipvs"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
)

var web = netip.MustParseAddrPort("10.96.0.1:80")

// street is a street with a backend and a state of its Service.
type street struct {
	*testing.T
	*dataplanetest.Street
	backend *Dataplane
	state   *desired.State
}

// newStreet runs commands on the node and then makes the backend.
func newStreet(t *testing.T, ports int, o Options, commands ...string) *street {
	kerneltest.Require(t, kerneltest.IPVS, kerneltest.NFTables)
	s := &street{T: t, Street: dataplanetest.NewStreet(t, ports)}
	for _, c := range commands {
		if out, err := s.Node.Run(t.Context(), "sh", "-ec", c); err != nil {
			t.Fatalf("%s: %v: %s", c, err, out)
		}
	}
	s.backend = open(t, s.Node.Namespace, o)
	if _, err := s.backend.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.state = desired.New(desired.Config{NodeName: "n1", Scheduler: s.backend.Scheduler, IPVS: true})
	s.state.SetNodeAddresses(s.Node.Addrs())
	for i := range ports {
		s.state.SetEndpointSlice(dataplanetest.Slice(i))
	}
	s.state.SetService(dataplanetest.Service(corev1.ServiceSpec{}))
	if len(commands) == 0 {
		dataplanetest.Reconcile(t, s.backend, s.state)
	}
	return s
}

// schedule changes the Service's annotation and returns the reasons of problems.
func (s *street) schedule(scheduler string) (problems []string) {
	s.Helper()
	svc := dataplanetest.Service(corev1.ServiceSpec{})
	svc.Annotations = map[string]string{desired.AnnotationScheduler: scheduler}
	s.state.SetService(svc)
	c := s.state.Change()
	for _, p := range c.Problems {
		problems = append(problems, p.Reason)
	}
	if _, err := s.backend.Apply(s.Context(), &c.Change); err != nil {
		s.Fatal(err)
	}
	dataplanetest.Has(s, s.backend, s.state)
	return problems
}

// hits makes n connections and counts them by the server's port.
func (s *street) hits(n int, opts ...lab.ConnectOption) map[uint16]int {
	s.Helper()
	all := map[uint16]int{}
	for range n {
		r, err := s.Client.Connect(lab.TCP, web, append(opts, lab.Timeout(20*time.Second))...)
		if err != nil {
			s.Fatal(err)
		}
		all[r.Local.Port()]++
	}
	return all
}

// TestScheduler changes a Service's scheduler, at last to each that there is, while connections
// are made and one is open.
// Source hashing sends all connections of a client to one of four backends, and with the flag
// sh-port to several.
func TestScheduler(t *testing.T) {
	s := newStreet(t, 4, Options{})
	stream, err := s.Client.Stream(lab.TCP, web, 20*time.Millisecond, lab.Timeout(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		scheduler, problem string
		least, most        int // backends of 40 connections
	}{
		{"", "", 4, 4},
		{"sh", "", 1, 1},
		{"sh,sh-port", "", 2, 4},
		{"mh", "", 2, 4},
		{"mh,mh-fallback", "", 1, 1},
		{"rr", "", 4, 4},
		{"sh", "", 1, 1},
		{"nothing", `"nothing" is none of the IPVS schedulers`, 4, 4},
		{"sh,mh-port", `"mh-port" is not a flag of the IPVS scheduler sh`, 4, 4},
	} {
		problem := strings.Join(s.schedule(step.scheduler), "\n")
		if !strings.HasPrefix(problem, step.problem) || (problem == "") != (step.problem == "") {
			t.Errorf("%q: problem %q", step.scheduler, problem)
		}
		if hits := s.hits(40); len(hits) < step.least || len(hits) > step.most {
			t.Errorf("%q: connections by backend: %v", step.scheduler, hits)
		}
	}
	for _, scheduler := range s.backend.schedulers {
		s.schedule(scheduler)
		alive(t, stream)
	}
}

// TestSchedulerOfNode: the node's scheduler may have flags, and the kernel has to have it.
func TestSchedulerOfNode(t *testing.T) {
	s := newStreet(t, 4, Options{Scheduler: "sh"})
	if hits := s.hits(10); len(hits) != 1 {
		t.Errorf("sh: %v", hits)
	}
	if problems := s.schedule("rr"); len(problems) > 0 || len(s.hits(8)) != 4 {
		t.Errorf("rr: %v", problems)
	}
	s.backend.schedulers = []string{"lc", "rr"}
	if problems := s.schedule("wlc"); !slices.Equal(problems, []string{`"wlc" is not a scheduler that this kernel has: lc, rr`}) {
		t.Errorf("wlc: %q", problems)
	}
}

// TestParameters: parameters that were different before get their former values back when
// they are no longer needed, also by another run.
func TestParameters(t *testing.T) {
	ns := newNamespace(t)
	set := map[string]string{
		"ipv4/vs/conntrack": "1", "ipv4/vs/expire_nodest_conn": "1", "ipv4/vs/expire_quiescent_template": "1",
		"ipv4/conf/all/arp_ignore": "1", "ipv4/conf/all/arp_announce": "2",
	}
	former := maps.Clone(set)
	has := func(when string, want map[string]string) {
		t.Helper()
		for key, value := range want {
			if is, err := ns.Sysctl(key); err != nil || is != value {
				t.Errorf("%s: %s is %q (%v), not %s", when, key, is, err, value)
			}
		}
	}
	for key := range former {
		former[key] = "0"
		if err := ns.SetSysctl(key, "0"); err != nil {
			t.Fatal(err)
		}
	}
	// This one has the right value before.
	const quiescent = "ipv4/vs/expire_quiescent_template"
	former[quiescent] = "1"
	if err := ns.SetSysctl(quiescent, "1"); err != nil {
		t.Fatal(err)
	}
	reconcile := func(o Options) *Dataplane {
		b := open(t, ns, o)
		dataplanetest.Reconcile(t, b, desired.New(desired.Config{NodeName: "n1", IPVS: true}))
		return b
	}
	reconcile(Options{StrictARP: true})
	has("with strict ARP", set)
	reconcile(Options{StrictARP: true})
	b := reconcile(Options{})
	has("without strict ARP", map[string]string{"ipv4/vs/conntrack": "1", "ipv4/conf/all/arp_ignore": "0", "ipv4/conf/all/arp_announce": "0"})
	if err := ns.SetSysctl("ipv4/conf/all/arp_ignore", "2"); err != nil {
		t.Fatal(err)
	}
	former["ipv4/conf/all/arp_ignore"] = "2" // it is the administrator's now
	if err := b.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	has("after cleanup", former)
	has("after cleanup", map[string]string{"ipv4/ip_forward": "1"})
}

// TestDraining removes an endpoint that has an open connection, with each scheduler. The
// connection goes on. New ones, from many ports, all go to the other endpoints, until the
// endpoint returns. Without endpoints they are refused, and afterwards they work again.
func TestDraining(t *testing.T) {
	s := newStreet(t, 3, Options{})
	for _, scheduler := range s.backend.schedulers {
		if scheduler == "dh" {
			continue // has no fallback; docs/configuration.md says so
		}
		t.Run(scheduler, func(t *testing.T) {
			s.T = t
			if problems := s.schedule(scheduler); len(problems) > 0 {
				t.Fatal(problems)
			}
			stream, err := s.Client.Stream(lab.TCP, web, 20*time.Millisecond, lab.Timeout(20*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Close()
			conn := s.busy()
			s.remove(conn)
			for port := range s.hits(30) {
				if port == conn {
					t.Errorf("a new connection came to port %d, which drains", port)
				}
			}
			if err := s.backend.Check(t.Context()); err != nil {
				t.Error(err)
			}
			if n := s.destinations()[conn].Weight; n != 0 {
				t.Errorf("the destination that drains has weight %d", n)
			}
			s.restore(conn)
			if n := s.destinations()[conn].Weight; n != 1 {
				t.Errorf("the destination that has returned has weight %d", n)
			}
			for i := range 3 {
				s.remove(dataplanetest.FirstPort + uint16(i))
			}
			if _, err := s.Client.Connect(lab.TCP, web); lab.Outcome(err) != "refused" {
				t.Errorf("without endpoints: %v", err)
			}
			s.restore(conn)
			if hits := s.hits(10); hits[conn] != 10 {
				t.Errorf("with one endpoint: %v", hits)
			}
			for i := range 3 {
				s.restore(dataplanetest.FirstPort + uint16(i))
			}
			s.hits(10)
			received := stream.Stats().Received
			for end := time.Now().Add(20 * time.Second); stream.Stats().Received == received && time.Now().Before(end); {
				time.Sleep(10 * time.Millisecond)
			}
			stats := stream.Stats()
			if stats.Failed > 0 || stats.Ended || stats.Received == received {
				t.Errorf("the open connection: %+v", stats)
			}
			if err := stream.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestEndFlows: a destination that drains is deleted when its flows are to end, with its
// connection. If that was not possible, the next Check deletes it.
func TestEndFlows(t *testing.T) {
	s := newStreet(t, 3, Options{})
	stream, err := s.Client.Stream(lab.TCP, web, 20*time.Millisecond, lab.Timeout(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	conn := s.busy()
	s.remove(conn)
	ended := []desired.StaleFlows{{Protocol: desired.TCP, Backends: []desired.Backend{desired.NewBackend(netip.AddrPortFrom(s.Server.Addrs()[0], conn))}}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.backend.EndFlows(ctx, ended); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	}
	if _, exists := s.destinations()[conn]; !exists {
		t.Fatal("the destination was deleted after the end of the context")
	}
	if err := s.backend.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if _, exists := s.destinations()[conn]; exists || len(s.backend.drain) > 0 {
		t.Errorf("the destination exists: %t; on record: %v", exists, s.backend.drain)
	}
	s.restore(conn)
	s.remove(dataplanetest.FirstPort + (conn-dataplanetest.FirstPort+1)%3)
	if err := s.backend.EndFlows(t.Context(), ended); err != nil {
		t.Error(err)
	}
	if d := s.destinations(); d[conn].Weight != 1 || len(d) != 3 {
		t.Errorf("a destination that serves was deleted, or one that others drain: %+v", d)
	}
}

// destinations returns those of the Service's virtual server, by port.
func (s *street) destinations() map[uint16]ipvs.Destination { return s.destinationsOf(web) }

func (s *street) destinationsOf(a netip.AddrPort) map[uint16]ipvs.Destination {
	s.Helper()
	list, err := s.backend.conn.Destinations(s.Context(), ipvs.Key{Addr: a.Addr(), Port: a.Port(), Protocol: uint8(desired.TCP)})
	if err != nil {
		s.Fatal(err)
	}
	all := map[uint16]ipvs.Destination{}
	for _, d := range list {
		all[d.Port()] = d
	}
	return all
}

// busy returns the port of the only destination with an open connection.
func (s *street) busy() (port uint16) {
	s.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		n := 0
		for p, d := range s.destinations() {
			if d.Active > 0 {
				port, n = p, n+1
			}
		}
		if n == 1 {
			return port
		}
	}
	s.Fatalf("not one open connection: %+v", s.destinations())
	return 0
}

func (s *street) remove(port uint16) {
	s.Helper()
	s.state.DeleteEndpointSlice("default", dataplanetest.SliceName(int(port)-dataplanetest.FirstPort))
	s.apply()
}

func (s *street) restore(port uint16) {
	s.Helper()
	s.state.SetEndpointSlice(dataplanetest.Slice(int(port) - dataplanetest.FirstPort))
	s.apply()
}

func (s *street) apply() {
	s.Helper()
	dataplanetest.Apply(s, s.backend, s.state)
	dataplanetest.Has(s, s.backend, s.state)
}
