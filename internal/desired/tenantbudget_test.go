// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// addService adds a Service with ports and endpoints.
func addService(s *State, namespace string, i, ports, endpoints int, spec corev1.ServiceSpec, annotations map[string]string, weight string) {
	name := fmt.Sprint("s", i)
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: annotations}, Spec: spec}
	svc.Spec.ClusterIPs = []string{fmt.Sprintf("10.%d.%d.%d", 100+len(namespace), i>>8, i&255), fmt.Sprintf("fd00:96:%x::%x", len(namespace), i)}
	slice := func(format string) *discoveryv1.EndpointSlice {
		out := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4,
		}
		if weight != "" {
			out.Annotations = map[string]string{AnnotationWeight: weight}
		}
		for i := range endpoints {
			out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf(format, i>>8, i&255)}})
		}
		return out
	}
	v4, v6 := slice("10.244.%d.%d"), slice("fd00:244::%x:%x")
	v6.Name, v6.AddressType = name+"-v6", discoveryv1.AddressTypeIPv6
	for i := range ports {
		port := fmt.Sprint("p", i)
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: port, Port: int32(i + 1)})
		for _, sl := range []*discoveryv1.EndpointSlice{v4, v6} {
			sl.Ports = append(sl.Ports, discoveryv1.EndpointPort{Name: ptr.To(port), Port: ptr.To(int32(i + 1))})
		}
	}
	s.SetService(svc)
	s.SetEndpointSlice(v4)
	s.SetEndpointSlice(v6)
}

// served returns the Services that have a frontend, and those that have an algorithm other than Random.
func served(s *State) (all, special []string) {
	s.ViewServices(nil, false, func(v *ServiceView) {
		all = append(all, v.Namespace+"/"+v.Name)
		if v.Ports[0].Pools[0].Algorithm != Random.String() {
			special = append(special, v.Namespace+"/"+v.Name)
		}
	})
	slices.Sort(all)
	slices.Sort(special)
	return all, special
}

// TestHonestServices: 10,000 Services of every kind, in one namespace, meet no limit.
func TestHonestServices(t *testing.T) {
	s := New(Config{NodeName: "n1", Loads: &given{}})
	affine := corev1.ServiceSpec{SessionAffinity: corev1.ServiceAffinityClientIP}
	for i := range 10000 {
		spec, ports, endpoints, weight := corev1.ServiceSpec{}, 1+i%3, 1+i%20, ""
		var annotations map[string]string
		switch i % 100 {
		case 0:
			annotations = map[string]string{AnnotationScheduler: "maglev"}
			ports, endpoints = 1, 1+i/100%10
		case 1, 2:
			annotations = map[string]string{AnnotationScheduler: "lc"}
		case 3, 4:
			annotations = map[string]string{AnnotationScheduler: "rr"}
		case 5:
			weight = "30"
		case 6:
			if spec = both; i == 6 {
				ports, endpoints = 3, 5000
			}
		case 7, 8:
			spec = affine
		case 9:
			annotations = map[string]string{AnnotationSlowStart: "60s"}
		case 10:
			annotations = map[string]string{AnnotationOutliers: EjectOutliers}
		case 11, 12:
			annotations = map[string]string{AnnotationMaxConnections: fmt.Sprint(1000 * (1 + i%4)), AnnotationMaxPerClient: "100", AnnotationRatePerClient: "50/s"}
		case 13, 14:
			annotations, spec = map[string]string{AnnotationPortRanges: "udp/10000-20000, tcp/3000-3100"}, affine
		case 15:
			annotations = map[string]string{AnnotationFailover: "passthrough"}
			spec.ExternalIPs = []string{fmt.Sprintf("203.0.%d.%d", i>>8, i&255)}
		case 16:
			annotations = map[string]string{AnnotationLocalZone: "80", AnnotationFastPath: "off"}
		}
		if i%100 == 0 && i >= 2500 || i%200 == 116 { // rather few: 25 tables in two families, and 50 of slots for zones
			annotations = nil
		}
		addService(s, "default", i, ports, endpoints, spec, annotations, weight)
	}
	u := s.Full()
	all, special := served(s)
	if len(u.Problems) != 0 || len(all) != 10000 || len(special) != 425 {
		t.Errorf("%d Services, %d of them special, problems %v", len(all), len(special), u.Problems)
	}
	for _, b := range []budget{s.slots, s.elements} {
		if b.tenants["default"].sorted != nil {
			t.Error("a change costs more the more Services there are: their needs are kept in order")
		}
	}
}

