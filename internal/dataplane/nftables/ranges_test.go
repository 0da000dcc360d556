// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ranged adds a Service with a range that begins with one of its ports, session affinity and source ranges.
func ranged(s *desired.State, i int) {
	name := fmt.Sprint("ranged", i)
	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Annotations: map[string]string{desired.AnnotationPortRanges: "tcp/3000-3100,udp/10000-20000"}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, SessionAffinity: corev1.ServiceAffinityClientIP,
			ClusterIPs: []string{fmt.Sprint("10.96.9.", i), fmt.Sprintf("fd00:96::9:%x", i)}, LoadBalancerSourceRanges: []string{"192.168.0.0/16", "fd00::/16"},
			Ports: []corev1.ServicePort{{Name: "first", Port: 3000}},
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: fmt.Sprint("203.0.113.", 100+i)}, {IP: fmt.Sprintf("2001:db8::9:%x", i)}}}},
	})
	first, port := "first", int32(8080)
	for kind, ip := range map[discoveryv1.AddressType]string{discoveryv1.AddressTypeIPv4: "10.244.9.9", discoveryv1.AddressTypeIPv6: "fd00:244::9"} {
		s.SetEndpointSlice(&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: name + string(kind), Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: kind, Ports: []discoveryv1.EndpointPort{{Name: &first, Port: &port}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{ip}}},
		})
	}
}

// TestRangesAreOnDemand checks that a table has what ranges need only once there is one, whatever order, and that
// Check finds what another program has deleted.
func TestRangesAreOnDemand(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	k := newKernel(t)
	s := desired.New(inCluster("10.244.0.0/16", "fd00:244::/32"))
	web(s, 1)
	dataplanetest.Reconcile(t, k.Dataplane, s)
	if has, err := k.conn.Contents(schemas[0].table); err != nil || len(has.Sets) != len(schemas[0].sets()) {
		t.Fatalf("%d sets without ranges: %v", len(has.Sets), err)
	}
	ranged(s, 1)
	dataplanetest.Apply(t, k.Dataplane, s)
	k.has(s)
	if err := k.Check(t.Context()); err != nil {
		t.Error(err)
	}
	ranged(s, 2)
	dataplanetest.Apply(t, k.Dataplane, s)
	k.has(s)
	for _, set := range []string{"ranges", "partners"} {
		dataplanetest.RunIn(t, k.ns, "", "nft", "flush", map[string]string{"ranges": "map", "partners": "map"}[set], "ip", "slipstream", set)
		if err := k.Check(t.Context()); err == nil {
			t.Errorf("Check finds nothing, without the elements of %s", set)
		}
		dataplanetest.Reconcile(t, k.Dataplane, s)
		k.has(s)
	}
	next := &kernel{Dataplane: k.open(), ns: k.ns, t: t}
	defer next.Close()
	s = desired.New(inCluster("10.244.0.0/16", "fd00:244::/32"))
	web(s, 1)
	dataplanetest.Reconcile(t, next.Dataplane, s)
	next.has(s)
	if has, err := next.conn.Contents(schemas[0].table); err != nil || len(has.Sets) != len(schemas[0].sets()) {
		t.Fatalf("%d sets after a start without ranges: %v", len(has.Sets), err)
	}
}

// TestFirstRangeIsAdopted checks that what the first range of a node has added is what a start with ranges writes: such a
// start keeps the rules.
func TestFirstRangeIsAdopted(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	k := newKernel(t)
	s := desired.New(inCluster("10.244.0.0/16", "fd00:244::/32"))
	web(s, 1)
	dataplanetest.Reconcile(t, k.Dataplane, s)
	ranged(s, 1)
	dataplanetest.Apply(t, k.Dataplane, s)
	rules := func(c *nfnl.Conn) (handles []uint64) {
		for f := range schemas {
			all, err := c.Contents(schemas[f].table)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range all.Rules {
				if !rangedSchemas[f].isCreated(r.Chain) {
					handles = append(handles, r.Handle)
				}
			}
		}
		return handles
	}
	if err := k.Check(t.Context()); err != nil { // seals the rules
		t.Fatal(err)
	}
	before := rules(k.conn)
	next := &kernel{Dataplane: k.open(), ns: k.ns, t: t}
	defer next.Close()
	s = desired.New(inCluster("10.244.0.0/16", "fd00:244::/32"))
	web(s, 1)
	ranged(s, 1)
	dataplanetest.Reconcile(t, next.Dataplane, s)
	next.has(s)
	if after := rules(next.conn); !slices.Equal(before, after) {
		t.Errorf("a start with the same ranges wrote rules anew: %d and %d", len(before), len(after))
	}
}

