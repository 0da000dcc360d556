// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/iptables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/desired/desiredtest"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/sock"
	"github.com/slipstream-proxy/slipstream/internal/node/takeover"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

var allFaults = flag.Bool("faults", false, "let each allocation fail; otherwise the first 10 of a step, and every 100th or so after them")

// TestFaults lets the Nth allocation of the kernel fail within the system calls that change it, until all have been
// tried (Documentation/fault-injection of the kernel), or, in iptables mode, within the commands, from their start to
// their end. Only the kernels of the tests can do that.
func TestFaults(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables, kerneltest.NFTBinary, kerneltest.IPVS, kerneltest.IPTablesNFT, kerneltest.IPTablesLegacy, kerneltest.IPSet, kerneltest.OwnClock)
	if onOldest() && !*allFaults {
		t.Skip("runs on a newer kernel")
	}
	failslab(t)
	var commands commandFaults
	for _, mode := range []struct {
		name string
		open Mode
	}{
		{"nftables", newNFTables}, {"ipvs", newIPVS}, {"iptables-nft", newIPTables(iptables.NFT)}, {"iptables-legacy", newIPTables(iptables.Legacy)},
	} {
		t.Run(mode.name, func(t *testing.T) {
			for _, k := range faultKinds {
				t.Run(k.name, func(t *testing.T) {
					variant, is := strings.CutPrefix(mode.name, "iptables-")
					calls := &callFaults{reads: k.reads}
					switch {
					case is: // calls are few, as commands write
						calls.sparse = 200
					case k.over:
						calls.sparse = 2000
					}
					var f faults = calls
					switch {
					case variant == "legacy" && !*allFaults && k.name != "Services" && k.name != "clean-up":
						t.Skip("NOT HERE: it takes minutes, -faults has it")
					case is && !k.over && !k.empty: // what removes runs no command
						commands.prepare(t, variant)
						f = &commands
					}
					sweep(t, mode.open, mode.name, k, f)
				})
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
	reads  bool // calls that read fail, too
	over   bool // objects of kube-proxy are there
}

var errWrong = errors.New("verify finds differences that are not there")

func verifyStep(d dataplane.Dataplane, s *desired.State) error {
	v, err := dataplane.Look(context.Background(), d.(dataplane.Reader), &s.Full().Change)
	if err == nil && len(v.Differences) > 0 {
		return fmt.Errorf("%w: %v", errWrong, v)
	}
	return err
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
	{name: "take-over", change: faultWeb, step: reconcileStep, closed: true, over: true},
	{name: "verify", before: faultWeb, step: verifyStep, reads: true},
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
func sweep(t *testing.T, open Mode, mode string, k faultKind, f faults) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ns, err := lab.NewNamespace()
	must(t, err)
	t.Cleanup(func() { ns.Close() })
	wrapSockets(t)
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
	for n := f.first(); ; n++ {
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
		if k.over {
			kubeProxy(t, ns)
		}
		step := func() error {
			err := k.step(d, s)
			if err == nil && k.over {
				err = ns.Do(func() error {
					return takeover.Remove(context.Background(), takeover.Options{KeepVirtualServers: mode == "ipvs"})
				})
			}
			return err
		}
		f.arm(t, n)
		err := step()
		done := f.disarm(t)
		// ip6tables-nft-save was seen to print a rule without its match, and to succeed. Another look tells what is true.
		_, ofCommand := f.(*commandFaults)
		if errors.Is(err, errWrong) && (!ofCommand || verifyStep(d, s) != nil) {
			t.Fatalf("allocation %d: %v", n, err)
		}
		old, new := state(k.before), state(k.before, k.change)
		if k.damage {
			old = state()
		}
		if k.empty {
			new = state()
		}
		isOld := err != nil && has(reader, old)
		isNew := !isOld && (has(reader, new) || k.empty && !hasChains(t, ns))
		switch {
		case err == nil && !isNew && (!ofCommand || !errors.Is(verifyStep(d, s), errWrong)):
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
		if k.over {
			if err != nil {
				must(t, step()) // as the proxy does
			}
			if left := kubeProxys(t, ns); left != "" {
				t.Fatalf("allocation %d: after %v and another try this is left of kube-proxy:\n%s", n, err, left)
			}
		}
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
		n += f.skip(n)
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
	chains := baseChain.FindAllStringSubmatch(dataplanetest.RunIn(t, ns, "", "sh", "-c", "nft list table ip slipstream 2>/dev/null; true"), -1)
	return !slices.ContainsFunc(chains, func(m []string) bool { return strings.TrimSpace(m[1]) != "" })
}

// hasChains reports whether there are chains of iptables mode, besides the one that stays.
func hasChains(t *testing.T, ns *lab.Namespace) bool {
	all := dataplanetest.RunIn(t, ns, "", "sh", "-c", "{ nft list ruleset; iptables-legacy-save; nft list table ip slipstream; } 2>/dev/null; true")
	return strings.Contains(strings.ReplaceAll(all, "SLIP-LOCALNET", ""), "SLIP-") || strings.Contains(all, "table ip slipstream")
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

// faults let one allocation fail within a step.
type faults interface {
	arm(t *testing.T, n int)
	disarm(t *testing.T) (fired bool)
	first() int
	skip(n int) int // how many are left out after the nth
}

// callFaults are faults of this process's system calls that change the kernel, and of those that read.
type callFaults struct {
	reads  bool
	sparse int // how many it leaves out at most after each; 0 for the usual
	left   int // allocations until it fires
	commit func(func() error) error
}

// armed is what the sockets of the test let fail.
var armed *callFaults

func (f *callFaults) arm(_ *testing.T, n int) {
	f.left, f.commit = n, sock.Commit
	if f.reads {
		armed = f
	} else {
		sock.Commit = f.during
	}
}

func (f *callFaults) disarm(*testing.T) bool {
	sock.Commit, armed = f.commit, nil
	return f.left == 0
}

func (f *callFaults) first() int { return 1 }

func (f *callFaults) skip(n int) int {
	switch {
	case *allFaults || n <= 10 && f.sparse == 0:
		return 0
	case f.sparse > 0:
		return rand.N(f.sparse)
	}
	return rand.N(200)
}

// during makes one system call, in which an allocation may fail.
func (f *callFaults) during(call func() error) error {
	if f.left == 0 {
		return call()
	}
	runtime.LockOSThread() // not that of the test, if it is in another namespace
	defer runtime.UnlockOSThread()
	file, err := os.OpenFile("/proc/thread-self/fail-nth", os.O_RDWR, 0)
	if err != nil {
		panic(err)
	}
	defer file.Close()
	_, write := file.WriteAt([]byte(strconv.Itoa(f.left)), 0)
	err = call()
	b := make([]byte, 16)
	n, read := file.ReadAt(b, 0)
	if n == 0 || write != nil {
		panic(errors.Join(write, read))
	}
	f.left, _ = strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if _, err := file.WriteAt([]byte("0"), 0); err != nil {
		panic(err)
	}
	return err
}

// wrapSockets makes netlink sockets whose calls can fail.
func wrapSockets(t *testing.T) {
	dial := sock.Dial
	sock.Dial = func(protocol int, to string, c netlink.Config) (*netlink.Conn, error) {
		conn, err := dial(protocol, to, c)
		if err != nil {
			return nil, err
		}
		raw, err := conn.SyscallConn()
		return netlink.NewConn(&faultSocket{conn, raw}, conn.PID()), err
	}
	t.Cleanup(func() { sock.Dial = dial })
}

type faultSocket struct {
	*netlink.Conn
	raw syscall.RawConn
}

func (s *faultSocket) SyscallConn() (syscall.RawConn, error) { return s, nil }
func (s *faultSocket) Control(f func(uintptr)) error         { return s.raw.Control(f) }
func (s *faultSocket) Read(f func(uintptr) bool) error       { return s.raw.Read(during(f)) }
func (s *faultSocket) Write(f func(uintptr) bool) error      { return s.raw.Write(during(f)) }

func during(call func(uintptr) bool) func(uintptr) bool {
	if armed == nil {
		return call
	}
	return func(fd uintptr) (done bool) {
		_ = armed.during(func() error { done = call(fd); return nil })
		return done
	}
}

func (s *faultSocket) Send(m netlink.Message) error { return s.SendMessages([]netlink.Message{m}) }

func (s *faultSocket) SendMessages(all []netlink.Message) error {
	var b []byte
	for _, m := range all {
		one, err := m.MarshalBinary()
		if err != nil {
			return err
		}
		b = append(b, one...)
	}
	return sock.Send(s, b)
}

func (s *faultSocket) Receive() (all []netlink.Message, err error) {
	b := make([]byte, 64<<10)
	n, err := sock.Receive(s, b, true)
	if err != nil {
		return nil, err
	}
	parsed, err := syscall.ParseNetlinkMessage(b[:n])
	for _, m := range parsed {
		h := netlink.Header{Length: m.Header.Len, Type: netlink.HeaderType(m.Header.Type), Flags: netlink.HeaderFlags(m.Header.Flags), Sequence: m.Header.Seq, PID: m.Header.Pid}
		all = append(all, netlink.Message{Header: h, Data: m.Data})
	}
	return all, err
}

func (s *faultSocket) ReceiveIter() iter.Seq2[netlink.Message, error] {
	return func(yield func(netlink.Message, error) bool) {
		all, err := s.Receive()
		if err != nil {
			yield(netlink.Message{}, err)
			return
		}
		for _, m := range all {
			if !yield(m, nil) {
				return
			}
		}
	}
}

// commandFaults are faults of commands. fail-nth is of one thread, and 0 after a fork. But a process inherits
// make-it-fail, and failslab lets each interval-th allocation of such processes fail.
type commandFaults struct {
	counted int // allocations, of which each interval-th fails
	path    string
	n       int
}

// prepare makes commands that set make-it-fail, and then become those of iptables.
func (f *commandFaults) prepare(t *testing.T, variant string) {
	f.path = t.TempDir()
	for _, command := range []string{"iptables-" + variant, "ip6tables-" + variant} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			to, err := exec.LookPath(command + suffix)
			must(t, err)
			must(t, os.WriteFile(filepath.Join(f.path, command+suffix), fmt.Appendf(nil, "#!/bin/sh\necho 1 >/proc/self/make-it-fail\nexec %s \"$@\"\n", to), 0o755))
		}
	}
	for name, value := range map[string]string{"task-filter": "Y", "verbose": "0", "space": "0"} {
		f.set(t, name, value)
	}
}

func (f *commandFaults) set(t *testing.T, name, value string) {
	must(t, os.WriteFile("/sys/kernel/debug/failslab/"+name, []byte(value), 0))
}

func (f *commandFaults) arm(t *testing.T, n int) {
	f.n = n
	f.set(t, "interval", strconv.Itoa(f.counted+n)) // more than were counted, so that it fires at this number
	f.set(t, "times", "1")
	f.set(t, "probability", "100")
	must(t, os.Setenv("PATH", f.path+":"+os.Getenv("PATH")))
}

func (f *commandFaults) hasFired(t *testing.T) bool {
	times, err := os.ReadFile("/sys/kernel/debug/failslab/times")
	must(t, err)
	return strings.TrimSpace(string(times)) == "0"
}

func (f *commandFaults) disarm(t *testing.T) bool {
	must(t, os.Setenv("PATH", strings.TrimPrefix(os.Getenv("PATH"), f.path+":")))
	fired := f.hasFired(t)
	for !f.hasFired(t) { // else nobody would know how many were counted
		_ = exec.Command("sh", "-c", "echo 1 >/proc/self/make-it-fail; exec cat /dev/null").Run()
	}
	f.counted += f.n
	f.set(t, "probability", "0")
	return fired
}

func (f *commandFaults) first() int { return 1 + rand.N(500) }

// skip leaves most out: nearly all are of the start of the commands.
func (f *commandFaults) skip(n int) int {
	if *allFaults {
		return rand.N(200)
	}
	return rand.N(5000)
}

// kubeProxy adds what kube-proxy leaves in its modes.
func kubeProxy(t *testing.T, ns *lab.Namespace) {
	dataplanetest.RunIn(t, ns, "table ip kube-proxy { chain services { type nat hook prerouting priority dstnat; ip daddr 10.96.0.1 tcp dport 80 dnat to 10.244.1.9:8080; }; }; table ip6 kube-proxy { chain services { }; }", "nft", "-f", "-")
	dataplanetest.RunIn(t, ns, "*nat\n:KUBE-SERVICES -\n-A PREROUTING -j KUBE-SERVICES\n-A KUBE-SERVICES -d 10.96.0.1/32 -j RETURN\nCOMMIT\n", "iptables-nft-restore", "--noflush")
	dataplanetest.RunIn(t, ns, "", "sh", "-c", "ip link add kube-ipvs0 type dummy 2>/dev/null; ip addr add 10.96.7.7/32 dev kube-ipvs0")
	dataplanetest.RunIn(t, ns, "-A -t 10.96.7.7:80 -s rr\n-a -t 10.96.7.7:80 -r 10.244.1.9:8080 -m -w 1\n", "ipvsadm", "--restore")
}

// kubeProxys is what is left of it.
func kubeProxys(t *testing.T, ns *lab.Namespace) string {
	return dataplanetest.RunIn(t, ns, "", "sh", "-c", "{ nft list ruleset; ipvsadm --save -n; ip addr; } 2>/dev/null | grep -E 'kube-proxy|KUBE-SERVICES|10.96.7.7' || true")
}