// TestNamespaceSlots: the Services of a namespace that have the most slots lose them, and those of others keep theirs.
func TestNamespaceSlots(t *testing.T) {
	s := New(Config{NamespaceSlots: 100000})
	maglev := map[string]string{AnnotationScheduler: "maglev"}
	want := func(what string, problems int, special ...string) {
		t.Helper()
		u := s.Change()
		if _, got := served(s); !slices.Equal(got, special) || len(u.Problems) != problems {
			t.Errorf("%s: %v; want %v; problems %v", what, got, special, u.Problems)
		}
	}
	addService(s, "victim", 1, 1, 5, corev1.ServiceSpec{}, maglev, "")
	addService(s, "x", 1, 2, 5, corev1.ServiceSpec{}, maglev, "")
	want("few", 0, "victim/s1", "x/s1")
	addService(s, "x", 2, 10, 5, corev1.ServiceSpec{}, maglev, "") // 81,860
	addService(s, "x", 3, 1, 5, corev1.ServiceSpec{}, maglev, "")
	want("many", 1, "victim/s1", "x/s1", "x/s3")
	addService(s, "x", 1, 1, 1, corev1.ServiceSpec{}, nil, "")
	want("one less", 0, "victim/s1", "x/s2", "x/s3")
	s.DeleteService("x", "s2")
	want("none is over", 0, "victim/s1", "x/s3")
	// All namespaces together.
	for i := range 2 * namespacesSlots {
		addService(s, "y"+fmt.Sprint("-", i), 100+i, 10, 5, corev1.ServiceSpec{}, maglev, "")
	}
	want("many namespaces", 2*namespacesSlots, "victim/s1", "x/s3")
	if s.slots.level != 50000 {
		t.Errorf("a namespace may have %d", s.slots.level)
	}
	for i := range 2 * namespacesSlots {
		s.DeleteService("y"+fmt.Sprint("-", i), fmt.Sprint("s", 100+i))
	}
	if want("as before", 0, "victim/s1", "x/s3"); s.slots.level != s.slots.each {
		t.Errorf("a namespace may have %d", s.slots.level)
	}
	// What the configuration wants does not count.
	s = New(Config{NamespaceSlots: 100000, Balancing: Scheduler{Algorithm: Maglev}})
	for i := range 20 {
		addService(s, "x", i, 1, 5, corev1.ServiceSpec{}, nil, "")
	}
	if u := s.Full(); len(u.Problems) != 0 {
		t.Error(u.Problems)
	}
}

// TestNamespaceElements: a Service that needs millions of frontends or backends is left out, before it costs that much
// memory, and others are not.
func TestNamespaceElements(t *testing.T) {
	s, m := New(Config{NamespaceElements: 1000}), newModel()
	want := func(what string, problems int, services ...string) {
		t.Helper()
		u := s.Change()
		if err := m.apply(u); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if got, _ := served(s); !slices.Equal(got, services) || len(u.Problems) != problems {
			t.Errorf("%s: %v; want %v; problems %v", what, got, services, u.Problems)
		}
	}
	addService(s, "victim", 1, 1, 5, corev1.ServiceSpec{}, nil, "")
	addService(s, "x", 1, 5, 5, corev1.ServiceSpec{}, nil, "")
	want("few", 0, "victim/s1", "x/s1")
	addService(s, "x", 2, 10, 48, corev1.ServiceSpec{}, nil, "") // 990
	want("many endpoints", 1, "victim/s1", "x/s1")
	if len(m.pools) != 2*(1+5) {
		t.Errorf("%d pools", len(m.pools))
	}
	addService(s, "x", 2, 10, 40, corev1.ServiceSpec{}, nil, "")
	want("less endpoints", 0, "victim/s1", "x/s1", "x/s2")
	var external []string
	for i := range 100 {
		external = append(external, fmt.Sprint("192.0.2.", i+1))
	}
	addService(s, "x", 2, 10, 1, corev1.ServiceSpec{ExternalIPs: external}, nil, "")
	want("many external IPs", 1, "victim/s1", "x/s1")
	s.DeleteService("x", "s2")
	want("deleted", 0, "victim/s1", "x/s1")
	for _, slice := range []string{"s2", "s2-v6"} {
		s.DeleteEndpointSlice("x", slice)
	}
	if len(s.services) != 2 || len(s.elements.tenants["x"].needs) != 1 || len(s.elements.tenants) != 2 {
		t.Errorf("%d records, %d that count", len(s.services), len(s.elements.tenants["x"].needs))
	}
}

