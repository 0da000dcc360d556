// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/fatih/color"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// slipstream is the flag of 'make demo', where TestDemo prints to standard output as it goes on.
var slipstream = flag.String("slipstream", "", "the `binary` for TestDemo; built if empty")

// examples is the folder with what "make demo" has slipstream watch, "demo", and with the versions of its files that come
// later, "demo/steps".
var examples = os.DirFS("../../examples")

// demoLab is what the manifests of examples/demo describe, in all their versions, and two clients.
const (
	demoLab = `node node-1 192.168.100.11/24 fd00:100::11/64 pods 10.244.1.0/24 fd00:244:1::/64
node node-2 192.168.100.12/24 fd00:100::12/64 pods 10.244.2.0/24 fd00:244:2::/64
pod client-1 on node-1 10.244.1.100 fd00:244:1::100
pod client-2 on node-2 10.244.2.100 fd00:244:2::100
pod web-1 on node-1 10.244.1.11 fd00:244:1::11
pod web-2 on node-2 10.244.2.12 fd00:244:2::12
pod web-3 on node-1 10.244.1.13 fd00:244:1::13
pod web-4 on node-2 10.244.2.14 fd00:244:2::14
pod web-5 on node-1 10.244.1.15 fd00:244:1::15
pod dns-1 on node-1 10.244.1.53 fd00:244:1::53
pod dns-2 on node-2 10.244.2.53 fd00:244:2::53
pod orders-1 on node-2 10.244.2.21
pod orders-2 on node-1 10.244.1.22`
	demoCIDRs = "10.244.0.0/16,fd00:244::/32" // of all pods
)

var demoPorts = map[string]uint16{"web": 8080, "dns": 5353, "orders": 9000} // of the pods

const (
	demoSteps    = "demo/steps" // in the examples
	demoPatience = 3 * time.Minute
	demoPace     = 2 * time.Millisecond // from one connection of a flow to the next
)

// The pods of web that are added and removed.
var (
	webFirst   = []string{"web-1", "web-2", "web-3"}
	webJoining = []string{"web-4", "web-5"}
	webLeaving = []string{"web-1", "web-2"}
)

// demo shows 'slipstream run' on two nodes, real Services and real connections, and checks everything that it claims.
type demo struct {
	*report
	*topology
	binary    string
	manifests string // the directory that slipstream watches
	logs      string
	servers   map[string][]*lab.Server // by pod
	clients   []*lab.Machine
	proxies   []*demoProxy

	web, orders []*flow // one of each client; those to orders are refused for a while
	kinds       []*flow // of the step "reach"
	streams     []*lab.Stream
}

// play makes the lab and runs the demo. The error says why it could not go on, or that claims did not hold.
func play(ctx context.Context, t *testing.T, binary string, out io.Writer) error {
	t.Helper()
	s := &topology{lab: kerneltest.NewLab(t), machines: map[string]*lab.Machine{}, nodes: map[string]*lab.Node{}, owner: map[netip.Addr]string{}}
	d := &demo{
		report: &report{ctx: ctx, out: out}, topology: s, servers: map[string][]*lab.Server{},
		binary: binary, manifests: filepath.Join(t.TempDir(), "manifests"), logs: t.TempDir(),
	}
	for _, line := range lines(demoLab) {
		if err := s.machine(t, &datadriven.TestData{Pos: "demo"}, strings.Fields(line)); err != nil {
			return err
		}
	}
	for name, m := range s.machines {
		service, _, _ := strings.Cut(name, "-")
		for _, p := range []lab.Protocol{lab.TCP, lab.UDP} {
			if port := demoPorts[service]; port != 0 {
				server, err := m.Serve(p, netip.AddrPortFrom(netip.IPv6Unspecified(), port))
				if err != nil {
					return err
				}
				d.servers[name] = append(d.servers[name], server)
			}
		}
	}
	for _, number := range []string{"1", "2"} {
		d.clients = append(d.clients, s.machines["client-"+number])
		d.proxies = append(d.proxies, &demoProxy{node: s.nodes["node-"+number]})
	}
	if err := os.Mkdir(d.manifests, 0o755); err != nil {
		return err
	}
	if _, err := d.copy("demo"); err != nil {
		return err
	}
	for _, step := range []func() error{
		d.start, d.reach, d.scaleUp, d.scaleDown, d.noEndpoints, d.newEndpoint, d.restart, d.cleanup, d.summary,
	} {
		err := step()
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		if err != nil {
			return err
		}
	}
	if len(d.broken) > 0 {
		for _, p := range d.proxies {
			d.line(p.Explain(errors.New("a claim does not hold")).Error())
		}
		return fmt.Errorf("%d claims did not hold", len(d.broken))
	}
	return nil
}

