// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/desired/desiredtest"
	"github.com/slipstream-proxy/slipstream/internal/feature"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestSupport creates a Controller on any kernel.
func TestSupport(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	ns, err := lab.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	c, err := New(Config{NetNS: ns.FD(), Threshold: threshold})
	switch has := kerneltest.Flowtable.Probe() == nil; {
	case has && err != nil:
		t.Error(err)
	case !has && (!feature.Lacks(err) || strings.Contains(err.Error(), "\n")):
		t.Errorf("error %v", err)
	case has:
		if _, err := c.conn.Table(probeTable); err == nil {
			t.Error("the probe has left its table")
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	default:
		t.Log(err)
	}
}

// TestOff checks that a threshold of 0 removes the table of an earlier run.
func TestOff(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	ns, err := lab.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	run := func(args ...string) string {
		t.Helper()
		out, err := ns.Run(t.Context(), args[0], args[1:]...)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	run("nft", "add table inet "+TableName+"; add table inet another")
	c, err := New(Config{NetNS: ns.FD()})
	if err != nil {
		t.Fatal(err)
	}
	full := &desired.Change{Frontends: []desired.FrontendChange{{New: &desired.Frontend{FrontendKey: frontend(desired.TCP, web, false)}}}}
	if _, err := c.Reconcile(t.Context(), full); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Apply(t.Context(), full); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{"Check": c.Check(t.Context()), "Flush": c.Flush(t.Context(), Flush{All: true})} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got := run("nft", "list ruleset"); got != "table inet another {\n}\n" {
		t.Errorf("there is %s", got)
	}
	if s, err := c.Stats(); err != nil || !reflect.DeepEqual(s, Stats{}) {
		t.Errorf("%+v, %v", s, err)
	}
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
}

// TestReadable lists the table with the command nft.
func TestReadable(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	w := newWorld(t, Config{Threshold: threshold})
	w.check(w.Flush(w.t.Context(), Flush{Frontends: []desired.FrontendKey{frontend(desired.UDP, web, true)}, Addresses: w.client.Addrs(), Hold: time.Hour}))
	got := w.nft("list table inet " + TableName)
	for _, want := range []string{
		`10.96.0.10 . tcp . 80 comment "default/web:tcp"`,
		`devices = { eth0, veth1, veth2, veth3 }`, `"veth1",`, "\t\tcounter\n",
		`ct packets <= 20 return`, `ct state invalid,related,untracked return`,
		`ct original ip daddr . meta l4proto . ct original proto-dst @frontends-ipv4 goto to-flowtable`,
		`ct original ip6 daddr . meta l4proto . ct original proto-dst @frontends-ipv6 goto to-flowtable`,
		`ct direction reply ct status ! dnat return`, `iifname != @interfaces return`, `ct reply ip saddr @held-addresses-ipv4 return`,
		`flow add @flows counter name "offloaded"`, `fd00:96::10 . udp . 80 timeout`,
		`type filter hook forward priority 1000; policy accept;`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("it has no %q:\n%s", want, got)
		}
	}
	w.stop()
	// As text, it can be loaded again, and then offloads nothing.
	ns := w.node.Namespace
	saved := dataplanetest.ReloadRuleset(t, ns, "nft", "")
	dataplanetest.SameRuleset(t, ns, "nft", saved)
	if err := w.Check(t.Context()); !errors.Is(err, dataplane.ErrDamaged) {
		t.Errorf("Check of the copy: %v", err)
	}
	w.check2(w.proxy.Reconcile(t.Context(), &w.state.Full().Change))
	s := w.stream(lab.TCP, web, false)
	for range threshold {
		w.goesOn(s) // by several packets
	}
	if _, offloaded := s.flow(); offloaded {
		t.Error("the copy offloads")
	}
}

// inSets returns the frontends and the pods in the kernel's sets.
func (w *world) inSets() (all []string) {
	w.t.Helper()
	services, err := ReadServices(w.node.FD())
	w.check(err)
	for k, s := range services {
		all = append(all, fmt.Sprint(k, " ", s))
	}
	w.mu.Lock() // Run uses the connection, too
	defer w.mu.Unlock()
	for _, f := range families {
		w.check(w.conn.Elements(table, f.pods.Name, func(e nfnl.Element) {
			a, _ := netip.AddrFromSlice(e.Key)
			all = append(all, a.String())
		}))
	}
	slices.Sort(all)
	return all
}

// TestFrontends applies events of all kinds and compares the kernel's frontends and pods with
// the state's.
func TestFrontends(t *testing.T) {
	w := newWorld(t, Config{Threshold: threshold})
	for seed := range uint64(4) {
		state := desired.New(desired.Config{NodeName: desiredtest.ThisNode})
		w.check2(w.Reconcile(w.t.Context(), &state.Full().Change))
		var objects desiredtest.Objects
		choices := desiredtest.NewChoices(desiredtest.RandomInput(seed, 3000))
		for n := 0; choices.More(); n++ {
			objects.Step(choices, state)
			if n%3 > 0 && choices.More() {
				continue
			}
			change := state.Change()
			if change.Rebuild {
				if _, err := w.Apply(w.t.Context(), &change.Change); err == nil {
					t.Fatal("Apply takes a Rebuild")
				}
				w.check2(w.Reconcile(w.t.Context(), &state.Full().Change))
			} else {
				stats, err := w.Apply(w.t.Context(), &change.Change)
				w.check(err)
				slow, node := change.Sets[desired.SlowPathIPs], change.Sets[desired.NodeAddresses]
				addrs := len(slow.Added) + len(slow.Removed) + len(node.Added) + len(node.Removed)
				if stats.Elements > 2*len(change.Frontends)+addrs {
					t.Fatalf("%d elements for %d frontends and %d addresses", stats.Elements, len(change.Frontends), addrs)
				}
			}
			if n%30 == 0 {
				w.compare(state)
			}
		}
		w.compare(state)
		w.check(w.Check(w.t.Context()))
	}
}

func (w *world) compare(state *desired.State) {
	w.t.Helper()
	services, full := map[desired.FrontendKey]desired.ServicePort{}, state.Full()
	for _, f := range full.Frontends {
		if !f.New.OnNode() && !f.New.SlowPath {
			services[f.New.FrontendKey] = f.New.Service
		}
	}
	for _, f := range full.Frontends {
		for _, m := range full.Sets[desired.NodeAddresses].Added {
			a := m.Addr
			key := f.New.At(a)
			if _, overridden := services[key]; f.New.OnNode() && !f.New.SlowPath && !overridden && desired.FamilyOf(a) == desired.FamilyOf(f.New.Addr()) {
				services[key] = f.New.Service
			}
		}
	}
	var want []string
	for k, s := range services {
		if k.Protocol != desired.SCTP {
			want = append(want, fmt.Sprint(k, " ", s))
		}
	}
	for _, a := range full.Sets[desired.SlowPathIPs].Added {
		want = append(want, a.String())
	}
	slices.Sort(want)
	if got := w.inSets(); !slices.Equal(got, want) {
		w.t.Fatalf("the kernel has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestDamage modifies the table as another program. Check must detect it at once.
func TestDamage(t *testing.T) { engines(t, testDamage) }

func testDamage(t *testing.T, engine Engine) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	const inTable = " inet " + TableName + " "
	for _, c := range []struct{ name, nft, verify string }{
		{"deleted", "delete table inet " + TableName, "does not exist"},
		{"flushed", "flush ruleset", "does not exist"},
		{"replaced", "delete table inet " + TableName + "; add table inet " + TableName, "set frontends-ipv4 is missing"},
		{"no rules", "flush chain" + inTable + "forward", "chain forward has 0 rules instead of"},
		{"more rules", "insert rule" + inTable + "to-flowtable accept", "chain to-flowtable has "},
		{"another threshold", "rule ct packets", "of chain forward is another one"},
		{"dormant", "add table inet " + TableName + " { flags dormant; }", "the table is dormant"},
		{"a device less", "delete flowtable" + inTable + "flows { hook ingress priority 0; devices = { veth2 }; }", "flowtable flows has other devices"},
		{"no interfaces", "flush set" + inTable + "interfaces", "set interfaces lacks eth0"},
		{"no frontends", "flush set" + inTable + "frontends-ipv6", "set frontends-ipv6 lacks [fd00:96::10]:80/TCP of Service default/web:tcp"},
		{"a frontend less", "delete element" + inTable + "frontends-ipv4 { 10.96.0.20 . udp . 80 }", "set frontends-ipv4 lacks 10.96.0.20:80/UDP of Service default/other:udp"},
		{"a pod less", "flush set" + inTable + "pods-ipv4", "set pods-ipv4 lacks 10.244.1.12"},
		{"a chain more", "add chain" + inTable + "forward2; add rule" + inTable + "forward2 drop", "chain forward2 does not belong there"},
	} {
		if engine == EBPF && strings.Contains(c.nft, " flowtable ") {
			continue // TestEBPFDetached
		}
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, Config{Engine: engine, Threshold: threshold})
			w.annotatePod(w.web[1], "off")
			w.apply()
			w.check(w.Check(w.t.Context()))
			w.check(w.Check(w.t.Context()))
			w.verifies("")
			if handle, ok := strings.CutPrefix(c.nft, "rule "); ok {
				_, handle, _ = strings.Cut(w.sh("nft -a list chain inet "+TableName+" forward | grep '"+handle+"'"), "# handle ")
				w.nft("replace rule" + inTable + "forward handle " + strings.TrimSpace(handle) + " ct packets <= 21 return")
			} else {
				w.nft(c.nft)
			}
			if err := w.Check(w.t.Context()); !errors.Is(err, dataplane.ErrDamaged) {
				t.Fatalf("Check: %v", err)
			} else {
				t.Log(err)
			}
			w.verifies(c.verify)
			w.check2(w.Reconcile(w.t.Context(), &w.state.Full().Change))
			w.check(w.Check(w.t.Context()))
			w.verifies("")
			w.has("eth0 veth1 veth2 veth3")
			w.compare(w.state)
			if c.name == "flushed" {
				w.check2(w.proxy.Reconcile(w.t.Context(), &w.state.Full().Change))
			}
			s := w.stream(lab.UDP, other, false)
			w.fast(s)
			w.goesOn(s)
			w.unharmed(s)
		})
	}
}