// TestNamespaceRanges: the Services of a namespace with the most ranges of ports lose these, and keep their ports. Those of
// others keep theirs.
func TestNamespaceRanges(t *testing.T) {
	s, m := New(Config{}), newModel()
	want := func(what string, problems int, ranges map[string]int) {
		t.Helper()
		u := s.Change()
		for u.Rebuild {
			u = s.Full()
		}
		if err := m.apply(u); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		got, ports := map[string]int{}, map[string]int{}
		for _, f := range m.frontends {
			if name := f.Service.Owner().String(); f.IsRange() {
				got[name]++
			} else {
				ports[name]++
			}
		}
		if !maps.Equal(got, ranges) || len(u.Problems) != problems || len(ports) != s.Services() {
			t.Errorf("%s: ranges %v, want %v; ports %v; problems %v", what, got, ranges, ports, u.Problems)
		}
	}
	spec := func(addresses int) (spec corev1.ServiceSpec) {
		for i := range addresses - 2 {
			spec.ExternalIPs = append(spec.ExternalIPs, fmt.Sprintf("198.18.%d.%d", addresses, i))
		}
		return spec
	}
	var all []string
	for i := range 16 {
		all = append(all, fmt.Sprintf("udp/%d-%d", 1000+10*i, 1005+10*i))
	}
	ranges := map[string]string{AnnotationPortRanges: strings.Join(all, ",")}
	addService(s, "victim", 1, 1, 1, corev1.ServiceSpec{}, ranges, "")
	addService(s, "x", 1, 1, 1, spec(30), ranges, "")
	addService(s, "x", 2, 1, 1, spec(34), ranges, "")
	s.Full()
	m.apply(s.Full())
	want("all that there may be", 0, map[string]int{"victim/s1": 32, "x/s1": 480, "x/s2": 544})
	addService(s, "x", 3, 1, 1, corev1.ServiceSpec{}, ranges, "")
	want("more", 1, map[string]int{"victim/s1": 32, "x/s1": 480, "x/s3": 32})
	addService(s, "x", 2, 1, 1, spec(33), ranges, "")
	want("still more", 0, map[string]int{"victim/s1": 32, "x/s1": 480, "x/s3": 32})
	s.DeleteService("x", "s1")
	want("less", 0, map[string]int{"victim/s1": 32, "x/s2": 528, "x/s3": 32})
	for i := range 500 {
		addService(s, "y", i, 1, 0, corev1.ServiceSpec{}, ranges, "")
	}
	s.Change()
	if n := len(s.ranges.tenants["y"].needs); s.ranges.tenants["y"].kept > MaxRanges || n != 500 {
		t.Errorf("%d Services have %d ranges", n, s.ranges.tenants["y"].kept)
	}
}

// TestOverBothBudgets has one update take a Service over both budgets, of elements and of ranges, and from one to the
// other. Each time one Problem says what has become of the Service.
func TestOverBothBudgets(t *testing.T) {
	s := New(Config{NamespaceElements: 1000})
	s.ranges = newBudget(8, 0, namespacesRanges)
	ranges := []string{"udp/1000-1010", "udp/2000-2010", "udp/3000-3010", "udp/4000-4010", "udp/5000-5010"}
	want := func(ports, ranged int, problems ...string) {
		t.Helper()
		addService(s, "x", 1, ports, 0, corev1.ServiceSpec{}, map[string]string{AnnotationPortRanges: strings.Join(ranges[:ranged], ",")}, "")
		u := s.Change()
		for u.Rebuild {
			u = s.Full()
		}
		ok := len(u.Problems) == len(problems)
		for i := 0; ok && i < len(problems); i++ {
			ok = strings.Contains(u.Problems[i].Reason, problems[i])
		}
		if !ok {
			t.Errorf("%d ports, %d ranges: problems %v, want %q", ports, ranged, u.Problems, problems)
		}
	}
	const leftOut, without = "is left out", "served without its ranges"
	want(1, 1)
	want(500, 5, leftOut)
	want(500, 1) // still over the elements
	want(501, 5) // over both again, but it is left out
	want(1, 5, without)
	want(1, 1)
	want(500, 1, leftOut)
	want(1, 5, without)
}

