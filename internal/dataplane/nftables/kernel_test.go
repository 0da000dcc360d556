// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// kernel is a network namespace, and a backend in it.
type kernel struct {
	*Dataplane
	ns *lab.Namespace
	t  *testing.T
}

func newKernel(t *testing.T) *kernel {
	kerneltest.Require(t, kerneltest.NFTables)
	ns, err := lab.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	k := &kernel{ns: ns, t: t}
	t.Cleanup(func() {
		if err := errors.Join(k.Close(), ns.Close()); err != nil {
			t.Error(err)
		}
	})
	k.Dataplane = k.open()
	return k
}

// slow skips a test on User Mode Linux, where it takes more than ten seconds: it is about what Slipstream writes and finds,
// which the kernel's version does not change.
func slow(t *testing.T) {
	if kerneltest.UML() {
		t.Skip("slow: runs on the machine's own kernel")
	}
}

// open makes another backend in the same namespace, as another run would.
func (k *kernel) open() *Dataplane {
	b, err := New(dataplane.Config{NetNS: k.ns.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit})
	if err != nil {
		k.t.Fatal(err)
	}
	return b
}

// dial opens a connection to nf_tables, as another program would.
func (k *kernel) dial() *nfnl.Conn {
	k.t.Helper()
	conn, err := nfnl.Dial(k.ns.FD())
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { conn.Close() })
	return conn
}

// has fails the test unless the kernel has what the state says.
func (k *kernel) has(s *desired.State) {
	k.t.Helper()
	dataplanetest.Has(k.t, k, s)
}

// nft runs the nft command in the namespace.
func (k *kernel) nft(args ...string) string {
	k.t.Helper()
	kerneltest.Require(k.t, kerneltest.NFTBinary)
	return dataplanetest.RunIn(k.t, k.ns, "", "nft", args...)
}

// commitElsewhere commits to another table all the time, until it is stopped, and
// says how often it did. After each commit there is a pause, after fifty a rest, too.
func (k *kernel) commitElsewhere(pause, rest time.Duration) (stop func() int) {
	other, err := nfnl.Dial(k.ns.FD())
	if err != nil {
		k.t.Fatal(err)
	}
	table := nfnl.Table{Family: nfnl.IPv4, Name: "other"}
	set := &nfnl.Set{Name: "x", KeyType: nfnl.TypeMark, KeyLen: 4}
	commits := make(chan int)
	ctx, cancel := context.WithCancel(k.t.Context())
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			var batch nfnl.Batch
			batch.AddTable(table, "")
			batch.AddSet(table, set)
			batch.AddElement(table, set, word(uint32(n)), nil, "")
			if err := other.Commit(0, &batch); err != nil {
				k.t.Error(err)
				break
			}
			time.Sleep(pause)
			if n%50 == 49 {
				time.Sleep(rest)
			}
		}
		other.Close()
		commits <- n
	}()
	return func() int {
		cancel()
		return <-commits
	}
}

// fancy sets a Service default/web-99 that has everything: external addresses,
// traffic policy, session affinity, source ranges; and a ServiceCIDR.
func fancy(s *desired.State) { fancyWith(s, func(*corev1.Service) {}) }

// fancyWith is fancy with a change.
func fancyWith(s *desired.State, change func(*corev1.Service)) {
	s.SetNodeAddresses([]netip.Addr{netip.MustParseAddr("192.168.100.11"), netip.MustParseAddr("fd00:100::11")})
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-99"},
		Spec: corev1.ServiceSpec{
			Type:                     corev1.ServiceTypeLoadBalancer,
			ClusterIPs:               []string{"10.96.99.1", "fd00:96::99:1"},
			ExternalIPs:              []string{"203.0.113.1", "2001:db8::1"},
			Ports:                    []corev1.ServicePort{{Port: 80, NodePort: 30080}},
			ExternalTrafficPolicy:    corev1.ServiceExternalTrafficPolicyLocal,
			SessionAffinity:          corev1.ServiceAffinityClientIP,
			LoadBalancerSourceRanges: []string{"192.168.0.0/16", "192.168.100.0/24", "172.16.0.0/12", "2001:db8:7::/48"},
		},
	}
	for _, ip := range []string{"203.0.113.2", "2001:db8::2"} {
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
	}
	web(s, 99, dataplanetest.Hosts(3)...)
	change(svc)
	s.SetService(svc)
	s.SetServiceCIDR(&networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16", "fd00:96::/108"}},
	})
}