// TestFirstRangeOfOneFamily checks that the first range adds what its family needs, and the next Check the rest; that pools
// of ranges get the chains for their sizes; and that another program's commit before that Check has everything written again.
func TestFirstRangeOfOneFamily(t *testing.T) {
	for _, disturbed := range []bool{false, true} {
		k := newKernel(t)
		s := desired.New(inCluster("10.244.0.0/16", "fd00:244::/32"))
		web(s, 1, 1, 2)
		dataplanetest.Reconcile(t, k.Dataplane, s)
		for i, n := range []int{3, 1, 9, 0, 70, 2} {
			rangeOf(s, n)
			dataplanetest.Apply(t, k.Dataplane, s)
			k.has(s)
			if i == 0 {
				has, err := k.conn.Contents(schemas[1].table)
				if err != nil || len(has.Sets) != len(schemas[1].sets()) {
					t.Fatalf("%d sets of IPv6 after a range of IPv4: %v", len(has.Sets), err)
				}
				if disturbed {
					dataplanetest.RunIn(t, k.ns, "", "nft", "add", "table", "ip", "other")
				}
				switch err := k.Check(t.Context()); {
				case disturbed && !errors.Is(err, dataplane.ErrDamaged):
					t.Fatalf("Check finds nothing, although another program has committed: %v", err)
				case disturbed:
					dataplanetest.Reconcile(t, k.Dataplane, s)
				case err != nil:
					t.Fatal(err)
				}
				if has, err := k.conn.Contents(schemas[1].table); err != nil || len(has.Sets) != len(rangedSchemas[1].sets()) {
					t.Fatalf("%d sets of IPv6 after a Check: %v", len(has.Sets), err)
				}
				k.has(s)
			}
			if err := k.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func rangeService() *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "media"}, Spec: corev1.ServiceSpec{ClusterIP: "10.200.8.8", Ports: []corev1.ServicePort{{Name: "one", Port: 9}}}}
	svc.Annotations = map[string]string{desired.AnnotationPortRanges: "udp/10000-20000"}
	return svc
}

// rangeOf adds a Service of IPv4 with a range and so many endpoints.
func rangeOf(s *desired.State, endpoints int) {
	s.SetService(rangeService())
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: "media", Labels: map[string]string{discoveryv1.LabelServiceName: "media"}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i := range endpoints {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprint("10.244.9.", i+1)}})
	}
	s.SetEndpointSlice(slice)
}

