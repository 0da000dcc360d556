// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// kernel is a network namespace, and a backend in it.
type kernel struct {
	*Dataplane
	ns *lab.Namespace
	t  *testing.T
}

func eachVariant(t *testing.T, test func(t *testing.T, v Variant)) {
	for _, v := range variants {
		t.Run(string(v), func(t *testing.T) {
			requireVariant(t, v)
			test(t, v)
		})
	}
}

func requireVariant(t *testing.T, v Variant) {
	feature := kerneltest.IPTablesLegacy
	if v == NFT {
		feature = kerneltest.IPTablesNFT
	}
	kerneltest.Require(t, feature, kerneltest.IPSet)
}

func newKernel(t *testing.T, v Variant) *kernel {
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
	k.Dataplane = k.open(v)
	return k
}

// open makes another backend in the same namespace, as another run would.
func (k *kernel) open(v Variant) *Dataplane {
	k.t.Helper()
	b, err := New(k.t.Context(), dataplane.Config{NetNS: k.ns.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit}, Options{
		Variant: v,
	})
	if err != nil {
		k.t.Fatal(err)
	}
	return b
}

// has fails the test unless the kernel has what the state describes.
func (k *kernel) has(s *desired.State) {
	k.t.Helper()
	dataplanetest.Has(k.t, k, s)
}

// run runs a command in the namespace.
func (k *kernel) run(line string) string {
	k.t.Helper()
	return dataplanetest.RunIn(k.t, k.ns, "", "sh", "-c", line)
}

// web sets Service default/web-i with endpoints at host numbers.
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
		discoveryv1.AddressTypeIPv4: "10.%d.%d.%d", discoveryv1.AddressTypeIPv6: "fd00:244:%x:%x::%x",
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
			addr := fmt.Sprintf(format, 200+h>>16, h>>8&255, h&255)
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr}, NodeName: ptr.To(fmt.Sprint("node-", h%100))})
		}
		s.SetEndpointSlice(slice)
	}
}

// TestConformance runs the tests that all dataplanes pass.
func TestConformance(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		dataplanetest.Conformance(t, desired.Config{NoRanges: true, NoLimits: true}, 1, 4_000, func(t *testing.T) func() dataplanetest.Backend {
			k := newKernel(t, v)
			return func() dataplanetest.Backend {
				b := k.open(v)
				t.Cleanup(func() { b.Close() })
				return b
			}
		})
	})
}

// TestOnlyWhatChanged makes sure that a restore writes no more than the chains that
// differ.
func TestOnlyWhatChanged(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		k := newKernel(t, v)
		s := desired.New(desired.Config{})
		for i := range 200 {
			web(s, i, dataplanetest.Hosts(10)...)
		}
		dataplanetest.Reconcile(t, k.Dataplane, s)
		web(s, 7, dataplanetest.Hosts(9)...)
		c := s.Change()
		stats, err := k.Apply(t.Context(), &c.Change)
		if err != nil {
			t.Fatal(err)
		}
		if most := 2 * (1 + 9 + 2); stats.Elements > most {
			t.Errorf("%d lines written for one endpoint that goes, in each family", stats.Elements)
		}
		k.has(s)
	})
}

// TestPartialRestoreFails deletes a chain behind the backend's back. The next change
// that leads there fails, is counted, and a full restore makes all well.
func TestPartialRestoreFails(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		k := newKernel(t, v)
		s := desired.New(desired.Config{})
		for i := range 3 {
			web(s, i, dataplanetest.Hosts(2)...)
		}
		dataplanetest.Reconcile(t, k.Dataplane, s)
		k.run(fmt.Sprintf("%s -t nat -F %s && for c in $(%[1]s -t nat -S | sed -n 's/^-N \\(SLIP-SVC-.*\\)/\\1/p'); do %[1]s -t nat -F $c; %[1]s -t nat -X $c; done",
			"iptables-"+string(v), chainServices))
		web(s, 9, dataplanetest.Hosts(2)...)
		if _, err := k.Apply(t.Context(), &s.Change().Change); err == nil {
			t.Fatal("a rule to a chain that does not exist was accepted")
		} else {
			t.Log(err)
		}
		if err := k.Check(t.Context()); !errors.Is(err, dataplane.ErrDamaged) {
			t.Errorf("check: %v", err)
		}
		web(s, 10, dataplanetest.Hosts(1)...)
		if _, err := k.Apply(t.Context(), &s.Change().Change); err == nil {
			t.Fatal("a partial restore after one that failed")
		}
		dataplanetest.Reconcile(t, k.Dataplane, s)
		k.has(s)
		if err := k.Check(t.Context()); err != nil {
			t.Error(err)
		}
		web(s, 9, dataplanetest.Hosts(5)...)
		dataplanetest.Apply(t, k.Dataplane, s)
		k.has(s)
	})
}