// web sets Service default/web number i with endpoints at host numbers.
func web(s *desired.State, i int, hosts ...int) {
	name := fmt.Sprintf("web-%d", i)
	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{
			ClusterIPs: []string{fmt.Sprintf("10.96.%d.%d", i>>8, i&255), fmt.Sprintf("fd00:96::%x", i)},
			Ports:      []corev1.ServicePort{{Port: 80}},
		},
	})
	for family, format := range map[discoveryv1.AddressType]string{
		discoveryv1.AddressTypeIPv4: "10.244.1.%d", discoveryv1.AddressTypeIPv6: "fd00:244:1::%x",
	} {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: name + strings.ToLower(string(family)),
				Labels: map[string]string{discoveryv1.LabelServiceName: name},
			},
			AddressType: family,
			Ports:       []discoveryv1.EndpointPort{{Port: ptr.To[int32](8080)}},
		}
		for _, h := range hosts {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf(format, h)}})
		}
		s.SetEndpointSlice(slice)
	}
}

// TestConformance runs the tests that all dataplanes pass.
func TestConformance(t *testing.T) {
	dataplanetest.Conformance(t, desired.Config{}, 8, 16_000, func(t *testing.T) func() dataplanetest.Backend {
		k, step := newKernel(t), 1+rand.IntN(500)
		return func() dataplanetest.Backend {
			b := k.open()
			b.config.Step = step
			t.Cleanup(func() { b.Close() })
			return thorough{b}
		}
	})
}

// TestSecondStart starts over what an earlier run has left, with the same Services: chains and rules stay as they are,
// and elements are replaced in one transaction.
func TestSecondStart(t *testing.T) {
	k := newKernel(t)
	start := func(b *Dataplane) (rules string, generation uint32) {
		s := desired.New(inCluster("10.244.0.0/16", "fd00:244::/32"))
		web(s, 1, dataplanetest.Hosts(3)...)
		web(s, 2, dataplanetest.Hosts(7)...)
		dataplanetest.Reconcile(t, b, s)
		k.has(s)
		generation, err := k.conn.Generation()
		if err != nil {
			t.Fatal(err)
		}
		return k.nft("-a", "-t", "list", "ruleset"), generation
	}
	first, generation := start(k.Dataplane)
	next := k.open()
	defer next.Close()
	second, now := start(next)
	if second != first {
		t.Errorf("rules after the second start:\n%s\nbefore:\n%s", second, first)
	}
	if now != generation+1 {
		t.Errorf("the second start took %d transactions", now-generation)
	}
}