// verifies checks that Verify finds nothing, or a difference.
func (w *world) verifies(want string) {
	w.t.Helper()
	rules, faults, err := Verify(w.t.Context(), w.config, &w.state.Full().Change)
	w.check(err)
	found := strings.Join(faults, "\n")
	if want == "" && (len(faults) > 0 || rules == 0) || !strings.Contains(found, want) {
		w.t.Errorf("of %d rules Verify finds, for %q:\n%s", rules, want, found)
	}
}

// TestVerifySurplus adds what Check need not find, and has a fast path where there should be none.
func TestVerifySurplus(t *testing.T) { engines(t, testVerifySurplus) }

func testVerifySurplus(t *testing.T, engine Engine) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	for damage, want := range map[string]string{
		"add set inet " + TableName + " other { type ipv4_addr; }":                            "set other does not belong there",
		"add element inet " + TableName + " frontends-ipv4 { 10.96.0.99 . tcp . 80 }":         "set frontends-ipv4 has 10.96.0.99:80/TCP of Service ",
		"add element inet " + TableName + " node-addresses-ipv4 { 192.0.2.99 }":               "set node-addresses-ipv4 has 192.0.2.99",
		"add chain inet " + TableName + " judge { type filter hook postrouting priority 5; }": "chain judge does not belong there",
	} {
		w := newWorld(t, Config{Engine: engine, Threshold: threshold})
		w.verifies("")
		w.nft(damage)
		w.verifies(want)
		off := w.config
		off.Threshold = 0
		if _, faults, err := Verify(t.Context(), off, &desired.Change{}); err != nil || len(faults) != 1 || !strings.Contains(faults[0], "though the fast path is off") {
			t.Errorf("off: %q, %v", faults, err)
		}
		w.stop()
		w.check(w.Stop())
		if _, faults, err := Verify(t.Context(), off, &desired.Change{}); err != nil || len(faults) > 0 {
			t.Errorf("off, and stopped: %q, %v", faults, err)
		}
	}
}