// TestSyncPeriod makes sure that a full restore is due from time to time.
func TestSyncPeriod(t *testing.T) {
	requireVariant(t, NFT)
	k := newKernel(t, NFT)
	s := desired.New(desired.Config{})
	web(s, 1, dataplanetest.Hosts(2)...)
	dataplanetest.Reconcile(t, k.Dataplane, s)
	k.options.SyncPeriod = time.Hour
	if err := k.Check(t.Context()); err != nil {
		t.Error(err)
	}
	hour := func(took time.Duration) fullRestore { return fullRestore{time.Now().Add(-time.Hour), took} }
	k.full = hour(7 * time.Minute)
	if err := k.Check(t.Context()); err != nil {
		t.Errorf("full restores take more than a tenth of the time: %v", err)
	}
	k.full = hour(5 * time.Minute)
	if err := k.Check(t.Context()); !errors.Is(err, dataplane.ErrDue) || errors.Is(err, dataplane.ErrDamaged) {
		t.Errorf("check: %v", err)
	}
	dataplanetest.Reconcile(t, k.Dataplane, s)
	if err := k.Check(t.Context()); err != nil {
		t.Error(err)
	}
	counts := k.RuleCounts()
	if saved := strings.Count(k.run("iptables-nft-save -t nat"), "\n-A SLIP-"); counts.Total[desired.IPv4][tableNAT] != saved {
		t.Errorf("%d rules counted, %d there", counts.Total[desired.IPv4][tableNAT], saved)
	}
	web(s, 1, dataplanetest.Hosts(1)...)
	dataplanetest.Apply(t, k.Dataplane, s)
	if counts := k.RuleCounts(); counts.Last[desired.IPv6][tableNAT] != 1 {
		t.Errorf("rules written: %v", counts.Last)
	}
}

// TestCancel ends the context while a command waits for the lock of iptables-legacy, which
// takes up to a minute otherwise.
func TestCancel(t *testing.T) {
	requireVariant(t, Legacy)
	k, s := newWeb(t, Legacy)
	holdLock(t)
	web(s, 1, dataplanetest.Hosts(3)...) // something to write
	s.Change()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	if _, err := k.Reconcile(ctx, &s.Full().Change); !errors.Is(err, context.Canceled) {
		t.Errorf("Reconcile: %v", err)
	}
}

// holdLock holds the lock of iptables-legacy until the test ends.
func holdLock(t *testing.T) {
	lock := filepath.Join(t.TempDir(), "lock")
	t.Setenv("XTABLES_LOCKFILE", lock)
	held, err := os.Create(lock)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { held.Close() })
	if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
}

// newWeb is a kernel with one Service programmed.
func newWeb(t *testing.T, v Variant) (*kernel, *desired.State) {
	k := newKernel(t, v)
	s := desired.New(desired.Config{})
	web(s, 1, dataplanetest.Hosts(2)...)
	dataplanetest.Reconcile(t, k.Dataplane, s)
	return k, s
}

// damage runs a command, in which -V stands for the variant.
func (k *kernel) damage(line string) {
	k.t.Helper()
	k.run(strings.ReplaceAll(line, "-V", "-"+string(k.variant)))
}