// copy copies the files of a folder of the examples. Each is renamed, so that slipstream never reads half a file. It
// returns the time just before the last rename.
func (d *demo) copy(from string) (renamed time.Time, err error) {
	names, err := fs.Glob(examples, from+"/*.yaml")
	for _, name := range names {
		data, err := fs.ReadFile(examples, name)
		hidden := filepath.Join(d.manifests, ".new")
		if err = errors.Join(err, os.WriteFile(hidden, data, 0o644)); err != nil {
			return renamed, err
		}
		renamed = time.Now()
		if err := os.Rename(hidden, filepath.Join(d.manifests, path.Base(name))); err != nil {
			return renamed, err
		}
	}
	return renamed, err
}

// pause lets connections flow for a while.
func (d *demo) pause(long time.Duration) {
	select {
	case <-time.After(long):
	case <-d.ctx.Done():
	}
}

// await waits until a condition holds.
func (d *demo) await(holds func() bool) bool {
	return wait.PollUntilContextTimeout(d.ctx, 2*time.Millisecond, demoPatience, true, func(context.Context) (bool, error) { return holds(), nil }) == nil
}

// start shows the Services, and starts slipstream on each node.
func (d *demo) start() error {
	version, err := exec.CommandContext(d.ctx, d.binary, "version").Output()
	if err != nil {
		return fmt.Errorf("%s version: %w", d.binary, err)
	}
	d.line("Slipstream on Linux " + kerneltest.Kernel() + ", " + strings.TrimSpace(string(version)))
	d.line("Two nodes made of network namespaces, real kernel rules, real connections.")
	s := d.step("slipstream starts")
	d.table([][]string{
		{"SERVICE", "ADDRESSES", "PORTS", "PODS"},
		{"web", "10.96.0.10 fd00:96::10", "80/TCP", strings.Join(webFirst, " ")},
		{"dns", "10.96.0.53 fd00:96::53", "53/UDP 53/TCP", "dns-1 dns-2"},
		{"orders", "10.96.0.20", "80/TCP", "orders-1"},
	})
	d.say("\nSlipstream watches a copy of examples/demo:")
	d.command("slipstream run --manifests DIR --hostname-override NODE")
	return d.startAll(s)
}

// startAll starts slipstream on each node, and waits until it has programmed the kernel.
func (d *demo) startAll(s *step) (err error) {
	for _, p := range d.proxies {
		begin := time.Now()
		patient, cancel := context.WithTimeout(d.ctx, demoPatience)
		p.Program, err = p.node.StartSlipstream(patient, d.logs, d.binary, d.manifests, "--cluster-cidr", demoCIDRs, "-v", "2")
		cancel()
		if err != nil {
			return err
		}
		u, err := d.updated(p, begin)
		if err != nil {
			return err
		}
		s.programmed = append(s.programmed, u.took)
	}
	return nil
}