// TestReconcileTakesOver starts with different contents of an earlier run in the kernel.
func TestReconcileTakesOver(t *testing.T) {
	for name, leave := range map[string]func(k *kernel){
		"nothing": func(k *kernel) { k.nft("flush", "ruleset") },
		"an earlier run's Services": func(k *kernel) {
			s := desired.New(desired.Config{})
			web(s, 1, dataplanetest.Hosts(3)...)
			web(s, 7, dataplanetest.Hosts(20)...)
			dataplanetest.Reconcile(k.t, k.Dataplane, s)
		},
		"a table without rules": func(k *kernel) { k.nft("flush", "table", "ip", tableName) },
		"an emptied map":        func(k *kernel) { k.nft("flush", "map", "ip", tableName, "endpoints") },
		"a strange table":       func(k *kernel) { k.nft("delete", "table", "ip", tableName); k.nft("add", "table", "ip", tableName) },
		"a set of another type": func(k *kernel) { k.nft("delete", "table", "ip", tableName); k.strangeSet() },
		"another configuration": func(k *kernel) {
			dataplanetest.Reconcile(k.t, k.Dataplane, desired.New(inCluster("10.0.0.0/8", "fd00::/8")))
		},
		"another configuration without its seal": func(k *kernel) {
			dataplanetest.Reconcile(k.t, k.Dataplane, desired.New(inCluster("10.0.0.0/8", "fd00::/8")))
			there, err := k.conn.Contents(schemas[desired.IPv4].table)
			if err != nil {
				k.t.Fatal(err)
			}
			for _, c := range there.Chains {
				if strings.HasPrefix(c.Name, sealPrefix) {
					k.nft("delete", "chain", "ip", tableName, c.Name)
				}
			}
		},
		"one family only": func(k *kernel) { k.nft("delete", "table", "ip6", tableName) },
		"a foreign chain": func(k *kernel) { k.nft("add", "chain", "ip", tableName, "extra") },
		"a foreign rule":  func(k *kernel) { k.nft("add", "rule", "ip", tableName, "services", "drop") },
	} {
		t.Run(name, func(t *testing.T) {
			k := newKernel(t)
			dataplanetest.Reconcile(t, k.Dataplane, desired.New(desired.Config{}))
			leave(k)
			s := desired.New(inCluster("10.244.0.0/16", "fd00:244::/32"))
			web(s, 1, dataplanetest.Hosts(2)...)
			web(s, 2)
			next := k.open()
			defer next.Close()
			dataplanetest.Reconcile(t, next, s)
			k.has(s)
			if err := next.Check(t.Context()); err != nil {
				t.Error(err)
			}
			k.sameRules(next, s)
			web(s, 1, dataplanetest.Hosts(5)...)
			dataplanetest.Apply(t, next, s)
			k.has(s)
		})
	}
}

// inCluster is a configuration with ranges of pod addresses.
func inCluster(cidrs ...string) (c desired.Config) {
	for _, text := range cidrs {
		c.DetectLocal.CIDRs = append(c.DetectLocal.CIDRs, netip.MustParsePrefix(text))
	}
	return c
}

// TestReconcileKeepsTheTable makes sure that a table is replaced only when it
// must be, as that is not quite without a gap (which TestNothingFailsMeanwhile
// finds only now and then).
func TestReconcileKeepsTheTable(t *testing.T) {
	k := newKernel(t)
	s := desired.New(desired.Config{})
	web(s, 1, dataplanetest.Hosts(3)...)
	dataplanetest.Reconcile(t, k.Dataplane, s)
	handle := func() uint64 {
		info, err := k.conn.Table(schemas[desired.IPv4].table)
		if err != nil {
			t.Fatal(err)
		}
		return info.Handle
	}
	before := handle()
	next := k.open()
	defer next.Close()
	dataplanetest.Reconcile(t, next, s)
	if handle() != before {
		t.Error("the table was replaced though nothing differed")
	}
	next.config.MasqueradeBit++
	dataplanetest.Reconcile(t, next, s)
	if handle() != before {
		t.Error("the table was replaced for another configuration")
	}
	k.nft("flush", "chain", "ip", tableName, "services")
	dataplanetest.Reconcile(t, next, s)
	if handle() != before {
		t.Error("the table was replaced for missing rules")
	}
}

// sameRules fails the test unless the table has the rules, chains and sets that it would have
// after a start without any table. Only additions by others may remain.
func (k *kernel) sameRules(b *Dataplane, s *desired.State) {
	k.t.Helper()
	fresh := newKernel(k.t)
	fresh.config = b.config
	fresh.config.NetNS = fresh.ns.FD()
	dataplanetest.Reconcile(k.t, fresh.Dataplane, s)
	list := func(k *kernel) (rules []string) {
		for line := range strings.Lines(k.nft("-t", "list", "ruleset")) { // -t: without elements
			rules = append(rules, strings.TrimSpace(line))
		}
		slices.Sort(rules) // chains are listed in the order in which they were made
		return slices.Compact(rules)
	}
	got, want := list(k), list(fresh)
	for _, line := range want {
		if !slices.Contains(got, line) {
			k.t.Errorf("missing in the ruleset: %s", line)
		}
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			k.t.Errorf("too much in the ruleset: %s", line)
		}
	}
}

