// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/socket"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/spf13/pflag"
)

// previous returns the folder of test/previous.sh, with slipstream and its configuration files at the commit
// from which upgrades are tested.
func previous(t *testing.T) string {
	t.Helper()
	if kerneltest.UML() { // compiling is slow there
		t.Skip("NOT RUN on kernel " + kerneltest.Kernel() + ": runs on the host")
	}
	folder, err := buildPrevious()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 3 {
		// A shallow clone, or none, must be able to run all tests.
		t.Skip("NOT HERE: this checkout lacks the commit from which upgrades are tested (git fetch --unshallow)")
	}
	if exit != nil && exit.ExitCode() == 4 {
		t.Skip("NOT RUN: the former version is not built; test/previous.sh builds it, and so does this test as root")
	}
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

// builtPrevious returns the folder on User Mode Linux, where compiling is slow: tests on the host make it meanwhile.
func builtPrevious(t *testing.T) string {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(time.Second) {
		if out, err := exec.Command("../../test/previous.sh", "--cached").Output(); err == nil {
			return strings.TrimSpace(string(out))
		}
	}
	t.Skip("NOT RUN: no test on the host has built the former version, see test/previous.sh")
	return ""
}

var buildPrevious = sync.OnceValues(func() (string, error) {
	cmd := exec.Command("../../test/previous.sh")
	if os.Geteuid() != 0 { // 'go test ./...' is to end within a minute, also the first time
		cmd.Args = append(cmd.Args, "--cached")
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
})

// release is a slipstream of a site.
type release struct {
	*site
	name, binary string // without a binary, it is this one
	socket       string
	args         []string
}

func (v *release) command(args ...string) *exec.Cmd {
	cmd := v.site.command(args...)
	if v.binary != "" {
		cmd.Path = v.binary
	}
	return cmd
}

// start starts it, and waits until it has programmed the kernel.
func (v *release) start() *lab.Process {
	v.t.Helper()
	fmt.Fprintf(&v.log, "--- %s starts\n", v.name)
	said := len(v.log.String())
	p, err := v.node.Start(v.command(append([]string{"run", "-v", "2", "--status-socket", v.socket}, v.args...)...))
	v.check(err)
	v.t.Cleanup(func() { p.Kill() })
	v.until(v.name+" has programmed the kernel", func() bool { return strings.Contains(v.log.String()[said:], `kind="full"`) })
	return p
}

// verified fails the test unless its verify finds no difference.
func (v *release) verified() {
	v.t.Helper()
	var out bytes.Buffer
	cmd := v.command(append([]string{"verify"}, v.args...)...)
	cmd.Stdout = &out
	p, err := v.node.Start(cmd)
	v.check(err)
	if err := p.Wait(); err != nil || !strings.HasSuffix(out.String(), ": the same\n") { // versions count different things
		v.t.Errorf("verify of %s: %v:\n%s", v.name, err, out.String())
	}
}

var (
	limitedAddr = netip.MustParseAddrPort("10.96.0.30:80")
	dnsAddr     = netip.MustParseAddrPort("10.96.0.20:53")
	mediaAddr   = netip.MustParseAddrPort("10.96.0.40:8080") // of a range of ports
)

// limited is a Service with a limit that the former version does not know, one of UDP, and one with what else it does
// not know.
const limited = `apiVersion: v1
kind: Service
metadata: {name: limited, annotations: {slipstream.io/max-connections: "1"}}
spec: {clusterIP: 10.96.0.30, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: limited, labels: {kubernetes.io/service-name: limited}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.1.10], nodeName: n1}]
---
apiVersion: v1
kind: Service
metadata: {name: dns}
spec: {clusterIP: 10.96.0.20, sessionAffinity: ClientIP, ports: [{protocol: UDP, port: 53, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: dns, labels: {kubernetes.io/service-name: dns}}
addressType: IPv4
ports: [{protocol: UDP, port: 8080}]
endpoints: [{addresses: [10.244.1.10], nodeName: n1}, {addresses: [10.244.1.11], nodeName: n1}]
---
apiVersion: v1
kind: Service
metadata: {name: media, annotations: {slipstream.io/port-ranges: tcp/8000-9000, slipstream.io/external-failover: passthrough}}
spec: {clusterIP: 10.96.0.40, externalIPs: [192.0.2.40], externalTrafficPolicy: Local, type: NodePort, ports: [{port: 80, nodePort: 30040, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: media, labels: {kubernetes.io/service-name: media}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.1.12], nodeName: n1}]
`

// TestUpgrade replaces the former version of slipstream by this one, and this one by the former, while clients
// connect all the time and others stay connected. No connection fails, also while neither runs. What each version
// finds in the kernel is right for it, and changes reach clients. The former version runs with the
// configuration file that it has written, and so does this one.
func TestUpgrade(t *testing.T) {
	for _, c := range []struct {
		name, mode string
		needs      []kerneltest.Feature
		args       []string
	}{
		{name: "ipvs", mode: config.IPVS, needs: []kerneltest.Feature{kerneltest.IPVS, kerneltest.IPSet}},
		{name: "flowtable", mode: config.NFTables, needs: []kerneltest.Feature{kerneltest.Flowtable}, args: []string{"--fast-path-engine", "flowtable"}},
		{name: "nftables", mode: config.NFTables, args: []string{"--offload-packet-threshold", "0"}},
		{name: "iptables-nft", mode: config.IPTables, needs: []kerneltest.Feature{kerneltest.IPTablesNFT, kerneltest.IPSet}},
		{name: "iptables-legacy", mode: config.IPTables, needs: []kerneltest.Feature{kerneltest.IPTablesLegacy, kerneltest.IPSet}},
		{name: "ebpf", mode: config.NFTables, needs: []kerneltest.Feature{kerneltest.BPFIngress}, args: []string{"--fast-path-engine", "ebpf"}},
		{name: "sockets", mode: config.NFTables, needs: []kerneltest.Feature{kerneltest.CGroupBPF}, args: []string{"--socket-load-balancing", "tcp"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			kerneltest.Require(t, append(c.needs, kerneltest.NFTBinary)...)
			var folder string
			if c.name == "ipvs" || c.name == "flowtable" {
				if strings.HasPrefix(kerneltest.Kernel(), "6.1.") {
					t.Skip("runs on a newer kernel")
				}
				folder = builtPrevious(t)
			} else {
				folder = previous(t)
			}
			s := newSite(t)
			if variant, ok := strings.CutPrefix(c.name, "iptables-"); ok {
				_, err := s.node.Run(t.Context(), "iptables-"+variant, "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
				s.check(err)
			}
			if c.name == "sockets" {
				kerneltest.CGroup(t)
				t.Cleanup(func() { s.check(socket.Remove(s.node.FD())) })
			}
			s.save("web.yaml", web(0, 1))
			s.save("limited.yaml", limited)
			s.save("padding.yaml", padding(100))

			file := filepath.Join(t.TempDir(), "config.conf")
			former := &release{site: s, name: "the former version", binary: filepath.Join(folder, "slipstream"), socket: socketPath(t), args: []string{"--config", file}}
			now := &release{site: s, name: "this version", socket: former.socket, args: former.args}
			cmd := former.command(append([]string{"run", "--write-config-to", file, "--manifests", s.dir, "--hostname-override", "n1",
				"--proxy-mode", c.mode, "--cluster-cidr", "10.244.0.0/16", "--healthz-bind-address=", "--metrics-bind-address=127.0.0.1:10249", "--oom-score-adj=0",
				"--conntrack-max-per-core=0", "--conntrack-min=0", "-v", "2"}, c.args...)...)
			p, err := s.node.Start(cmd)
			s.check(err)
			s.check(p.Wait())

			p = former.start()
			s.untilReached("web-0", "web-1")
			traffic := s.startTraffic()
			for i, v := range []*release{now, former} {
				s.check(p.Signal(syscall.SIGTERM))
				s.check(p.Wait())
				traffic.more() // while none runs
				p = v.start()
				traffic.more()
				s.save("web.yaml", web(i%3, (i+1)%3))
				s.untilReached(fmt.Sprintf("web-%d", i%3), fmt.Sprintf("web-%d", (i+1)%3))
				traffic.hold()
				traffic.more()
				v.verified()
				if c.name == "nftables" {
					s.newFeatures(v == now)
				}
			}
			traffic.stop()
			s.check(p.Signal(syscall.SIGTERM))
			s.check(p.Wait())
			s.cleanup("--kube-proxy")
			if tables := s.tables(); strings.Contains(tables, "slipstream") {
				t.Errorf("after cleanup there are\n%s", tables)
			}
		})
	}
}

// newFeatures checks that the limits of connections hold in this version. They go on in the former one, which does not
// know them, until their table is deleted, as docs/operate.md says. Ranges of ports are this version's only.
func (s *site) newFeatures(known bool) {
	s.t.Helper()
	stream, err := s.client.Stream(lab.TCP, limitedAddr, 10*time.Millisecond)
	s.check(err)
	defer stream.Close()
	if _, err := s.client.Connect(lab.TCP, limitedAddr); !errors.Is(err, lab.ErrRefused) {
		s.t.Errorf("a second connection: %v", err)
	}
	_, err = s.client.Connect(lab.TCP, mediaAddr, lab.Timeout(patience))
	if served := err == nil; served != known {
		s.t.Errorf("a connection to a range of ports: %v", err)
	}
	if !known {
		_, err := s.node.Run(s.t.Context(), "nft", "delete table ip slipstream-limits")
		s.check(err)
		_, err = s.client.Connect(lab.TCP, limitedAddr)
		s.check(err)
	}
	s.alive(stream)
	s.check(stream.Close())
	s.until("conntrack has seen its end", func() bool {
		out, err := s.node.Run(s.t.Context(), "conntrack", "-L", "-p", "tcp", "--state", "ESTABLISHED", "--orig-dst", limitedAddr.Addr().String())
		s.check(err)
		return len(out) == 0
	})
}

// upgradeTraffic is what goes on during an upgrade.
type upgradeTraffic struct {
	*site
	loads   []*lab.Load
	streams []*lab.Stream
}

func (s *site) startTraffic() *upgradeTraffic {
	s.t.Helper()
	r := &upgradeTraffic{site: s}
	start := func(m *lab.Machine, protocol lab.Protocol, to netip.AddrPort, o lab.LoadOptions) {
		o.Connect = []lab.ConnectOption{lab.Timeout(patience)} // a machine that is busy; a lost SYN is seen as one that is repeated
		l, err := m.StartLoad(s.t.Context(), protocol, to, o)
		s.check(err)
		r.loads = append(r.loads, l)
	}
	start(&s.client.Machine, lab.TCP, webAddr, lab.LoadOptions{Workers: 2, Pace: 5 * time.Millisecond})
	start(&s.node.Machine, lab.TCP, webAddr, lab.LoadOptions{Pace: 5 * time.Millisecond})
	start(&s.client.Machine, lab.UDP, dnsAddr, lab.LoadOptions{Pace: 20 * time.Millisecond})
	r.hold()
	return r
}

// hold adds connections that stay.
func (r *upgradeTraffic) hold() {
	r.t.Helper()
	for _, m := range []*lab.Machine{&r.client.Machine, &r.node.Machine} {
		stream, err := m.Stream(lab.TCP, webAddr, 2*time.Millisecond, lab.Timeout(patience))
		r.check(err)
		r.streams = append(r.streams, stream)
	}
}

// more waits until all clients have had more answers, and fails the test if one has failed.
func (r *upgradeTraffic) more() {
	r.t.Helper()
	for _, stream := range r.streams {
		if r.alive(stream); stream.Stats().Failed > 0 || stream.Stats().Ended {
			r.t.Fatalf("a connection that stays: %+v", stream.Stats())
		}
	}
	for _, l := range r.loads {
		before := l.Stats()
		r.until("more connections", func() bool {
			st := l.Stats()
			if st.Failed > 0 {
				r.t.Fatalf("connections: %v", st)
			}
			return st.OK > before.OK+10
		})
	}
}

func (r *upgradeTraffic) stop() {
	r.t.Helper()
	r.more()
	for _, l := range r.loads {
		if st := l.Stop(); st.Failed > 0 {
			r.t.Errorf("connections: %v", st)
		}
	}
	for _, stream := range r.streams {
		if st := stream.Stats(); st.Failed > 0 || st.Ended {
			r.t.Errorf("a connection that stayed: %+v", st)
		}
		r.check(stream.Close())
	}
}

// TestFormerFlags checks that each flag of the former version is still one, of the same type.
func TestFormerFlags(t *testing.T) {
	help, err := exec.Command(filepath.Join(previous(t), "slipstream"), "run", "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	// "-v, --v Level   text", "--cleanup   text", "--version string[="true"]   text"
	_, help, _ = bytes.Cut(help, []byte("\nFlags:\n"))
	all := regexp.MustCompile(`(?m)^ {2,6}(?:-\w, )?--([a-z0-9-]+)(?: (\S+))?  +`).FindAllSubmatch(help, -1)
	if len(all) < 70 {
		t.Errorf("%d flags found in\n%s", len(all), help)
	}
	fs := newRun().Flags()
	fs.BoolP("help", "h", false, "")
	for _, flag := range all {
		name, _, _ := strings.Cut(string(flag[2]), "[")
		f := fs.Lookup(string(flag[1]))
		if f == nil {
			t.Errorf("there is no --%s any more", flag[1])
			continue
		}
		if now, _ := pflag.UnquoteUsage(f); now != name {
			t.Errorf("--%s has the type %q, and had %q", flag[1], now, name)
		}
	}
}

// TestFormerFiles checks that the configuration files of the former version mean what they meant: what it writes
// from each of them is, but for what is new, what this one writes.
func TestFormerFiles(t *testing.T) {
	folder := previous(t)
	for _, file := range []string{"release.conf", "kustomize.conf", "both.yaml", "kubeadm.yaml"} {
		written := func(path string, env ...string) string {
			out := filepath.Join(t.TempDir(), "out.yaml")
			cmd := exec.Command(path, "run", "--config", filepath.Join(folder, file), "--write-config-to", out)
			cmd.Env = append(os.Environ(), env...)
			if said, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %s: %v: %s", file, path, err, said)
			}
			text, err := os.ReadFile(out)
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		former, now := written(filepath.Join(folder, "slipstream")), written("/proc/self/exe", asMain+"=1")
		for line := range strings.Lines(former) {
			if !strings.Contains("\n"+now, "\n"+line) && !strings.HasPrefix(line, "namespaceElements:") && // more room, by other rules
				line != "apiVersion: slipstream.config/v1alpha1\n" {
				t.Errorf("%s: this version does not write %q", file, line)
			}
		}
	}
}