// TestDamageUnsynced modifies the flowtable while the kernel has not accepted the interfaces yet.
func TestDamageUnsynced(t *testing.T) {
	w := newWorld(t, Config{Threshold: threshold})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unsynced = true
	w.check(w.checkTable())
	w.engine.(*flowtableEngine).hardware = true // which the flowtable is not
	if err := w.checkTable(); !errors.Is(err, dataplane.ErrDamaged) {
		t.Errorf("Check: %v", err)
	}
}

// TestOwnCommits changes the tables of the dataplane and the Controller. Neither must read its
// table for that in Check, as both do after a commit of another program.
func TestOwnCommits(t *testing.T) { engines(t, testOwnCommits) }

func testOwnCommits(t *testing.T, engine Engine) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	w := newQuietWorld(t, engine)
	w.start(Config{Engine: engine, Threshold: threshold, Commits: w.proxy.Commits()})
	dumps := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.conn.Dumps
	}
	check := func() int {
		t.Helper()
		for n := -1; n != dumps(); time.Sleep(100 * time.Millisecond) { // a change of interfaces may still be looked at
			n = dumps()
		}
		w.check(w.proxy.Check(t.Context()))
		before := dumps()
		w.check(w.Check(t.Context()))
		return dumps() - before
	}
	rests := func(want bool) {
		t.Helper()
		if got := w.Rests(); got != want {
			t.Errorf("it rests: %v, want %v", got, want)
		}
	}
	rests(false)
	check()
	rests(engine == Flowtable)
	for i := range 5 {
		w.endpoints(web, w.web[i%2])
		w.apply()
		if n := check(); n > 0 {
			t.Errorf("%d dumps after a change of endpoints", n)
		}
		link := w.dummy("late")
		w.has("eth0 late veth1 veth2 veth3")
		if n := check(); n > 0 {
			t.Errorf("%d dumps after a change of interfaces", n)
		}
		w.check(w.links.LinkDel(link))
		w.has("eth0 veth1 veth2 veth3")
	}
	w.proxy.Watch(t.Context())
	told := w.proxy.Watch(t.Context())
	if told == nil {
		t.Fatal("the kernel does not tell")
	}
	if n := check(); n > 0 {
		t.Errorf("%d dumps at rest", n)
	}
	rests(engine == Flowtable)
	w.nft("add table inet another")
	<-told
	if check() == 0 {
		t.Error("no dump after a commit of another program")
	}
}