// TestSmallServicesMakeNoRoom has a thousand Services that need little. A large one has not more room because of them.
func TestSmallServicesMakeNoRoom(t *testing.T) {
	s := New(Config{})
	for i := range 1000 {
		addService(s, "x", i, 1, 1, corev1.ServiceSpec{}, nil, "")
	}
	endpoints := MaxElements / 2 / 20 // in two families, and there are frontends
	addService(s, "x", 1000, 20, endpoints, corev1.ServiceSpec{}, nil, "")
	if all, _ := served(s); len(all) != 1001 {
		t.Errorf("%d Services are served", len(all))
	}
	addService(s, "x", 1000, 20, endpoints+10, corev1.ServiceSpec{}, nil, "")
	if all, _ := served(s); len(all) != 1000 {
		t.Errorf("%d Services are served", len(all))
	}
	for what, spec := range map[string]corev1.ServiceSpec{
		"session affinity": {SessionAffinity: corev1.ServiceAffinityClientIP}, "a local policy": {ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal},
	} { // which have more elements for each endpoint
		for n, want := range map[int]int{endpoints/2 - 10: 1001, endpoints: 1000} {
			addService(s, "x", 1000, 20, n, spec, nil, "")
			if all, _ := served(s); len(all) != want {
				t.Errorf("%s: %d Services are served", what, len(all))
			}
		}
	}
}

// TestLargeChangeIsSplit has 65,000 endpoints of a Service replaced, and then one of another namespace. The first change
// has that, and few of the others. All follow, and no pool has fewer endpoints meanwhile.
func TestLargeChangeIsSplit(t *testing.T) {
	s, m := New(Config{NodeName: "n1"}), newModel()
	apply := func(u *Update) {
		t.Helper()
		if err := m.apply(u); err != nil {
			t.Fatal(err)
		}
	}
	large := func(from int) {
		sl := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "x", Name: "s1", Labels: map[string]string{discoveryv1.LabelServiceName: "s1"}},
			AddressType: discoveryv1.AddressTypeIPv4,
		}
		for p := range 65 {
			sl.Ports = append(sl.Ports, discoveryv1.EndpointPort{Name: ptr.To(fmt.Sprint("p", p)), Port: ptr.To(int32(p + 1))})
		}
		for i := range 1000 {
			sl.Endpoints = append(sl.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.1.%d.%d", (from+i)>>8, (from+i)&255)}})
		}
		s.SetEndpointSlice(sl)
	}
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "s1"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.1.1"}}
	for p := range 65 {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", p), Port: int32(p + 1)})
	}
	s.SetService(svc)
	large(0)
	addService(s, "victim", 1, 1, 1, corev1.ServiceSpec{}, nil, "")
	apply(s.Full())
	large(1000)
	if n := len(s.pools[0].of.touched); n != 2000 || len(s.moves) < 60 {
		t.Errorf("%d endpoints of a port have changed; %d ports wait", n, len(s.moves))
	}
	addService(s, "victim", 1, 1, 2, corev1.ServiceSpec{}, nil, "")
	changes, replaced := 0, 0
	for ; changes == 0 || s.Pending(); changes++ {
		u, n, victim := s.Change(), 0, false
		apply(u)
		for _, p := range u.Pools {
			if n += len(p.Added) + len(p.Removed); p.Service.Namespace == "victim" {
				victim = true
			} else if len(p.Added) != len(p.Removed) {
				t.Errorf("%d of a pool are added, %d removed", len(p.Added), len(p.Removed))
			}
		}
		if replaced += n; n > MaxChange+10 || changes == 0 != victim || s.Postpones("victim") {
			t.Errorf("change %d has %d endpoints; of the victim: %t", changes, n, victim)
		}
	}
	if fresh := newModel(); replaced < 130000 || changes > 130000/MaxChange+2 || fresh.apply(s.Full()) != nil || fresh.String() != m.String() {
		t.Errorf("%d changes with %d endpoints", changes, replaced)
	}
}