// strangeSet makes our table with another kind of set in it.
func (k *kernel) strangeSet() {
	s := schemas[desired.IPv4]
	var batch nfnl.Batch
	batch.AddTable(s.table, tableComment)
	batch.AddSet(s.table, &nfnl.Set{Name: s.hairpin.Name, KeyType: nfnl.TypeMark, KeyLen: 4})
	if err := k.conn.Commit(0, &batch); err != nil {
		k.t.Fatal(err)
	}
}

// TestCheckFindsDamage modifies our tables in all ways that other programs could.
func TestCheckFindsDamage(t *testing.T) {
	for _, damage := range []string{
		"flush ruleset",
		"delete table ip slipstream",
		"flush table ip6 slipstream",
		"flush chain ip slipstream services",
		"flush map ip slipstream frontends",
		"flush map ip slipstream endpoints",
		"flush map ip6 slipstream pools",
		"flush set ip slipstream cluster-ips",
		"flush map ip slipstream picks",
		"add table ip slipstream { flags dormant ; }",
	} {
		t.Run(damage, func(t *testing.T) {
			k := newKernel(t)
			s := desired.New(desired.Config{})
			web(s, 1, dataplanetest.Hosts(2)...)
			web(s, 2, dataplanetest.Hosts(1)...)
			dataplanetest.Reconcile(t, k.Dataplane, s)
			if err := k.Check(t.Context()); err != nil {
				t.Fatalf("before the damage: %v", err)
			}
			k.nft(strings.Fields(damage)...)
			if err := k.Check(t.Context()); !errors.Is(err, dataplane.ErrDamaged) {
				t.Fatalf("after the damage: %v", err)
			}
			dataplanetest.Reconcile(t, k.Dataplane, s)
			k.has(s)
			if err := k.Check(t.Context()); err != nil {
				t.Fatalf("after the repair: %v", err)
			}
		})
	}
}

// TestReplacedRules replaces rules in a way that keeps their number, and perhaps their handles.
// One Check must find that and one Reconcile repair it, in the process that wrote the rules and
// in the next one.
func TestReplacedRules(t *testing.T) {
	slow(t)
	for name, damage := range map[string]func(k *kernel){
		"as many others": func(k *kernel) {
			k.nft("flush", "chain", "ip", tableName, "check-source")
			k.nft("add", "rule", "ip", tableName, "check-source", "accept")
			k.nft("add", "rule", "ip", tableName, "check-source", "accept")
		},
		"one in place": func(k *kernel) {
			list := k.nft("-a", "list", "chain", "ip", tableName, "output")
			_, handle, _ := strings.Cut(list[strings.Index(list, "jump services"):], "# handle ")
			k.nft("replace", "rule", "ip", tableName, "output", "handle", strings.Fields(handle)[0], "accept")
		},
		"a policy":                             func(k *kernel) { k.nft("chain ip slipstream prerouting { policy drop; }") },
		"one more before ours":                 func(k *kernel) { k.nft("insert rule ip slipstream services ip daddr 10.96.0.1 accept") },
		"one more in a chain that jumps there": func(k *kernel) { k.nft("insert rule ip slipstream prerouting return") },
		"a chain of another with a hook": func(k *kernel) {
			k.nft("add chain ip slipstream other { type filter hook prerouting priority 0; policy drop; }")
		},
		"one that remembers": func(k *kernel) {
			k.nft("flush", "chain", "ip", tableName, rememberChain(10800))
		},
	} {
		for _, next := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, next process %t", name, next), func(t *testing.T) {
				k := newKernel(t)
				s := desired.New(desired.Config{})
				web(s, 1, dataplanetest.Hosts(2)...)
				fancy(s)
				dataplanetest.Reconcile(t, k.Dataplane, s)
				before := k.nft("-t", "list", "ruleset")
				damage(k)
				if k.nft("-t", "list", "ruleset") == before {
					t.Fatal("nothing was damaged")
				}
				b := k.Dataplane
				if next {
					b = k.open()
					defer b.Close()
				} else if err := k.Check(t.Context()); !errors.Is(err, dataplane.ErrDamaged) {
					t.Errorf("Check: %v", err)
				}
				dataplanetest.Reconcile(t, b, s)
				k.sameRules(b, s)
				if err := b.Check(t.Context()); err != nil {
					t.Errorf("Check after the repair: %v", err)
				}
			})
		}
	}
}