// TestCheck damages what was programmed, and makes sure that Check finds it and Reconcile repairs it.
func TestCheck(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		for name, line := range map[string]string{
			"flush":               "iptables-V -t nat -F",
			"flush filter":        "ip6tables-V -F",
			"a chain":             "iptables-V -t nat -F SLIP-OUTSIDE",
			"a rule":              "iptables-V -t nat -D SLIP-MASQUERADE 1",
			"one more rule":       "ip6tables-V -t nat -A SLIP-SERVICES -j RETURN",
			"entry":               "iptables-V -t nat -D PREROUTING -j SLIP-SERVICES",
			"last entry":          "iptables-V -t nat -D POSTROUTING 1",
			"entry before it":     "ip6tables-V -t nat -D POSTROUTING 2",
			"restored from afar":  "printf '*nat\\nCOMMIT\\n' | iptables-V-restore",
			"a set that is empty": "ipset flush SLIP-4-CLUSTER-IPS",
			"an element":          "ipset del SLIP-6-CLUSTER-IPS fd00:96::1",
		} {
			t.Run(name, func(t *testing.T) {
				k, s := newWeb(t, v)
				k.damage("iptables-V -t nat -A PREROUTING -d 192.0.2.1 -j RETURN; iptables-V -t nat -N OTHER; iptables-V -t nat -A OTHER -j SLIP-OUTSIDE")
				if err := k.Check(t.Context()); err != nil {
					t.Errorf("others' rules: %v", err)
				}
				k.guard.next = time.Time{}
				k.damage(line)
				err := k.Check(t.Context())
				if !errors.Is(err, dataplane.ErrDamaged) {
					t.Errorf("check: %v", err)
				}
				t.Log(err)
				dataplanetest.Reconcile(t, k.Dataplane, s)
				k.has(s)
				if err := k.Check(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	})
}

// TestCheckAfterChange damages what was programmed and then changes something else, which must not hide the damage.
func TestCheckAfterChange(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		for name, line := range map[string]string{
			"entry":        "iptables-V -t nat -F PREROUTING",
			"last entry":   "ip6tables-V -t nat -F POSTROUTING",
			"filter":       "iptables-V -F",
			"a rule":       "iptables-V -t nat -D SLIP-MASQUERADE 1",
			"not a damage": "iptables-V -t nat -A PREROUTING -d 192.0.2.1 -j RETURN",
		} {
			t.Run(name, func(t *testing.T) {
				k, s := newWeb(t, v)
				if err := k.Check(t.Context()); err != nil {
					t.Fatal(err)
				}
				k.damage(line)
				web(s, 1, dataplanetest.Hosts(3)...)
				if _, err := k.Apply(t.Context(), &s.Change().Change); err != nil {
					t.Fatal(err)
				}
				k.guard.next = time.Time{}
				if err := k.Check(t.Context()); errors.Is(err, dataplane.ErrDamaged) == (name == "not a damage") {
					t.Fatalf("check: %v", err)
				}
				if name != "not a damage" {
					return
				}
				// Unchanged tables are not read again.
				web(s, 1, dataplanetest.Hosts(4)...)
				if _, err := k.Apply(t.Context(), &s.Change().Change); err != nil {
					t.Fatal(err)
				}
				if now, err := k.stamp(); err != nil || now != k.guard.stamp || !k.guard.known {
					t.Errorf("known: %t, %v", k.guard.known, err)
				}
			})
		}
	})
}

// TestOwnChanges makes sure that the guard recognizes our own changes, whatever chains they
// make and delete, and does not read the tables after them.
func TestOwnChanges(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		r := rand.New(rand.NewPCG(seed, 0))
		k := newKernel(t, v)
		s := desired.New(desired.Config{})
		dataplanetest.Reconcile(t, k.Dataplane, s)
		if err := k.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		for step := range 60 {
			for range 1 + r.IntN(3) {
				if i := r.IntN(20); r.IntN(3) > 0 {
					web(s, i, dataplanetest.Hosts(r.IntN(40))...)
				} else {
					s.DeleteService("default", fmt.Sprintf("web-%d", i))
				}
			}
			dataplanetest.Apply(t, k.Dataplane, s)
			if !k.guard.known {
				t.Fatalf("step %d: a change of ours is not recognized", step)
			}
		}
		for i := range 400 { // several transactions of iptables-nft
			web(s, 100+i, dataplanetest.Hosts(4)...)
		}
		dataplanetest.Apply(t, k.Dataplane, s)
		if !k.guard.known {
			t.Error("many changes at once are not recognized")
		}
		k.has(s)
		k.run("iptables-" + string(v) + " -t nat -A PREROUTING -d 192.0.2.1 -j RETURN")
		web(s, 1, dataplanetest.Hosts(3)...)
		dataplanetest.Apply(t, k.Dataplane, s)
		if k.guard.known {
			t.Error("another program's rule is not noticed")
		}
	})
}

