// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/internal/source/manifest"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/slipstream-proxy/slipstream/test/kernel/uml"
)

// asMain makes the test binary behave as slipstream, so that tests run the real command as
// a separate process.
const asMain = "SLIPSTREAM_TEST_AS_MAIN"

func TestMain(m *testing.M) {
	uml.Init() // this binary is process 1 of the machines that TestIPv6Disabled boots
	if os.Getenv(trapped) != "" {
		if err := beTrapped(); err != nil {
			panic(err)
		}
	}
	if os.Getenv(asMain) != "" {
		lack(os.Getenv(lacks))
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// site is a node with a client, three servers and a directory of manifests.
type site struct {
	t       *testing.T
	lab     *lab.Lab
	node    *lab.Node
	client  *lab.Pod
	servers []*lab.Pod
	dir     string
	log     logBuffer
	proxy   *lab.Process // of TestAlertsOfSickProxies
}

// logBuffer collects the output of processes.
type logBuffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

var webAddr = netip.MustParseAddrPort("10.96.0.10:80")

func newSite(t *testing.T) *site { return newSiteOf(t, false) }

// newSiteOf makes a site of IPv4, or of both families.
func newSiteOf(t *testing.T, dual bool) *site {
	kerneltest.Require(t, kerneltest.NFTables)
	s := &site{t: t, lab: kerneltest.NewLab(t), dir: t.TempDir()}
	var err error
	options := lab.NodeOptions{
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24")},
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
	}
	if dual {
		options.Addresses = append(options.Addresses, netip.MustParsePrefix("fd00:100::11/64"))
		options.PodCIDRs = append(options.PodCIDRs, netip.MustParsePrefix("fd00:244:1::/64"))
	}
	s.node, err = s.lab.Node("n1", options)
	s.check(err)
	pod := func(name string, i int) *lab.Pod {
		if dual {
			return s.pod(name, fmt.Sprintf("10.244.1.%d", i), fmt.Sprintf("fd00:244:1::%d", i))
		}
		return s.pod(name, fmt.Sprintf("10.244.1.%d", i))
	}
	s.client = pod("client", 2)
	for i := range 3 {
		p := pod(fmt.Sprintf("web-%d", i), 10+i)
		for _, protocol := range []lab.Protocol{lab.TCP, lab.UDP} {
			_, err := p.Serve(protocol, netip.AddrPortFrom(netip.Addr{}, 8080))
			s.check(err)
		}
		s.servers = append(s.servers, p)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of slipstream:\n%s", s.log.String())
		}
	})
	return s
}

func (s *site) pod(name string, addrs ...string) *lab.Pod {
	s.t.Helper()
	var all []netip.Addr
	for _, a := range addrs {
		all = append(all, netip.MustParseAddr(a))
	}
	p, err := s.node.Pod(name, all...)
	s.check(err)
	return p
}

func (s *site) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// command returns slipstream with arguments.
func (s *site) command(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), asMain+"=1")
	cmd.Stdout, cmd.Stderr = &s.log, &s.log
	return cmd
}

// run starts slipstream run on the node.
func (s *site) run(args ...string) *lab.Process {
	s.t.Helper()
	args = append([]string{"run", "--manifests", s.dir, "--hostname-override", "n1", "-v", "2"}, args...)
	p, err := s.node.Start(s.command(args...))
	s.check(err)
	s.t.Cleanup(func() { p.Kill() })
	return p
}

// cleanup runs slipstream cleanup on the node.
func (s *site) cleanup(args ...string) {
	s.t.Helper()
	p, err := s.node.Start(s.command(append([]string{"cleanup"}, args...)...))
	s.check(err)
	s.check(p.Wait())
}

// save writes a manifest in the way that editors do, by renaming.
func (s *site) save(name, text string) {
	s.t.Helper()
	temp := filepath.Join(s.dir, "."+name)
	s.check(os.WriteFile(temp, []byte(text), 0o644))
	s.check(os.Rename(temp, filepath.Join(s.dir, name)))
}

// web is the manifest of Service default/web with some of the servers.
func web(servers ...int) string {
	var b strings.Builder
	b.WriteString(`apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints:
`)
	for _, i := range servers {
		fmt.Fprintf(&b, "- {addresses: [10.244.1.%d], nodeName: n1}\n", 10+i)
	}
	if len(servers) == 0 {
		return strings.TrimSuffix(b.String(), "\n") + " []\n"
	}
	return b.String()
}

// padding is many Services without clients, so that programming takes a while.
func padding(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Service
metadata: {name: padding-%[1]d}
spec: {clusterIP: 10.97.%[2]d.%[3]d, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: padding-%[1]d, labels: {kubernetes.io/service-name: padding-%[1]d}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.%[2]d.%[3]d], nodeName: n2}, {addresses: [10.2.%[2]d.%[3]d], nodeName: n2}, {addresses: [10.3.%[2]d.%[3]d], nodeName: n2}]
`, i, i>>8, i&255)
	}
	return b.String()
}

// until waits for a condition.
func (s *site) until(what string, ok func() bool) {
	s.t.Helper()
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	s.t.Fatalf("waited in vain: %s", what)
}

// connector is a machine that makes connections.
type connector interface {
	Connect(lab.Protocol, netip.AddrPort, ...lab.ConnectOption) (lab.Reply, error)
}

// reached makes connections and returns which servers answered.
func reached(from connector, to netip.AddrPort, n int) (map[string]int, error) {
	got := map[string]int{}
	for range n {
		r, err := from.Connect(lab.TCP, to)
		if err != nil {
			return got, err
		}
		got[r.Server]++
	}
	return got, nil
}

// untilReached waits until connections to Service default/web reach exactly
// these servers.
func (s *site) untilReached(names ...string) {
	s.t.Helper()
	s.untilReachedFrom(s.client, webAddr, names...)
}

func (s *site) untilReachedFrom(from connector, to netip.AddrPort, names ...string) {
	s.t.Helper()
	s.until(fmt.Sprintf("connections to %v reach %v", to, names), func() bool {
		got, err := reached(from, to, 30)
		if err != nil || len(got) != len(names) {
			return false
		}
		for _, n := range names {
			if got[n] == 0 {
				return false
			}
		}
		return true
	})
}

// kernel reads the programmed content of the node.
func (s *site) kernel() *nftables.Dataplane {
	s.t.Helper()
	b, err := nftables.New(dataplane.Config{NetNS: s.node.FD()})
	s.check(err)
	return b
}

// hasManifests fails the test unless the kernel has exactly the directory's content.
func (s *site) hasManifests() {
	s.t.Helper()
	state := desired.New(desired.Config{NodeName: "n1", NodePorts: desired.NodePortAddresses{Primary: true}})
	files, err := filepath.Glob(filepath.Join(s.dir, "*.yaml"))
	s.check(err)
	for _, file := range files {
		data, err := os.ReadFile(file)
		s.check(err)
		for _, o := range manifest.Decode(file, data).Objects {
			proxy.ApplyEvent(state, source.Event{Type: source.Set, Object: o.Object})
		}
	}
	b := s.kernel()
	defer b.Close()
	want := dataplane.ContentOf(&state.Full().Change)
	diff, err := dataplane.Lasting(s.t.Context(), func() (string, error) {
		got, err := b.Read(s.t.Context())
		if err != nil {
			return "", err
		}
		return dataplane.Difference(want, got), nil
	})
	if err != nil || diff != "" {
		s.t.Fatalf("the kernel differs from the manifests: %v\n%s", err, diff)
	}
}