// TestOthersTables changes another table with a flowtable. The two must not affect each other.
func TestOthersTables(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	w := newWorld(t, Config{Threshold: threshold})
	s := w.stream(lab.TCP, web, false)
	w.fast(s)
	w.nft("add table inet another; add flowtable inet another flows { hook ingress priority 0; devices = { veth1, veth2 }; }; " +
		"add chain inet another forward { type filter hook forward priority 0; }; add rule inet another forward ct packets > 1000000 flow add @flows")
	w.check(w.Check(w.t.Context()))
	before := w.nft("list table inet another")
	w.check2(w.Reconcile(w.t.Context(), &w.state.Full().Change))
	w.check(w.Flush(w.t.Context(), Flush{All: true}))
	w.goesOn(s)
	w.fast(s)
	w.check2(w.Reconcile(w.t.Context(), &desired.Change{}))
	w.check(w.Cleanup(w.t.Context()))
	if got := w.nft("list table inet another"); got != before {
		t.Errorf("it is now %s", got)
	}
	w.goesOn(s)
	w.unharmed(s)
	if _, err := w.Apply(w.t.Context(), &desired.Change{}); err == nil {
		t.Error("Apply works after Cleanup")
	}
	if err := w.Check(w.t.Context()); !errors.Is(err, dataplane.ErrDamaged) {
		t.Errorf("Check after Cleanup: %v", err)
	}
}

