// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/desired/desiredtest"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/sock"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

var allFaults = flag.Bool("faults", false, "let each allocation fail; otherwise the first 40 of a step, and every 50th or so after them")

// TestFaults lets the Nth allocation of the kernel fail within the system calls that change it, until all have been
// tried (Documentation/fault-injection of the kernel). Only the kernels of the tests can do that. What the commands of
// iptables allocate is out of reach.
func TestFaults(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables, kerneltest.NFTBinary, kerneltest.OwnClock)
	if onOldest() && !*allFaults {
		t.Skip("runs on a newer kernel")
	}
	failslab(t)
	for name, open := range map[string]Mode{"nftables": newNFTables, "ipvs": newIPVS} {
		t.Run(name, func(t *testing.T) {
			if name == "ipvs" {
				kerneltest.Require(t, kerneltest.IPVS)
			}
			for _, k := range faultKinds {
				t.Run(k.name, func(t *testing.T) { sweep(t, open, name, k) })
			}
		})
	}
}

// faultKind is a step that faults meet.
type faultKind struct {
	name   string
	before func(*desired.State) // the content before the step
	damage bool                 // another program has removed everything
	change func(*desired.State) // what the step adds to it
	step   func(d dataplane.Dataplane, s *desired.State) error
	empty  bool // the content afterwards is nothing
	closed bool // in nftables mode it has several transactions: before the last but one no packet enters the table, after it all is in effect
}

func reconcileStep(d dataplane.Dataplane, s *desired.State) error {
	_, err := d.Reconcile(context.Background(), &s.Full().Change)
	return err
}

func applyStep(d dataplane.Dataplane, s *desired.State) error {
	_, err := d.Apply(context.Background(), &s.Change().Change)
	return err
}

var faultKinds = []faultKind{
	{name: "full write", change: faultWeb, step: reconcileStep, closed: true},
	{name: "endpoint", before: faultWeb, change: func(s *desired.State) { s.SetEndpointSlice(faultSlice("web", 2)) }, step: applyStep},
	{name: "Services", before: faultWeb, change: func(s *desired.State) {
		s.DeleteService("default", "web")
		faultService(s, "api", 2)
	}, step: applyStep},
	{name: "repair", before: faultWeb, damage: true, step: reconcileStep, closed: true},
	{name: "clean-up", before: faultWeb, step: func(d dataplane.Dataplane, _ *desired.State) error { return d.Cleanup(context.Background()) }, empty: true, closed: true},
}

func faultWeb(s *desired.State) { faultService(s, "web", 1) }

// faultService adds a Service with session affinity, source ranges, a NodePort and 3 endpoints.
func faultService(s *desired.State, name string, n int) {
	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: fmt.Sprint("10.96.0.", n), ExternalIPs: []string{fmt.Sprint("203.0.113.", n)},
			Ports:           []corev1.ServicePort{{Port: 80, NodePort: int32(30000 + n)}},
			SessionAffinity: corev1.ServiceAffinityClientIP, LoadBalancerSourceRanges: []string{"198.51.100.0/24"},
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: fmt.Sprint("203.0.113.1", n)}}}},
	})
	s.SetEndpointSlice(faultSlice(name, 1))
}

func faultSlice(service string, first int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: ptr.To(int32(8080))}},
	}
	for i := range 3 {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprint("10.244.1.", first+i)}})
	}
	return s
}

// sweep runs a step with a fault at the Nth allocation, for each N until none is left. After each, the kernel has the
// content from before or from after the step, and the next full write succeeds.
func sweep(t *testing.T, open Mode, mode string, k faultKind) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ns, err := lab.NewNamespace()
	must(t, err)
	t.Cleanup(func() { ns.Close() })
	dial := func() dataplanetest.Backend {
		d, err := open(dataplane.Config{NetNS: ns.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit})
		must(t, err)
		t.Cleanup(func() { d.Close() })
		return d.(dataplanetest.Backend)
	}
	state := func(parts ...func(*desired.State)) *desired.State {
		s := desired.New(desired.Config{NodeName: desiredtest.ThisNode, Supports: dataplane.OnlyRandom, IPVS: mode == "ipvs", Without: desired.Families{desired.IPv6: true}})
		for _, p := range parts {
			if p != nil {
				p(s)
			}
		}
		return s
	}
	has := func(d dataplane.Reader, s *desired.State) bool {
		v, err := dataplane.Look(t.Context(), d, &s.Full().Change)
		must(t, err)
		return len(v.Differences) == 0
	}
	other := foreign(t, ns)
	d, reader, cleaner := dial(), dial(), dial()
	fired, refused, mixed := 0, 0, 0
	for n := 1; ; n++ {
		must(t, cleaner.Cleanup(t.Context()))
		s := state(k.before)
		if k.before != nil || k.empty {
			must(t, reconcileStep(d, s))
		}
		if k.damage {
			must(t, cleaner.Cleanup(t.Context()))
		}
		if k.change != nil {
			k.change(s)
		}
		f := arm(t, n)
		err := k.step(d, s)
		done := f.disarm(t)
		old, new := state(k.before), state(k.before, k.change)
		if k.damage {
			old = state()
		}
		if k.empty {
			new = state()
		}
		isOld := err != nil && has(reader, old)
		isNew := !isOld && has(reader, new)
		switch {
		case err == nil && !isNew:
			t.Fatalf("allocation %d: the step has succeeded, and the kernel does not have it", n)
		case !isNew && !isOld:
			mixed++
			if mode == "nftables" && (!k.closed || !isClosed(t, ns) && !isUnsealed(t, reader, new)) {
				t.Fatalf("allocation %d: after %v the kernel has neither the content from before nor from after", n, err)
			}
		}
		if err != nil {
			refused++
			if strings.Count(err.Error(), "\n") > 3 {
				t.Errorf("allocation %d: not one clear error: %v", n, err)
			}
		}
		s = state(k.before, k.change)
		must(t, reconcileStep(d, s))
		if !has(reader, s) {
			t.Fatalf("allocation %d: a full write after %v does not heal", n, err)
		}
		if err := d.Check(t.Context()); err != nil {
			t.Fatalf("allocation %d: after the full write: %v", n, err)
		}
		if !done {
			break
		}
		fired++
		if n > 40 && !*allFaults {
			n += rand.N(100)
		}
	}
	if fired == 0 {
		t.Error("no fault fired")
	}
	other()
	t.Logf("%d faults fired, %d times the step failed, %d of them between two of its transactions", fired, refused, mixed)
}