// TestPartsOfRanges changes the ports that a range has apart, and checks that Read and
// ReadFrontend find parts that are missing, direct, or of another pool, where they should not be.
func TestPartsOfRanges(t *testing.T) {
	k := newKernel(t)
	s := desired.New(inCluster("10.244.0.0/16", "fd00:244::/32"))
	with := func(policy corev1.ServiceInternalTrafficPolicy, ports ...int32) {
		svc := rangeService()
		svc.Spec.InternalTrafficPolicy = &policy
		for _, p := range ports {
			svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint(p), Port: p, Protocol: corev1.ProtocolUDP})
		}
		s.SetService(svc)
		dataplanetest.Apply(t, k.Dataplane, s)
		k.has(s)
		if err := k.Check(t.Context()); err != nil {
			t.Error(err)
		}
	}
	rangeOf(s, 3)
	dataplanetest.Reconcile(t, k.Dataplane, s)
	k.has(s)
	for _, ports := range [][]int32{{15000}, {15000, 16000}, {15000}, {10000, 15000}, {10000, 10001, 15000, 20000}, {}, {1, 2, 10000, 10002, 10004, 10006, 10008, 10010, 10012, 10014, 10016}, {15000}} {
		with(corev1.ServiceInternalTrafficPolicyCluster, ports...)
		with(corev1.ServiceInternalTrafficPolicyLocal, ports...)
		with(corev1.ServiceInternalTrafficPolicyCluster, ports...)
	}
	r, conn := &rangedSchemas[desired.IPv4], k.dial()
	f := s.FrontendAt(desired.FrontendKey{AddrPort: netip.MustParseAddrPort("10.200.8.8:10000"), Protocol: desired.UDP})
	parts := f.PartsOf()
	if len(parts) != 3 {
		t.Fatalf("parts %v", parts)
	}
	d := s.Decide(desired.Origin{}, f.FrontendKey)
	for what, damage := range map[string]func(first, last, value []byte) []byte{
		"missing":        func(_, _, value []byte) []byte { return nil },
		"another turn":   func(_, _, value []byte) []byte { value[20] ^= 2; return value },
		"of the Local":   func(_, _, value []byte) []byte { value[20] ^= 1; return value },
		"another pool":   func(_, _, value []byte) []byte { value[12] ^= 0x40; return value },
		"another length": func(_, last, value []byte) []byte { last[len(last)-3] ^= 1; return value },
		"unused":         func(_, _, value []byte) []byte { value[3] = 1; return value },
		"padding":        func(_, _, value []byte) []byte { value[7] = 1; return value },
		"first port":     func(_, _, value []byte) []byte { value[8] ^= 1; return value },
		"another family": func(_, _, value []byte) []byte { value[4] ^= 1; return value },
	} {
		for i := range parts {
			var write, mend nfnl.Batch
			w := writer{batch: &write, base: k.writer.base}
			w.keys[r.family] = map[*nfnl.Set]map[string]string{}
			w.portRange(add, r, f, nil)
			first, last := r.partKey(f, parts[i].First), r.partKey(f, parts[i].Last)
			last[len(last)-2], last[len(last)-1] = 0xff, 0xff
			value := []byte(w.keys[r.family][r.ranges][string(first)])
			write.Reset()
			write.DeleteInterval(r.table, r.ranges, first, last)
			end, was := slices.Clone(last), slices.Clone(value)
			if value = damage(first, end, value); value != nil {
				if what == "another length" && i == 1 { // it would overlap
					continue
				}
				write.AddInterval(r.table, r.ranges, first, end, value...)
				mend.DeleteInterval(r.table, r.ranges, first, end)
			}
			mend.AddInterval(r.table, r.ranges, first, last, was...)
			if err := conn.Commit(0, &write); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if v, err := dataplane.Look(t.Context(), k, &s.Full().Change); err != nil || len(v.Differences) == 0 {
				t.Errorf("%s of part %d: error %v, nothing found", what, i, err)
			}
			if what != "another length" && what != "unused" { // which only Read sees
				one, err := k.ReadFrontend(t.Context(), &d.Content)
				if err != nil || dataplane.Difference(dataplane.ContentOf(&d.Content), one) == "" && len(one.Faults) == 0 {
					t.Errorf("%s of part %d: error %v, nothing found of the frontend", what, i, err)
				}
			}
			if err := conn.Commit(0, &mend); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	k.has(s)
}

// BenchmarkFirstRange adds a Service with UDP 10000 to 20000, the first range of a node with 10,000 other Services.
func BenchmarkFirstRange(b *testing.B) {
	kerneltest.Require(b, kerneltest.NFTables)
	ns, err := lab.NewNamespace()
	if err != nil {
		b.Fatal(err)
	}
	defer ns.Close()
	k, err := New(dataplane.Config{NetNS: ns.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit})
	if err != nil {
		b.Fatal(err)
	}
	defer k.Close()
	var took, cpu []time.Duration
	for b.Loop() {
		s := desired.New(inCluster("10.244.0.0/16", "fd00:244::/32"))
		for i := range 10000 {
			web(s, i, 1, 2, 3)
		}
		dataplanetest.Reconcile(b, k, s)
		rangeOf(s, 3)
		var before, after unix.Timespec
		start := time.Now()
		if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &before); err != nil {
			b.Fatal(err)
		}
		change := s.Change()
		if change.Rebuild {
			change = s.Full()
			_, err = k.Reconcile(b.Context(), &change.Change)
		} else {
			_, err = k.Apply(b.Context(), &change.Change)
		}
		if err != nil {
			b.Fatal(err)
		}
		if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &after); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
		cpu = append(cpu, time.Duration(after.Nano()-before.Nano()))
	}
	slices.Sort(took)
	slices.Sort(cpu)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "range-ms")
	b.ReportMetric(float64(cpu[len(cpu)/2].Microseconds())/1000, "range-cpu-ms")
}