// TestOtherVersion starts with a table of the same name and other content.
func TestOtherVersion(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	w := newQuietWorld(t, Flowtable)
	const inTable = " inet " + TableName + " "
	w.nft("add table inet " + TableName + "; add set" + inTable + "interfaces { type mark; }; add set" + inTable + "more { type mark; };" +
		"add flowtable" + inTable + "flows { hook ingress priority 10; devices = { veth1 }; }; add flowtable" + inTable + "flows2 { hook ingress priority 0; devices = { veth2 }; };" +
		"add chain" + inTable + "forward { type nat hook prerouting priority 0; }; add rule" + inTable + "forward drop")
	w.start(Config{Threshold: threshold})
	w.check(w.Check(w.t.Context()))
	s := w.stream(lab.TCP, web, true)
	w.fast(s)
	w.unharmed(s)
}

// TestExplains makes the kernel refuse a frontend. The error must name it.
func TestExplains(t *testing.T) {
	w := newWorld(t, Config{Threshold: threshold})
	f := &desired.Frontend{
		FrontendKey: desired.FrontendKey{AddrPort: netip.MustParseAddrPort("10.96.7.7:80"), Protocol: desired.TCP},
		Service:     desired.ServicePort{Namespace: "default", Name: "never"},
	}
	_, err := w.Apply(w.t.Context(), &desired.Change{Frontends: []desired.FrontendChange{{Old: f}}})
	var refused *nfnl.BatchError
	if !errors.As(err, &refused) || !strings.HasPrefix(err.Error(), "fast path: frontend 10.96.7.7:80/TCP: ") {
		t.Errorf("error %v", err)
	}
	if _, err := w.Apply(w.t.Context(), &desired.Change{}); err == nil {
		t.Error("Apply works after a failure")
	}
	w.check2(w.Reconcile(w.t.Context(), &w.state.Full().Change))
	w.compare(w.state)
}

// TestNodePort offloads connections to a NodePort at the node's address, until the Service opts out,
// with one element for all addresses.
func TestNodePort(t *testing.T) { engines(t, testNodePort) }

func testNodePort(t *testing.T, engine Engine) {
	w := newWorld(t, Config{Engine: engine, Threshold: threshold})
	const nodePort = 30080
	set := func(fastPath string) {
		w.state.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: map[string]string{desired.AnnotationFastPath: fastPath}},
			Spec: corev1.ServiceSpec{
				ClusterIPs: []string{frontend(desired.TCP, web, false).Addr().String(), frontend(desired.TCP, web, true).Addr().String()},
				Ports:      []corev1.ServicePort{{Name: "tcp", Port: webPort, NodePort: nodePort}},
			},
		})
		w.apply()
	}
	w.state.SetNodeAddresses(w.node.Addrs())
	set("on")
	var streams []*stream
	for _, a := range w.node.Addrs() {
		to := desired.FrontendKey{AddrPort: netip.AddrPortFrom(a, nodePort), Protocol: desired.TCP}
		s := w.streamTo(w.client, lab.TCP, to, interval)
		w.fast(s)
		if service, _ := w.Service(to); service.String() != "default/web:tcp" || !slices.Contains(w.inSets(), to.String()+" default/web:tcp") {
			t.Errorf("the Service of %s is %s; read from the kernel: %v", to, service, w.inSets())
		}
		streams = append(streams, s)
	}
	w.check(w.Check(t.Context()))
	set("off")
	w.goesOn(streams...)
	for _, s := range streams {
		if _, is := s.flow(); is {
			t.Errorf("the connection to %s is offloaded after the Service has opted out", s.to)
		}
	}
	w.unharmed(streams...)
	w.nft("flush set inet " + TableName + " node-addresses-ipv4")
	if err := w.Check(t.Context()); !errors.Is(err, dataplane.ErrDamaged) {
		t.Errorf("Check: %v", err)
	}
}