// TestOthersComments adds rules of another program with comments that look like our jumps. They
// stay, and do not count as ours.
func TestOthersComments(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		k := newKernel(t, v)
		s := desired.New(desired.Config{})
		web(s, 1, dataplanetest.Hosts(2)...)
		others := []string{
			`-A INPUT -p tcp -m tcp --dport 22 -m comment --comment "before -j SLIP-INPUT" -j ACCEPT`,
			`-A INPUT -p tcp -m tcp --dport 23 -m comment --comment SLIP-INPUT -j ACCEPT`,
		}
		for _, rule := range others {
			k.run("iptables-" + string(v) + " " + rule)
		}
		dataplanetest.Reconcile(t, k.Dataplane, s)
		k.run("iptables-" + string(v) + " -D INPUT -j SLIP-INPUT")
		if err := k.Check(t.Context()); !errors.Is(err, dataplane.ErrDamaged) {
			t.Errorf("check: %v", err)
		}
		if err := k.Cleanup(t.Context()); err != nil {
			t.Error(err)
		}
		text := k.run("iptables-" + string(v) + "-save -t filter")
		for _, rule := range others {
			if !strings.Contains(text, rule) {
				t.Errorf("deleted: %s\n%s", rule, text)
			}
		}
	})
}

// TestForeignJumps adds rules of another program that lead to our chains. A full restore
// deletes only those that lead to a chain that it deletes.
func TestForeignJumps(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		k, s := newWeb(t, v)
		pool := k.pools[0].name()
		k.damage("iptables-V -t nat -N OTHER; iptables-V -t nat -A OTHER -j SLIP-OUTSIDE; iptables-V -t nat -A OTHER -j " + pool)
		s.DeleteService("default", "web-1")
		s.Change()
		for range 2 {
			dataplanetest.Reconcile(t, k.Dataplane, s)
			k.has(s)
			text := k.run("iptables-" + string(v) + "-save -t nat")
			if !strings.Contains(text, "-A OTHER -j SLIP-OUTSIDE\n") || strings.Contains(text, pool) {
				t.Errorf("after a full restore:\n%s", text)
			}
		}
	})
}

// TestNativeRules adds rules of nft to tables of iptables-nft, which iptables-nft-save cannot
// print: it prints nothing of such a table. A full restore then writes all chains.
func TestNativeRules(t *testing.T) {
	requireVariant(t, NFT)
	kerneltest.Require(t, kerneltest.NFTBinary)
	k, s := newWeb(t, NFT)
	k.run("nft add rule ip nat SLIP-OUTSIDE ct state invalid counter && nft add chain ip filter OTHER && nft add rule ip filter OTHER ct state invalid counter")
	if err := k.Check(t.Context()); !errors.Is(err, dataplane.ErrDamaged) {
		t.Errorf("check: %v", err)
	}
	for range 2 {
		web(s, 1, dataplanetest.Hosts(3)...)
		s.Change()
		dataplanetest.Reconcile(t, k.Dataplane, s)
		k.has(s)
		if err := k.Check(t.Context()); err != nil {
			t.Error(err)
		}
	}
	once := func() {
		t.Helper()
		text := k.run("iptables-nft-save")
		for _, f := range chainTables {
			for _, rule := range entries(k.config, desired.IPv4, f) {
				if strings.Count(text, "\n-A "+rule+"\n") != 1 {
					t.Errorf("not once after full restores: %s\n%s", rule, text)
				}
			}
		}
	}
	// Both chains lead to the same chain of ours, so the rule of one says nothing about the other.
	k.run("nft flush chain ip nat PREROUTING; nft add rule ip nat SLIP-OUTSIDE ct state invalid counter")
	s.Change()
	dataplanetest.Reconcile(t, k.Dataplane, s)
	k.run("nft delete chain ip filter OTHER")
	once()

	// Other base chains change nothing in what is printed, but a comment.
	k.run("nft add chain ip nat other '{ type nat hook postrouting priority srcnat; }'")
	for range 2 {
		s.Change()
		dataplanetest.Reconcile(t, k.Dataplane, s)
		once()
	}
}