// TestNewTablesAreSplit: all Service ports that come have endpoints at once, and one after the other gets its Maglev table.
// Those that go lose theirs one after the other, too. Nobody else waits for all of them.
func TestNewTablesAreSplit(t *testing.T) {
	s, m := New(Config{NodeName: "n1"}), newModel()
	if err := m.apply(s.Full()); err != nil {
		t.Fatal(err)
	}
	apply := func(what string, endpoints, most int) {
		t.Helper()
		addService(s, "victim", 1, 1, endpoints, corev1.ServiceSpec{}, nil, "")
		changes := 0
		for ; changes == 0 || s.Pending(); changes++ {
			u, slots, victim := s.Change(), 0, false
			for _, p := range u.Pools {
				if p.Gone {
					slots += int(m.pools[p.ID].balance.TableSize)
				}
				slots += int(p.TableSize)
				victim = victim || p.Service.Namespace == "victim"
			}
			if err := m.apply(u); err != nil || len(u.Problems) > 0 {
				t.Fatalf("%s: %v %v", what, err, u.Problems)
			}
			if changes == 0 != victim || slots > 16381 {
				t.Errorf("%s: change %d has %d slots; of the victim: %t", what, changes, slots, victim)
			}
			for _, f := range m.frontends {
				if len(m.pools[f.Pool].backends) == 0 {
					t.Fatalf("%s: %s has no endpoint", what, f.FrontendKey)
				}
			}
		}
		if fresh := newModel(); changes > most || fresh.apply(s.Full()) != nil || fresh.String() != m.String() {
			t.Errorf("%s: %d changes, and the content is that of a start: %t", what, changes, fresh.String() == m.String())
		}
	}
	addService(s, "x", 1, 4, 1000, corev1.ServiceSpec{}, maglev, "")
	apply("created", 1, 35)
	s.DeleteService("x", "s1")
	addService(s, "x", 2, 4, 1000, corev1.ServiceSpec{}, maglev, "")
	apply("replaced", 2, 45)
	s.DeleteService("x", "s2")
	apply("deleted", 3, 15)
}

// TestEndOfTablesIsSplit: Maglev tables that go cost as much as those that come. Events of the namespace do not wait for
// what has become due meanwhile.
func TestEndOfTablesIsSplit(t *testing.T) {
	s, m := New(Config{NodeName: "n1", NamespaceChange: 8}), newModel()
	for _, scheduler := range []string{"maglev", "random"} {
		for i := range 9 {
			addService(s, "x", i, 1, 2, corev1.ServiceSpec{}, map[string]string{AnnotationScheduler: scheduler}, "")
		}
		if scheduler == "maglev" {
			if err := m.apply(s.Full()); err != nil {
				t.Fatal(err)
			}
		}
	}
	changes := 0
	for ; changes == 0 || s.Postpones("x"); changes++ {
		u := s.Change()
		if err := m.apply(u); err != nil || len(u.Pools) > 1 || changes > 18 {
			t.Fatalf("change %d has %d pools, of which each loses a table: %v", changes, len(u.Pools), err)
		}
		for _, svc := range s.services { // as loads do
			s.markDirty(svc.ports[0].endpoints[IPv4])
		}
	}
	if changes < 17 || !s.Pending() {
		t.Errorf("%d changes, pending: %t", changes, s.Pending())
	}
}