// TestNewTimeoutHidesNothing damages rules before a change that adds rules.
func TestNewTimeoutHidesNothing(t *testing.T) {
	k := newKernel(t)
	s := desired.New(desired.Config{})
	web(s, 1, dataplanetest.Hosts(2)...)
	dataplanetest.Reconcile(t, k.Dataplane, s)
	k.nft("flush", "chain", "ip", tableName, "postrouting")
	fancy(s)
	dataplanetest.Apply(t, k.Dataplane, s)
	if err := k.Check(t.Context()); !errors.Is(err, dataplane.ErrDamaged) {
		t.Errorf("Check: %v", err)
	}
}

// TestTimeoutsAreForgotten makes sure that the number of chains and rules for timeouts depends on
// the Services that exist, not on those that were, and that it is limited.
func TestTimeoutsAreForgotten(t *testing.T) {
	k := newKernel(t)
	s := desired.New(desired.Config{})
	web(s, 1, dataplanetest.Hosts(2)...)
	dataplanetest.Reconcile(t, k.Dataplane, s)
	sizes := func() (chains, rules int) {
		for f := range schemas {
			contents, err := k.conn.Contents(schemas[f].table)
			if err != nil {
				t.Fatal(err)
			}
			chains, rules = chains+len(contents.Chains), rules+len(contents.Rules)
		}
		return chains, rules
	}
	chains, rules := sizes()
	expect := func(after string, timeouts int) {
		t.Helper()
		dataplanetest.Apply(t, k.Dataplane, s)
		c, r := sizes()
		if n := timeouts * len(schemas); c-chains != n || r-rules != n*7 {
			t.Errorf("%s: %d more chains with %d rules; want %d with %d", after, c-chains, r-rules, n, n*7)
		}
		k.has(s)
		if err := k.Check(t.Context()); err != nil {
			t.Errorf("%s: %v", after, err)
		}
	}
	set := func(name string, ip, seconds int) {
		s.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: corev1.ServiceSpec{
				ClusterIPs:            []string{fmt.Sprintf("10.96.%d.%d", 50+ip/250, ip%250), fmt.Sprintf("fd00:96::50:%d", ip)},
				Ports:                 []corev1.ServicePort{{Port: 80}},
				SessionAffinity:       corev1.ServiceAffinityClientIP,
				SessionAffinityConfig: &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To(int32(seconds))}},
			},
		})
	}
	for seconds := 1; seconds < 86400; seconds = seconds*5/4 + 1 {
		set("changing", 1, seconds)
		expect(fmt.Sprint("a Service with ", seconds, " s"), 1)
	}
	set("another", 2, 10800)
	expect("another Service", 2)
	set("changing", 1, 10800)
	expect("two Services with the same", 1)
	s.DeleteService("default", "changing")
	expect("one deleted", 1)
	s.DeleteService("default", "another")
	expect("both deleted", 0)
	const services = 400
	for i := range services {
		set(fmt.Sprint("many-", i), 3+i, 1+i*i/2)
	}
	dataplanetest.Apply(t, k.Dataplane, s)
	if c, _ := sizes(); c-chains > 250*len(schemas) {
		t.Errorf("%d more chains for %d timeouts", c-chains, services)
	}
	for i := range services {
		s.DeleteService("default", fmt.Sprint("many-", i))
	}
	expect("many deleted", 0)
}