// TestTakesOver starts with the objects of an earlier run, in the same variant and in the
// other, and cleans up.
func TestTakesOver(t *testing.T) {
	for _, v := range variants {
		requireVariant(t, v)
	}
	for _, from := range variants {
		for _, to := range variants {
			t.Run(fmt.Sprintf("%s to %s", from, to), func(t *testing.T) {
				k := newKernel(t, from)
				s := desired.New(desired.Config{})
				web(s, 1, dataplanetest.Hosts(40)...)
				web(s, 2, dataplanetest.Hosts(3)...)
				dataplanetest.Reconcile(t, k.Dataplane, s)
				k.run(fmt.Sprintf("iptables-%s -t nat -A OUTPUT -d 192.0.2.1 -j SLIP-SERVICES", from))
				if err := k.Close(); err != nil {
					t.Fatal(err)
				}
				k.Dataplane = k.open(to)
				s = desired.New(desired.Config{})
				web(s, 2, dataplanetest.Hosts(5)...)
				web(s, 3, dataplanetest.Hosts(5)...)
				dataplanetest.Reconcile(t, k.Dataplane, s)
				k.has(s)
				if err := k.Check(t.Context()); err != nil {
					t.Error(err)
				}
				for _, v := range variants {
					text := k.run(fmt.Sprintf("iptables-%s-save; ip6tables-%[1]s-save", v))
					if ours := strings.Contains(text, "SLIP-"); ours != (v == to) {
						t.Errorf("rules in %s: %t", v, ours)
					}
				}
				text := k.run(fmt.Sprintf("iptables-%s-save; ip6tables-%[1]s-save", to))
				if n := strings.Count(text, "\n:SLIP-SVC-"); n != 2*2 {
					t.Errorf("%d chains of Services, want one for each of two in each family", n)
				}
				if err := k.Cleanup(t.Context()); err != nil {
					t.Error(err)
				}
				for _, v := range variants {
					if text := k.run(fmt.Sprintf("iptables-%s-save; ip6tables-%[1]s-save; ipset list -n", v)); strings.Contains(text, "SLIP-") {
						t.Errorf("left in %s:\n%s", v, text)
					}
				}
			})
		}
	}
}

// setSystemVariant makes the command iptables be a variant, as update-alternatives does.
func (k *kernel) setSystemVariant(v Variant) {
	k.t.Helper()
	command, err := exec.LookPath("iptables-" + string(v))
	if err != nil {
		k.t.Fatal(err)
	}
	dir := k.t.TempDir()
	if err := os.Symlink(command, filepath.Join(dir, "iptables")); err != nil {
		k.t.Fatal(err)
	}
	k.t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// TestDetect finds out which variant a node uses.
func TestDetect(t *testing.T) {
	for _, v := range variants {
		requireVariant(t, v)
	}
	for name, test := range map[string]struct {
		line string
		want Variant
	}{
		"nothing":                      {"true", NFT},
		"nothing, iptables is legacy":  {"true", Legacy},
		"rules of iptables-legacy":     {"iptables-legacy -A INPUT -j ACCEPT", Legacy},
		"the kubelet's hint":           {"iptables-legacy -t mangle -N KUBE-KUBELET-CANARY; iptables-nft -A INPUT -j ACCEPT", Legacy},
		"its older hint, over IPv6":    {"ip6tables-nft -t mangle -N KUBE-IPTABLES-HINT; iptables-legacy -A INPUT -j ACCEPT", NFT},
		"our own rules in the one":     {"iptables-legacy -t nat -N SLIP-SERVICES; iptables-nft -A INPUT -j ACCEPT", Legacy},
		"more rules in the other one":  {"iptables-legacy -A INPUT -j ACCEPT; iptables-nft -A INPUT -j ACCEPT; iptables-nft -A INPUT -j ACCEPT", NFT},
		"rules, iptables is legacy":    {"iptables-nft -A INPUT -j ACCEPT", NFT},
		"what Remove leaves":           {"iptables-legacy -N SLIP-LOCALNET; iptables-legacy -A SLIP-LOCALNET -j DROP; iptables-legacy -A INPUT -d 127.0.0.0/8 ! -i lo -j SLIP-LOCALNET", NFT},
		"a hint counts more than ours": {"iptables-legacy -t nat -N SLIP-SERVICES; iptables-nft -t mangle -N KUBE-KUBELET-CANARY", NFT},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKernel(t, NFT)
			k.run(test.line)
			system := NFT
			if strings.Contains(name, "iptables is legacy") {
				system = Legacy
			}
			k.setSystemVariant(system)
			got, err := Detect(t.Context(), k.ns.FD())
			if err != nil || got != test.want {
				t.Errorf("%s, %v; want %s", got, err, test.want)
			}
			dataplanetest.Reconcile(t, k.Dataplane, desired.New(desired.Config{}))
			if names := k.run("cat /proc/thread-self/net/ip_tables_names"); names != "" && test.want == NFT && !strings.Contains(test.line, "legacy") {
				t.Errorf("unneeded tables of x_tables: %s", names)
			}
		})
	}
	t.Run("neither works", func(t *testing.T) {
		k := newKernel(t, NFT)
		t.Setenv("PATH", t.TempDir())
		_, err := New(t.Context(), dataplane.Config{}, Options{})
		if err == nil || !strings.Contains(err.Error(), "neither iptables-nft nor iptables-legacy works") {
			t.Errorf("%v", err)
		}
		if err := k.ns.Do(func() error { return Remove(t.Context()) }); err != nil {
			t.Errorf("nothing to remove: %v", err)
		}
	})
}