// reach makes connections of every kind and counts who answers them.
func (d *demo) reach() error {
	d.step("connections of every kind")
	const each = 150
	for _, c := range []struct {
		from  string
		proto lab.Protocol
		to    string
		pods  []string
	}{
		{"client-1", lab.TCP, "10.96.0.10:80", webFirst},
		{"client-2", lab.TCP, "[fd00:96::10]:80", webFirst},
		{"node-1", lab.TCP, "10.96.0.10:80", webFirst},
		{"client-2", lab.UDP, "10.96.0.53:53", []string{"dns-1", "dns-2"}},
		{"client-1", lab.TCP, "[fd00:96::53]:53", []string{"dns-1", "dns-2"}},
	} {
		f, err := d.flow(d.machines[c.from], c.proto, c.to, 0, each)
		if err != nil {
			return err
		}
		d.kinds = append(d.kinds, f)
		stats := f.load.Wait()
		pods := slices.Sorted(maps.Keys(stats.Servers))
		var servers []string
		for _, pod := range pods {
			servers = append(servers, fmt.Sprintf("%s %d", pod, stats.Servers[pod]))
		}
		d.claim(stats.OK == each && slices.Equal(pods, c.pods), "%-8s -> %-20s %d of %d: %s%s",
			c.from, fmt.Sprintf("%s/%v", c.to, c.proto), stats.OK, each, strings.Join(servers, ", "), because(stats.First))
	}
	return nil
}

// applied is one version of the manifests that is in force.
type applied struct {
	renamed time.Time // when its file was put in place
	nodes   []update  // what each node's slipstream did
}

// done is when all kernels had been programmed.
func (a applied) done() time.Time {
	return slices.MaxFunc(a.nodes, func(a, b update) int { return a.done.Compare(b.done) }).done
}

// apply copies the next version of a manifest and waits until both kernels have it.
func (d *demo) apply(s *step, dir string) (a applied, err error) {
	d.command("cp examples/%s/%s/* DIR", demoSteps, dir)
	if a.renamed, err = d.copy(demoSteps + "/" + dir); err != nil {
		return a, err
	}
	for _, p := range d.proxies {
		u, err := d.updated(p, a.renamed)
		if err != nil {
			return a, err
		}
		a.nodes = append(a.nodes, u)
		s.programmed = append(s.programmed, u.took)
	}
	return a, nil
}

// scaleUp starts the connections to web, which go on until the end, and adds pods.
func (d *demo) scaleUp() error {
	s := d.step("two pods are added")
	for i, client := range d.clients {
		to := []string{"10.96.0.10:80", "[fd00:96::10]:80"}[i]
		if err := d.streamTo(client, netip.MustParseAddrPort(to), webFirst, 2); err != nil {
			return err
		}
		f, err := d.flow(client, lab.TCP, to, demoPace, 0)
		if err != nil {
			return err
		}
		d.web = append(d.web, f)
	}
	d.say("From here to the end each client makes a connection to web every %v, and\nkeeps %d connections open on which messages go back and forth.",
		demoPace, len(d.streams)/len(d.clients))
	d.pause(500 * time.Millisecond)
	a, err := d.apply(s, "1-scale-up")
	if err != nil {
		return err
	}
	all := true
	for _, f := range d.web {
		for _, server := range webJoining {
			answered := d.await(func() bool { return len(f.answers(a.renamed, server)) > 0 })
			all = all && answered
			if answered {
				s.seen = append(s.seen, f.answers(a.renamed, server)[0].end.Sub(a.renamed))
			}
		}
	}
	d.claim(all, "both new pods answer both clients")
	return nil
}

// scaleDown removes pods as a cluster does: first they are terminating.
func (d *demo) scaleDown() error {
	s := d.step("two pods terminate")
	a, err := d.apply(s, "2-web-terminating")
	if err != nil {
		return err
	}
	d.pause(500 * time.Millisecond)
	d.flowed(d.web, a.done())
	late := 0
	for i, f := range d.web {
		for _, server := range webLeaving {
			late += len(f.answers(a.nodes[i].done, server))
			if last := f.answers(a.renamed, server); len(last) > 0 {
				s.seen = append(s.seen, last[len(last)-1].begin.Sub(a.renamed))
			}
		}
	}
	d.claim(late == 0, "%d new connections to them once the kernel was programmed", late)
	d.drain(webLeaving...)
	before := d.updates()
	d.command("cp examples/%s/3-web-terminated/* DIR", demoSteps)
	if _, err := d.copy(demoSteps + "/3-web-terminated"); err != nil {
		return err
	}
	d.pause(time.Second)
	d.claim(d.updates() == before, "that they leave the EndpointSlices does not change the kernel")
	leaving := slices.DeleteFunc(slices.Clone(d.streams), func(s *lab.Stream) bool {
		return !slices.Contains(webLeaving, s.Stats().Server)
	})
	d.claim(d.alive(leaving), "the %d established connections to them go on", len(leaving))
	return nil
}