// TestCheckFindsMissingParts takes away single elements of a Service that has
// everything.
func TestCheckFindsMissingParts(t *testing.T) {
	v4 := &schemas[desired.IPv4]
	for _, set := range []*nfnl.Set{
		v4.external, v4.restricted, v4.addressSets[0].sticky, v4.nodePortSets[0].sticky, v4.nodeAddresses, v4.members, v4.clusterIPs, v4.pools, v4.remember,
		v4.addressSets[desired.Cluster].frontends, v4.addressSets[desired.Local].frontends, v4.addressSets[desired.Cluster].endpoints,
		v4.nodePortSets[desired.Cluster].frontends, v4.nodePortSets[desired.Local].frontends,
	} {
		t.Run(set.Name, func(t *testing.T) {
			k := newKernel(t)
			s := desired.New(desired.Config{})
			fancy(s)
			web(s, 1, dataplanetest.Hosts(1)...)
			dataplanetest.Reconcile(t, k.Dataplane, s)
			var batch nfnl.Batch
			known := map[string]bool{} // one can come twice
			err := k.conn.Elements(v4.table, set.Name, func(e nfnl.Element) {
				if !known[string(e.Key)] {
					known[string(e.Key)] = true
					batch.DeleteElement(v4.table, set, e.Key)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := k.dial().Commit(0, &batch); err != nil {
				t.Fatal(err)
			}
			if err := k.Check(t.Context()); !errors.Is(err, dataplane.ErrDamaged) {
				t.Errorf("Check: %v", err)
			}
		})
	}
}

// TestCheckFindsMissingElement takes a single element away: the one of a pool, and the one of each slot in turn. Check notices it
// once it has looked up all, also while other programs go on committing.
func TestCheckFindsMissingElement(t *testing.T) {
	const services, slots = 200, 5
	k := newKernel(t)
	other := k.dial()
	s := desired.New(desired.Config{})
	for i := range services {
		web(s, i, dataplanetest.Hosts(slots)...)
	}
	v4 := &schemas[desired.IPv4]
	for slot := -1; slot < slots; slot++ {
		dataplanetest.Reconcile(t, k.Dataplane, s)
		id := k.poolOf(t, "web-77")
		set, key, checks := v4.pools, word(k.writer.number(id)), 2*services/(2*sampleSize)
		if slot >= 0 {
			set, key, checks = v4.addressSets[desired.Cluster].endpoints, number(word(k.writer.number(id)), uint32(slot)), 2*services*slots/(2*sampleSize)
		}
		var batch nfnl.Batch
		batch.DeleteElement(v4.table, set, key)
		if err := other.Commit(0, &batch); err != nil {
			t.Fatal(err)
		}
		var err error
		for range checks + 1 {
			if err = k.Check(t.Context()); err != nil {
				break
			}
			var batch nfnl.Batch
			batch.AddTable(nfnl.Table{Family: nfnl.IPv4, Name: "other"}, "")
			batch.DeleteTable(nfnl.Table{Family: nfnl.IPv4, Name: "other"})
			if err := other.Commit(0, &batch); err != nil {
				t.Fatal(err)
			}
		}
		if !errors.Is(err, dataplane.ErrDamaged) || !strings.Contains(err.Error(), "default/web-77") {
			t.Errorf("slot %d: Check: %v", slot, err)
		}
	}
}

// TestDamageBeforeReset deletes a table right after a commit.
func TestDamageBeforeReset(t *testing.T) {
	k := newKernel(t)
	s := desired.New(desired.Config{})
	web(s, 1, dataplanetest.Hosts(3)...)
	dataplanetest.Reconcile(t, k.Dataplane, s)
	generation, err := k.conn.Generation()
	if err != nil {
		t.Fatal(err)
	}
	k.nft("delete", "table", "ip", tableName)
	if err := k.detector.reset(k.Dataplane, generation, &skeletons{{}, {}}, [len(schemas)]bool{}); err != nil {
		t.Fatal(err)
	}
	if err := k.Check(t.Context()); !errors.Is(err, dataplane.ErrDamaged) {
		t.Errorf("Check: %v", err)
	}
}

// TestSharedCommits has a connection that shares the dataplane's Commits, as the fast path's
// does, commit to another table. That must not make Check read the tables.
func TestSharedCommits(t *testing.T) {
	k := newKernel(t)
	s := desired.New(desired.Config{})
	web(s, 1, dataplanetest.Hosts(3)...)
	dataplanetest.Reconcile(t, k.Dataplane, s)
	shared, other := k.dial(), k.dial()
	shared.Share(k.Commits())
	dumps := func(conn *nfnl.Conn) int {
		t.Helper()
		var batch nfnl.Batch
		batch.AddTable(nfnl.Table{Family: nfnl.IPv4, Name: "other"}, "")
		batch.DeleteTable(nfnl.Table{Family: nfnl.IPv4, Name: "other"})
		if err := conn.Commit(0, &batch); err != nil {
			t.Fatal(err)
		}
		before := k.conn.Dumps
		if err := k.Check(t.Context()); err != nil {
			t.Error(err)
		}
		return k.conn.Dumps - before
	}
	for range 3 {
		if n := dumps(shared); n != 0 {
			t.Errorf("%d dumps after a commit that is counted", n)
		}
		web(s, 1, dataplanetest.Hosts(rand.IntN(9))...)
		dataplanetest.Apply(t, k.Dataplane, s)
	}
	if n := dumps(other); n == 0 {
		t.Error("no dump after a commit of another program")
	}
	if n := dumps(shared); n != 0 {
		t.Errorf("%d dumps after a commit that is counted", n)
	}
}

// TestReconcileWhileOthersCommit changes another table all the time. Our tables must not be
// replaced because of that.
func TestReconcileWhileOthersCommit(t *testing.T) {
	k := newKernel(t)
	s := desired.New(desired.Config{})
	for i := range 500 {
		web(s, i, dataplanetest.Hosts(3)...)
	}
	dataplanetest.Reconcile(t, k.Dataplane, s)
	before := k.detector.tables
	// A busy machine needs more than a millisecond to read in, now and then.
	stop := k.commitElsewhere(time.Millisecond, 20*time.Millisecond)
	for range 20 {
		dataplanetest.Reconcile(t, k.Dataplane, s)
	}
	if n := stop(); n < 20 {
		t.Errorf("only %d commits of others", n)
	}
	for f := range schemas {
		if k.detector.tables[f] != before[f] {
			t.Error("a table was replaced")
		}
	}
	k.has(s)
}

// TestOthersAreLeftAlone checks that changes of another table are not taken for damage, and
// that we never change that table.
func TestOthersAreLeftAlone(t *testing.T) {
	k := newKernel(t)
	s := desired.New(desired.Config{})
	web(s, 1, dataplanetest.Hosts(2)...)
	dataplanetest.Reconcile(t, k.Dataplane, s)
	k.nft("add", "table", "ip", "other")
	k.nft("add", "set", "ip", "other", "s", "{ type ipv4_addr; elements = { 10.0.0.1 } }")
	if err := k.Check(t.Context()); err != nil {
		t.Errorf("another table's change is taken for damage: %v", err)
	}
	before := k.nft("list", "table", "ip", "other")
	web(s, 1, dataplanetest.Hosts(9)...)
	dataplanetest.Apply(t, k.Dataplane, s)
	dataplanetest.Reconcile(t, k.Dataplane, s)
	if err := k.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := k.nft("list", "ruleset"); after != before {
		t.Errorf("the ruleset after cleanup is\n%s\nwant\n%s", after, before)
	}
	if err := k.Cleanup(t.Context()); err != nil {
		t.Errorf("cleanup of nothing: %v", err)
	}
}

// TestRefusalNamesTheService makes the kernel refuse a change, which must then leave everything
// as it was.
func TestRefusalNamesTheService(t *testing.T) {
	k := newKernel(t)
	s := desired.New(desired.Config{})
	web(s, 1, dataplanetest.Hosts(2)...)
	web(s, 2, dataplanetest.Hosts(2)...)
	dataplanetest.Reconcile(t, k.Dataplane, s)
	before, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	// Another program deletes one endpoint of web-2, which we then delete too.
	id := k.poolOf(t, "web-2")
	var batch nfnl.Batch
	v4 := &schemas[desired.IPv4]
	batch.DeleteElement(v4.table, v4.addressSets[desired.Cluster].endpoints, number(word(k.writer.number(id)), 1))
	if err := k.conn.Commit(0, &batch); err != nil {
		t.Fatal(err)
	}
	web(s, 1, dataplanetest.Hosts(7)...)
	web(s, 2)
	_, err = k.Apply(t.Context(), &s.Change().Change)
	if err == nil || !strings.Contains(err.Error(), "Service default/web-2") {
		t.Errorf("the refusal does not name the Service: %v", err)
	}
	after, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := after.Frontends, before.Frontends; len(got) != len(want) || got[webKey(1)].String() != want[webKey(1)].String() {
		t.Errorf("a refused change had an effect: web-1 has %v, had %v", got[webKey(1)], want[webKey(1)])
	}
	if _, err := k.Apply(t.Context(), &s.Change().Change); err == nil {
		t.Error("Apply after a refusal")
	}
	if err := k.Check(t.Context()); !errors.Is(err, dataplane.ErrDamaged) {
		t.Errorf("Check after a refusal: %v", err)
	}
	dataplanetest.Reconcile(t, k.Dataplane, s)
	k.has(s)
}

// poolOf is the ID of a Service's IPv4 pool.
func (k *kernel) poolOf(t *testing.T, name string) desired.PoolID {
	for id, p := range k.pools {
		if p.Service.Name == name && p.Family == desired.IPv4 {
			return desired.PoolID(id)
		}
	}
	t.Fatalf("no pool of %s", name)
	return 0
}

// TestChainsAndRulesDoNotGrow counts them with few and with many Services of
// all sizes.
func TestChainsAndRulesDoNotGrow(t *testing.T) {
	k := newKernel(t)
	s := desired.New(desired.Config{})
	dataplanetest.Reconcile(t, k.Dataplane, s)
	count := func() (chains, rules int) {
		for line := range strings.Lines(k.nft("-a", "list", "table", "ip", tableName)) {
			if strings.Contains(line, "chain ") && strings.Contains(line, "{") {
				chains++
			} else if strings.Contains(line, "# handle") && !strings.Contains(line, "{") {
				rules++
			}
		}
		return chains, rules
	}
	chains, rules := count()
	if chains == 0 || rules == 0 {
		t.Fatalf("%d chains, %d rules", chains, rules)
	}
	for i := range 300 {
		web(s, i, dataplanetest.Hosts(i%60)...)
	}
	dataplanetest.Apply(t, k.Dataplane, s)
	k.has(s)
	if c, r := count(); c != chains || r != rules {
		t.Errorf("%d chains and %d rules with 300 Services, %d and %d with none", c, r, chains, rules)
	}
}

// TestNFTLists makes sure that the nft command shows Services in our tables, as text and as
// JSON.
func TestNFTLists(t *testing.T) {
	k := newKernel(t)
	s := desired.New(inCluster("10.244.0.0/16", "fd00:244::/32"))
	web(s, 1, dataplanetest.Hosts(2)...)
	fancy(s)
	dataplanetest.Reconcile(t, k.Dataplane, s)
	text := k.nft("list", "ruleset")
	for _, want := range []string{
		`10.96.0.1 . tcp . 80 comment "default/web-1"`,
		"fd00:96::1 . tcp . 80",
		"10.244.1.2 . 8080",
		"vmap @picks",
		"0x00000002 : goto pick-2",
		"tcp . 30080", "node-addresses",
		"10.96.0.0/16",
		"jump remember-10800",
		"update @affinity",
		"reject with tcp reset", // unlike ICMP errors, not limited in rate
	} {
		if !strings.Contains(text, want) {
			t.Errorf("nft list ruleset does not show %q", want)
		}
	}
	if json := k.nft("-j", "list", "ruleset"); !strings.Contains(json, `"frontends"`) {
		t.Errorf("nft -j list ruleset: %s", json)
	}
}