// TestRestart starts again on what an earlier run programmed. It writes nothing, as
// iptables-save prints all rules as they are written.
func TestRestart(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		k := newKernel(t, v)
		s := desired.New(desired.Config{DetectLocal: desired.DetectLocal{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}, NodeName: "node-1"})
		web(s, 1, dataplanetest.Hosts(40)...)
		web(s, 2)
		spec := func(name string, p corev1.Protocol, affinity corev1.ServiceAffinity, policy corev1.ServiceExternalTrafficPolicy) {
			web(s, len(name), dataplanetest.Hosts(5)...)
			s.SetService(&corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("web-%d", len(name))},
				Spec: corev1.ServiceSpec{
					Type: corev1.ServiceTypeLoadBalancer, SessionAffinity: affinity, ExternalTrafficPolicy: policy,
					ClusterIPs:  []string{fmt.Sprintf("10.96.0.%d", len(name)), fmt.Sprintf("fd00:96::%d", len(name))},
					Ports:       []corev1.ServicePort{{Port: 80, Protocol: p}},
					ExternalIPs: []string{fmt.Sprintf("192.0.2.%d", len(name)), fmt.Sprintf("2001:db8::%d", len(name))},
				},
			})
		}
		spec("sticky", corev1.ProtocolTCP, corev1.ServiceAffinityClientIP, corev1.ServiceExternalTrafficPolicyLocal)
		spec("datagram", corev1.ProtocolUDP, corev1.ServiceAffinityNone, corev1.ServiceExternalTrafficPolicyLocal)
		spec("multihome", corev1.ProtocolSCTP, corev1.ServiceAffinityNone, corev1.ServiceExternalTrafficPolicyCluster)
		dataplanetest.Reconcile(t, k.Dataplane, s)
		if err := k.Close(); err != nil {
			t.Fatal(err)
		}
		k.Dataplane = k.open(v)
		stats, err := k.Reconcile(t.Context(), &s.Full().Change)
		if err != nil || stats.Elements != 0 {
			t.Errorf("%d written, error %v", stats.Elements, err)
		}
		k.has(s)
		if err := k.Check(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestSiblingKeepsClients has the Cluster pool of a Service lose an endpoint that the Local
// pool still has. A client that connects to another endpoint by the ClusterIP stays in that
// endpoint's list of clients, for the Local pool.
func TestSiblingKeepsClients(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		k := newKernel(t, v)
		k.routeAway()
		s := desired.New(desired.Config{NodeName: "node-1"})
		web(s, 1, 1, 2)
		s.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1"},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.1", ExternalIPs: []string{"192.0.2.100"},
				Ports:           []corev1.ServicePort{{Port: 80}},
				SessionAffinity: corev1.ServiceAffinityClientIP, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
			},
		})
		dataplanetest.Reconcile(t, k.Dataplane, s)
		var local desired.Backend
		var cluster desired.PoolID
		for id, p := range k.pools {
			switch {
			case p == nil || p.Family != desired.IPv4:
			case p.Scope == desired.Local:
				local = p.Slots[0]
			default:
				cluster = desired.PoolID(id)
			}
		}
		list := "/proc/net/xt_recent/" + prefix + k.pools.Get(cluster).hash(local.String())
		k.run("echo +192.0.2.1 > " + list)
		without := &desired.Change{Pools: []desired.PoolChange{{ID: cluster, Removed: []desired.Backend{local}, Sticky: true}}}
		if _, err := k.Apply(t.Context(), without); err != nil {
			t.Fatal(err)
		}
		if _, to := k.executed(netip.MustParseAddrPort("10.96.0.1:80")); !strings.Contains(to, ":8080") || strings.Contains(to, local.String()) {
			t.Fatalf("the ClusterIP leads to %q", to)
		}
		if clients := k.run("cat " + list); !strings.Contains(clients, "192.0.2.1") {
			t.Errorf("the Local pool's endpoint has lost its client: %q", clients)
		}
	})
}