// drain has pods no longer listen. Their open connections go on.
func (d *demo) drain(pods ...string) {
	for _, pod := range pods {
		for _, s := range d.servers[pod] {
			s.Drain()
		}
	}
}

// noEndpoints removes the only pod of a Service.
func (d *demo) noEndpoints() error {
	s := d.step("the last endpoint is removed")
	for _, client := range d.clients {
		f, err := d.flow(client, lab.TCP, "10.96.0.20:80", demoPace, 0)
		if err != nil {
			return err
		}
		d.orders = append(d.orders, f)
	}
	d.flowed(d.orders, time.Now())
	a, err := d.apply(s, "4-orders-gone")
	if err != nil {
		return err
	}
	d.flowed(d.orders, a.done())
	d.drain("orders-1")
	d.pause(500 * time.Millisecond)
	early, other := 0, 0
	var waits []time.Duration
	for i, f := range d.orders {
		seen := false
		for _, c := range f.since(time.Time{}) {
			refused := errors.Is(c.err, lab.ErrRefused)
			switch {
			case c.end.Before(a.renamed) && c.err != nil:
				early++
			case !c.begin.Before(a.nodes[i].done) && !refused:
				other++
			case !c.begin.Before(a.nodes[i].done):
				waits = append(waits, c.end.Sub(c.begin))
			}
			if refused && !seen {
				seen = true
				s.seen = append(s.seen, c.end.Sub(a.renamed))
			}
		}
	}
	slices.Sort(waits)
	if len(waits) == 0 {
		waits = []time.Duration{0}
		other++
	}
	d.claim(early == 0, "%d connections to orders failed before", early)
	d.claim(other == 0, "every one since was refused at once, in %s (median) and %s at most", short(waits[len(waits)/2]), short(waits[len(waits)-1]))
	return nil
}

// newEndpoint gives that Service another pod.
func (d *demo) newEndpoint() error {
	s := d.step("a new endpoint is added")
	a, err := d.apply(s, "5-orders-back")
	if err != nil {
		return err
	}
	d.pause(200 * time.Millisecond)
	d.flowed(d.orders, a.done())
	answered, failed := 0, 0
	for i, f := range d.orders {
		f.load.Stop()
		for _, c := range f.since(a.nodes[i].done) {
			if c.err != nil {
				failed++
			} else {
				answered++
			}
		}
		if first := f.answers(a.renamed, "orders-2"); len(first) > 0 {
			s.seen = append(s.seen, first[0].end.Sub(a.renamed))
		}
	}
	d.claim(failed == 0 && answered > 0, "%d connections once the kernel was programmed, %d failed", answered+failed, failed)
	return nil
}

// restart kills slipstream on all nodes and starts it again.
func (d *demo) restart() error {
	s := d.step("kill -9 and restart")
	for _, p := range d.proxies {
		d.command("kill -9 %d    # slipstream on %s", p.PID(), p.node.Name())
		if err := p.Close(); err != nil {
			return err
		}
	}
	dead := time.Now()
	d.pause(time.Second)
	d.flowed(d.web, dead)
	ok, failed := d.webSince(dead)
	d.claim(ok > 0 && failed == 0, "%d new connections in %s without slipstream, %d failed", ok+failed, short(time.Since(dead)), failed)
	again := time.Now()
	if err := d.startAll(s); err != nil {
		return err
	}
	d.flowed(d.web, time.Now())
	ok, failed = d.webSince(again)
	d.claim(ok > 0 && failed == 0, "%d new connections while it took over, %d failed", ok+failed, failed)
	d.claim(d.alive(d.streams), "all %d established connections go on, those to removed pods included", len(d.streams))
	return nil
}