// BenchmarkRange adds UDP 10000 to 20000 of a Service: as a range, and as 10,001 ports of the Service, in turn.
func BenchmarkRange(b *testing.B) {
	kerneltest.Require(b, kerneltest.NFTables)
	ns, err := lab.NewNamespace()
	if err != nil {
		b.Fatal(err)
	}
	defer ns.Close()
	k, err := New(dataplane.Config{NetNS: ns.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit})
	if err != nil {
		b.Fatal(err)
	}
	defer k.Close()
	s := desired.New(inCluster("10.244.0.0/16", "fd00:244::/32"))
	ranged(s, 1)
	dataplanetest.Reconcile(b, k, s)
	service := func() *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "media"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.8.8", Ports: []corev1.ServicePort{{Name: "one", Port: 9}}}}
	}
	asRange, asPorts := service(), service()
	asRange.Annotations = map[string]string{desired.AnnotationPortRanges: "udp/10000-20000"}
	for port := int32(10000); port <= 20000; port++ {
		asPorts.Spec.Ports = append(asPorts.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", port), Port: port, Protocol: corev1.ProtocolUDP})
	}
	var took [2][]time.Duration
	for b.Loop() {
		for i, with := range []*corev1.Service{asRange, asPorts} {
			for _, svc := range []*corev1.Service{service(), with} {
				s.SetService(svc)
				change, start := s.Change(), time.Now()
				if _, err := k.Apply(b.Context(), &change.Change); err != nil {
					b.Fatal(err)
				}
				if svc == with {
					took[i] = append(took[i], time.Since(start))
				}
			}
		}
	}
	for i, unit := range []string{"range-ms", "ports-ms"} {
		slices.Sort(took[i])
		b.ReportMetric(float64(took[i][len(took[i])/2].Microseconds())/1000, unit)
	}
}

// BenchmarkRangeConnection measures the processor's time for the first packet of a connection to a port, and to the
// same endpoint's port through a range, in turn. It needs -benchtime 20x.
func BenchmarkRangeConnection(b *testing.B) {
	l := newLimited(b, nil)
	l.state.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: map[string]string{desired.AnnotationPortRanges: "udp/9-10008"}},
		Spec:       corev1.ServiceSpec{ClusterIP: webKey(1).Addr().String(), Ports: []corev1.ServicePort{{Name: "udp", Port: 80, Protocol: corev1.ProtocolUDP}}},
	})
	dataplanetest.Reconcile(b, l.Dataplane, l.state)
	const n = 1000
	var took [2][]int64
	for i := 1; b.Loop(); i += 2 * n {
		for kind, port := range []uint16{80, 9} {
			var before, after unix.Timespec
			err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &before)
			l.floodTo(netip.AddrPortFrom(webKey(1).Addr(), port), i+kind*n, n, 1)
			if err := errors.Join(err, unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &after)); err != nil {
				b.Fatal(err)
			}
			took[kind] = append(took[kind], (after.Nano()-before.Nano())/n)
		}
	}
	for kind, unit := range []string{"port-cpu-ns", "range-cpu-ns"} {
		slices.Sort(took[kind])
		b.ReportMetric(float64(took[kind][len(took[kind])/2]), unit)
	}
}