// TestHealthCheckWaits: a load balancer hears of a local endpoint when connections can go to it.
func TestHealthCheckWaits(t *testing.T) {
	s := New(Config{NodeName: "n1", NamespaceChange: 1})
	spec := corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, HealthCheckNodePort: 30000}
	addService(s, "x", 1, 1, 1, corev1.ServiceSpec{}, nil, "")
	addService(s, "x", 2, 1, 0, spec, nil, "")
	s.Full()
	addService(s, "x", 1, 1, 2, corev1.ServiceSpec{}, nil, "")
	local := func(u *Update) (pools, checks int) {
		for _, p := range u.Pools {
			if p.Service.Name == "s2" {
				pools++
			}
		}
		return pools, len(u.Health)
	}
	s.SetEndpointSlice(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "x", Name: "local", Labels: map[string]string{discoveryv1.LabelServiceName: "s2"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: ptr.To("p0"), Port: ptr.To[int32](1)}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.1"}, NodeName: ptr.To("n1")}},
	})
	told := false
	for range 5 {
		if pools, checks := local(s.Change()); checks > 0 {
			told = true
			if s.Pending() {
				t.Errorf("a health check has changed while endpoints of its namespace are not programmed")
			}
		} else if pools > 0 && !s.Pending() {
			t.Error("the endpoint is programmed, and the health check has not changed")
		}
	}
	if !told {
		t.Error("the health check has not changed")
	}
}

// TestSuccessorsAreWhole: frontends that were there are not led to a pool with a part of the endpoints, whatever else changes.
func TestSuccessorsAreWhole(t *testing.T) {
	s := New(Config{NodeName: "n1"})
	spec := corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ExternalIPs: []string{"192.0.2.1"}}
	for i := range 3 {
		addService(s, "x", i, 1, 800, spec, nil, "")
	}
	s.Full()
	for _, edit := range []func(){
		func() { spec.SessionAffinity = corev1.ServiceAffinityClientIP },
		func() { spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal },
		func() { spec.SessionAffinity, spec.ExternalTrafficPolicy = "", "" },
	} {
		edit()
		for i := range 3 {
			addService(s, "x", i, 1, 900, spec, nil, "")
		}
		for first := true; first || s.Pending(); first = false {
			added := 0
			for _, p := range s.Change().Pools {
				added += len(p.Added)
			}
			if added > 900+MaxChange {
				t.Errorf("a change adds %d endpoints", added)
			}
			pools := map[PoolID]int{}
			for _, p := range s.Reported().Pools {
				pools[p.ID] = len(p.Added)
			}
			for _, f := range s.Reported().Frontends {
				if n := pools[f.New.Pool]; n < 800 {
					t.Fatalf("%s has %d endpoints", f.New.FrontendKey, n)
				}
			}
		}
	}
}

// TestReplacedPortsWait: of large ports that replace others of their Service, one comes after the other, and frontends lead
// to the former ones until then. Nothing of another Service waits, also if its frontend is taken.
func TestReplacedPortsWait(t *testing.T) {
	s, m := New(Config{NodeName: "n1"}), newModel()
	spec := corev1.ServiceSpec{ExternalIPs: []string{"192.0.2.1"}}
	addService(s, "a", 1, 1, 2, spec, nil, "") // the older one, which has port 1 of the address
	addService(s, "x", 2, 1, 300, corev1.ServiceSpec{}, nil, "")
	addService(s, "x", 3, 8, 300, spec, nil, "")
	if err := m.apply(s.Full()); err != nil {
		t.Fatal(err)
	}
	s.DeleteService("a", "s1")
	addService(s, "x", 2, 1, 300, corev1.ServiceSpec{SessionAffinity: corev1.ServiceAffinityClientIP}, nil, "")
	spec.SessionAffinity = corev1.ServiceAffinityClientIP
	addService(s, "x", 3, 8, 300, spec, nil, "")
	changes := 0
	for ; changes == 0 || s.Pending(); changes++ {
		c, added := s.Change(), 0
		for _, p := range c.Pools {
			added += len(p.Added)
		}
		if err := m.apply(c); err != nil {
			t.Fatal(err)
		}
		if added > 300+MaxChange || s.Postpones("a") {
			t.Errorf("a change adds %d endpoints; other namespaces wait: %t", added, s.Postpones("a"))
		}
		for _, f := range m.frontends {
			if n := len(m.pools[f.Pool].backends); n != 300 {
				t.Errorf("%s has %d endpoints", f.FrontendKey, n)
			}
		}
	}
	fresh := newModel()
	if err := fresh.apply(s.Full()); err != nil || fresh.String() != m.String() || changes < 8 {
		t.Errorf("the %d changes are not the full content (%v)", changes, err)
	}
}