// cleanup stops slipstream and removes its rules.
func (d *demo) cleanup() error {
	d.step("cleanup")
	for _, p := range d.proxies {
		ctx, cancel := context.WithTimeout(d.ctx, demoPatience)
		err := p.Terminate(ctx)
		cancel()
		if err == nil {
			err = p.Wait()
		}
		d.claim(err == nil, "slipstream on %s ends after SIGTERM%s", p.node.Name(), because(err))
	}
	stopped := time.Now()
	d.pause(300 * time.Millisecond)
	d.flowed(d.web, stopped)
	ok, failed := d.webSince(stopped)
	d.claim(ok > 0 && failed == 0, "%d new connections since, %d failed: its rules stay", ok+failed, failed)
	d.claim(d.alive(d.streams), "all %d established connections go on", len(d.streams))
	// The clients stop first: without any NAT rule in the namespace the kernel no longer
	// translates the packets of established connections.
	for _, f := range d.web {
		f.load.Stop()
	}
	for _, s := range d.streams {
		_ = s.Close()
	}
	d.say("The clients stop.")
	d.command("slipstream cleanup")
	for _, p := range d.proxies {
		before, err1 := tables(p.node)
		_, err2 := p.node.Run(d.ctx, d.binary, "cleanup")
		after, err3 := tables(p.node)
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		d.claim(len(before) > 0 && len(after) == 0, "nftables of %s: %v before, %v after", p.node.Name(), before, after)
	}
	return nil
}

// demoBinary is the binary that the flag names, or one that is built now.
func demoBinary(t *testing.T) string {
	t.Helper()
	kerneltest.Require(t, kerneltest.NFTables)
	if kerneltest.UML() {
		t.Skip("slow: it is compiled, and shown on the machine's own kernel")
	}
	if *slipstream != "" {
		binary, err := filepath.Abs(*slipstream)
		if err != nil {
			t.Fatal(err)
		}
		return binary
	}
	binary := filepath.Join(t.TempDir(), "slipstream")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-trimpath", "-o", binary, "../../cmd/slipstream")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return binary
}

// TestDemo is the demo. With -slipstream it prints for people.
func TestDemo(t *testing.T) {
	out := t.Output()
	if *slipstream != "" {
		out = os.Stdout
	} else {
		color.NoColor = true
	}
	// A second Ctrl-C, or the end of a reader of the output, must not interrupt the clean-up.
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	if err := play(ctx, t, demoBinary(t), out); err != nil {
		t.Fatal(err)
	}
}

// Claims can fail: here cleanup does nothing.
func TestDemoSeesWhatIsNotSo(t *testing.T) {
	script := filepath.Join(t.TempDir(), "slipstream")
	text := "#!/bin/sh\n[ \"$1\" = cleanup ] && exit 0\nexec " + demoBinary(t) + " \"$@\"\n"
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	color.NoColor = true // the test's own output may be a terminal
	var out strings.Builder
	err := play(t.Context(), t, script, &out)
	if err == nil || err.Error() != "2 claims did not hold" {
		t.Fatalf("error %v\n%s", err, &out)
	}
	for _, want := range []string{
		"✗ DOES NOT HOLD: nftables of node-1: [ip slipstream ip6 slipstream] before, [ip slipstream ip6 slipstream] after",
		"nftables of node-2: [", "client-1 -> 10.96.0.10:80/TCP", "✗ cleanup", "2 of 24 claims do not hold:",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in the output:\n%s", want, &out)
		}
	}
	for l := range strings.Lines(out.String()) {
		if l = strings.TrimSuffix(l, "\n"); strings.ContainsAny(l, "\x1b\r") || strings.HasSuffix(l, " ") {
			t.Errorf("not plain: %q", l)
		}
	}
}

// An interrupted demo claims nothing more.
func TestDemoInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	color.NoColor = true
	out := &interrupter{at: "steps/2-web-terminating", cancel: cancel}
	err := play(ctx, t, demoBinary(t), out)
	if text := out.String(); err == nil || err.Error() != "interrupted" || !strings.Contains(text, out.at) || strings.Contains(text, "✗") {
		t.Errorf("error %v\n%s", err, out)
	}
}

// interrupter ends a context when it sees a text.
type interrupter struct {
	strings.Builder
	at     string
	cancel context.CancelFunc
}

func (i *interrupter) Write(p []byte) (int, error) {
	n, err := i.Builder.Write(p)
	if strings.Contains(i.String(), i.at) {
		i.cancel()
	}
	return n, err
}