var baseChain = regexp.MustCompile(`(?s)type nat hook (?:prerouting|output) [^\n]*\n(.*?)\}`)

// isClosed reports whether no packet is translated: the base chains that lead to Services have no rules.
func isClosed(t *testing.T, ns *lab.Namespace) bool {
	chains := baseChain.FindAllStringSubmatch(dataplanetest.RunIn(t, ns, "", "nft", "list", "ruleset"), -1)
	return !slices.ContainsFunc(chains, func(m []string) bool { return strings.TrimSpace(m[1]) != "" })
}

// isUnsealed reports whether the kernel has the content, and only the mark is missing that says so.
func isUnsealed(t *testing.T, d dataplane.Reader, s *desired.State) bool {
	v, err := dataplane.Look(t.Context(), d, &s.Full().Change)
	must(t, err)
	for line := range strings.Lines(v.String()) {
		if !strings.Contains(line, "or are those of another configuration or version") {
			return false
		}
	}
	return true
}

// foreign makes a table of another program. The function that it returns fails the test unless that is as it was.
func foreign(t *testing.T, ns *lab.Namespace) func() {
	dataplanetest.RunIn(t, ns, "table inet other { set s { type ipv4_addr; elements = { 192.0.2.1 }; }; chain c { type filter hook forward priority 0; ip saddr @s counter accept; }; }", "nft", "-f", "-")
	list := func() string { return dataplanetest.RunIn(t, ns, "", "nft", "list", "table", "inet", "other") }
	was := list()
	return func() {
		if is := list(); is != was {
			t.Errorf("the table of another program has changed:\n%s\nwas:\n%s", is, was)
		}
	}
}

// failslab lets allocations fail that the kernel may wait for, which failslab leaves alone by default.
func failslab(t *testing.T) {
	const debugfs = "/sys/kernel/debug"
	if _, err := os.Stat(filepath.Join(debugfs, "failslab")); err != nil {
		must(t, unix.Mount("debugfs", debugfs, "debugfs", 0, ""))
	}
	must(t, os.WriteFile(filepath.Join(debugfs, "failslab/ignore-gfp-wait"), []byte("N"), 0))
}

// fault is an armed failure of an allocation.
type fault struct {
	file   *os.File
	left   int // allocations until it fires
	commit func(func() error) error
}

// arm lets the nth allocation within the coming commits of this thread fail.
func arm(t *testing.T, n int) *fault {
	file, err := os.OpenFile("/proc/thread-self/fail-nth", os.O_RDWR, 0)
	must(t, err)
	f := &fault{file: file, left: n, commit: sock.Commit}
	sock.Commit = func(send func() error) error {
		if f.left == 0 {
			return send()
		}
		_, armed := file.WriteAt([]byte(strconv.Itoa(f.left)), 0)
		err := send()
		b := make([]byte, 16)
		n, read := file.ReadAt(b, 0)
		if n == 0 || armed != nil {
			panic(errors.Join(armed, read))
		}
		f.left, _ = strconv.Atoi(strings.TrimSpace(string(b[:n])))
		if _, err := file.WriteAt([]byte("0"), 0); err != nil {
			panic(err)
		}
		return err
	}
	return f
}

// disarm reports whether the fault has fired.
func (f *fault) disarm(t *testing.T) bool {
	sock.Commit = f.commit
	must(t, f.file.Close())
	return f.left == 0
}
