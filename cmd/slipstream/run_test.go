// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// TestRun runs a proxy on a node from its start to its cleanup.
func TestRun(t *testing.T) {
	s := newSite(t)
	s.save("web.yaml", web(0, 1))
	p := s.run()
	s.untilReached("web-0", "web-1")
	s.save("web.yaml", web(1, 2))
	s.untilReached("web-1", "web-2")
	s.hasManifests()
	s.hasLine(`"Configuration" field="clusterCIDR"`) // no file, as there is none

	// A mistake is reported in one line, and the last valid content stays in effect.
	s.save("web.yaml", strings.Replace(web(0), "port: 80,", "port: 80000,", 1))
	s.until("the mistake is in the log", func() bool {
		return strings.Contains(s.log.String(), "web.yaml: document 1: Service default/web: spec.ports[0].port: Invalid value: 80000")
	})
	s.untilReached("web-0") // the file's other document was taken
	s.save("web.yaml", web(0, 1, 2))
	s.untilReached("web-0", "web-1", "web-2")

	// The last endpoint is removed.
	s.save("web.yaml", web())
	s.until("connections are refused", func() bool {
		_, err := s.client.Connect(lab.TCP, webAddr)
		return errors.Is(err, lab.ErrRefused)
	})

	// Stopping leaves everything in place; cleanup removes it.
	s.save("web.yaml", web(2))
	s.untilReached("web-2")
	s.check(p.Signal(syscall.SIGTERM))
	if err := p.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	s.untilReached("web-2")
	s.cleanup()
	b := s.kernel()
	defer b.Close()
	if c, err := b.Read(t.Context()); err != nil || len(c.Lines()) > 0 {
		t.Errorf("after cleanup: %v %v", c.Lines(), err)
	}
	out, err := s.node.Run(t.Context(), "nft", "list", "ruleset")
	if kerneltest.NFTBinary.Probe() == nil && (err != nil || len(out) > 0) {
		t.Errorf("ruleset after cleanup: %v\n%s", err, out)
	}
	if _, err := s.client.Connect(lab.TCP, webAddr); !errors.Is(err, lab.ErrTimeout) {
		t.Errorf("a connection after cleanup: %v", err)
	}
}

// TestKill ends the proxy with SIGKILL again and again while it programs and
// starts it again, with a client that connects all the time. No connection may
// fail, and at the end the kernel has what the manifests say and nothing else.
func TestKill(t *testing.T) {
	s := newSite(t)
	s.save("padding.yaml", padding(1000))
	s.save("web.yaml", web(0, 1, 2))
	p := s.run()
	s.untilReached("web-0", "web-1", "web-2")
	load, err := s.client.StartLoad(t.Context(), lab.TCP, webAddr, lab.LoadOptions{Workers: 2})
	s.check(err)
	stream, err := s.client.Stream(lab.TCP, webAddr, 10*time.Millisecond, lab.Timeout(patience))
	s.check(err)
	sets := [][]int{{0, 1, 2}, {0}, {1, 2}, {0, 2}}
	said := 0 // in the log, before the last start
	started := func() bool { return strings.Contains(s.log.String()[said:], `kind="full"`) }
	for round := range 12 {
		for range 3 { // changes at a pace at which they are being programmed
			s.save("web.yaml", web(sets[rand.IntN(len(sets))]...))
			s.save("padding.yaml", padding(500+rand.IntN(500)))
			time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond)
		}
		s.check(p.Kill())
		<-p.Done()
		said = len(s.log.String())
		p = s.run()
		time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond) // perhaps it is killed while it starts
		if round%4 == 3 {
			s.until("it has started", started)
		}
	}
	s.until("the last one has started", started)
	s.save("web.yaml", web(0, 2))
	s.untilReached("web-0", "web-2")
	s.hasManifests()
	if st := load.Stop(); st.Failed > 0 || st.OK < 100 {
		t.Errorf("connections meanwhile: %v; first failure: %v", st, st.First)
	}
	if st := stream.Stats(); st.Failed > 0 || st.Moved > 0 || st.Received == 0 {
		t.Errorf("the connection established before: %+v", st)
	}
	s.check(stream.Close())
}

// TestFlushRuleset deletes the whole ruleset, as the restart of a firewall does.
func TestFlushRuleset(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	s := newSite(t)
	s.save("web.yaml", web(0, 1))
	s.run("--check-period", "50ms", "--metrics-bind-address", "127.0.0.1:10249")
	s.untilReached("web-0", "web-1")
	for i, damage := range []string{"flush ruleset", "flush chain ip slipstream services", "flush map ip slipstream frontends"} {
		// Packets find the rules before the proxy has read them to recognize damage.
		s.until("the rules are programmed", func() bool { return strings.Count(s.log.String(), `kind="full"`) == 1+i })
		if out, err := s.node.Run(t.Context(), "nft", strings.Fields(damage)...); err != nil {
			t.Fatalf("nft %s: %v %s", damage, err, out)
		}
		s.untilReached("web-0", "web-1")
		s.hasManifests()
	}
	if m := s.metrics(); !strings.Contains(m, "slipstream_repairs_total 3") || !strings.Contains(m, `slipstream_sync_failures_total{kind="change"} 0`) {
		t.Errorf("metrics:\n%s", m)
	}
}

// metrics reads the metrics on the node.
func (s *site) metrics() string {
	s.t.Helper()
	text, err := s.getPage("127.0.0.1:10249", "/metrics")
	s.check(err)
	return text
}

// getPage gets a page on the node.
func (s *site) getPage(address, path string) (text string, err error) {
	_, text, err = request(s.node.Do, address, path)
	return text, err
}

// patience bounds what takes milliseconds, except on a very busy machine.
const patience = 2 * time.Minute

// request makes an HTTP request in the network namespace of within, and returns the status and
// the body.
func request(within func(func() error) error, address, path string) (status, text string, err error) {
	err = within(func() error {
		// The dialer makes its socket on this thread, in the namespace.
		conn, err := net.DialTimeout("tcp", address, patience)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.0\r\nHost: "+address+"\r\n\r\n"); err != nil {
			return err
		}
		r, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		status, text = r.Status, string(body)
		return err
	})
	return status, text, err
}

// TestScaling changes a Service's endpoints while clients connect all the time.
func TestScaling(t *testing.T) {
	s := newSite(t)
	s.save("web.yaml", web(0, 1, 2))
	s.run("--min-sync-period", "1ms")
	s.untilReached("web-0", "web-1", "web-2")
	load, err := s.client.StartLoad(t.Context(), lab.TCP, webAddr, lab.LoadOptions{Workers: 2})
	s.check(err)
	for range 5 {
		s.save("web.yaml", web(1))
		s.untilReached("web-1")
		s.save("web.yaml", web(0, 1, 2))
		s.untilReached("web-0", "web-1", "web-2")
	}
	if st := load.Stop(); st.Failed > 0 || st.OK < 100 {
		t.Errorf("connections meanwhile: %v; first failure: %v", st, st.First)
	}
}

// TestFlagErrors checks that errors are one line that names the flag.
func TestFlagErrors(t *testing.T) {
	dir := t.TempDir()
	cases := map[string][]string{
		"--kubeconfig":                                                               {"run"},
		"--nodeport-addresses[0]: Invalid":                                           {"fastpath", "--manifests", dir, "--nodeport-addresses", "x"},
		"unknown flag: --no-such-flag":                                               {"run", "--no-such-flag"},
		"--scope=services: where is the":                                             {"fastpath"},
		"--fastpath-threshold: Invalid value: -1":                                    {"fastpath", "--fastpath-threshold=-1"},
		`--pod: "web" is not an IP address`:                                          {"flows", "flush", "--pod", "web"},
		"--ipvs-exclude-cidrs[0]: Invalid":                                           {"cleanup", "--ipvs-exclude-cidrs", "10.0.0.1"},
		"--exclude-pods (fastPath.excludePods) needs the Kubernetes API":             {"fastpath", "--scope", "all", "--exclude-pods", "true"},
		`--exclude-pods: Invalid value: "pod.label"`:                                 {"fastpath", "--exclude-pods", "pod.label"},
		`"-o, --output" flag: must be one of text, json`:                             {"flows", "-o", "yaml"},
		`unknown command "no-such-thing" for "slipstream" (see 'slipstream --help')`: {"no-such-thing"},
		`did you mean status? (see 'slipstream --help')`:                             {"statsu"},
	}
	for want, args := range map[string]string{
		`--cluster-cidr: Invalid value: "10.0.0.0": must be a range of addresses`:                         "--cluster-cidr 10.0.0.0",
		`--cluster-cidr: Invalid value: "": must be`:                                                      "--cluster-cidr 10.0.0.0/8,",
		"10.0.0.0/8 and 10.1.0.0/16 are of the same family":                                               "--cluster-cidr 10.0.0.0/8,10.1.0.0/16",
		"--min-sync-period: Invalid value":                                                                "--min-sync-period 0",
		"--iptables-min-sync-period: Invalid value: \"-1s\"":                                              "--iptables-min-sync-period -1s --proxy-mode iptables",
		"--iptables-min-sync-period: Invalid value":                                                       "--iptables-min-sync-period 1m",
		"--min-sync-period: Invalid value: \"31s\": must not be greater than nftables.syncPeriod (30s)":   "--min-sync-period 31s",
		`--ipvs-exclude-cidrs[1]: Invalid value: "x": must be a range`:                                    "--ipvs-exclude-cidrs 10.0.0.0/8,x",
		"--verify-period: Invalid value: \"-1s\": must not be negative":                                   "--verify-period -1s",
		"--check-period: Invalid value":                                                                   "--check-period -1s",
		`--detect-local-mode: Unsupported value: "clustercidr"`:                                           "--detect-local-mode clustercidr",
		"detectLocal.bridgeInterface: Required value: detectLocalMode BridgeInterface":                    "--detect-local-mode BridgeInterface --pod-interface-name-prefix veth",
		"detectLocal.interfaceNamePrefix: Required value":                                                 "--detect-local-mode InterfaceNamePrefix --pod-bridge-interface cni0",
		`--pod-bridge-interface: Too long: may not be more than 15`:                                       "--detect-local-mode BridgeInterface --pod-bridge-interface sixteen-bytes-xx",
		`--pod-interface-name-prefix: Invalid value: "a/b": contains a character`:                         "--detect-local-mode InterfaceNamePrefix --pod-interface-name-prefix a/b",
		`--nodeport-addresses[0]: Invalid value: "10.0.0.1": must be a range`:                             "--nodeport-addresses 10.0.0.1",
		`--nodeport-addresses[1]: Invalid value: "::ffff:10.0.0.0/104"`:                                   "--nodeport-addresses 10.0.0.0/8,::ffff:10.0.0.0/104",
		`--nodeport-addresses[2]: Duplicate value: "primary"`:                                             "--nodeport-addresses primary,10.0.0.0/8,primary",
		"--nftables-masquerade-bit: Invalid value: 32":                                                    "--nftables-masquerade-bit 32",
		"--nftables-masquerade-bit: Invalid value: -1":                                                    "--nftables-masquerade-bit -1",
		"--offload-packet-threshold: Invalid value: -1: must be a number of packets from 0 to 2147483647": "--offload-packet-threshold -1",
		`--scope: Invalid value: "some"`:                                                                  "--scope some",
		`--hardware-offload: Invalid value: "maybe"`:                                                      "--hardware-offload maybe",
		`--interfaces: Invalid value: "interface.colour==1"`:                                              "--interfaces interface.colour==1",
		"--exclude-pods (fastPath.excludePods) needs the Kubernetes API as":                               "--exclude-pods true",
		"--socket-exclude-pods (socketExcludePods) needs the Kubernetes API as":                           "--socket-exclude-pods true",
		"KubeProxyAcceleration: maybe":                                                                    "--feature-gates KubeProxyAcceleration=maybe",
		`--proxy-mode: Invalid value: "userspace": must be one of`:                                        "--proxy-mode userspace",
		"--logging-format: Invalid value: \"xml\": Unsupported log format":                                "--logging-format xml",
		"--manifests and --master":                                                                        "--master http://127.0.0.1:1",
		"manifests: Invalid value":                                                                        "--kubeconfig /nowhere",
		"--config: open /nowhere: no such":                                                                "--config /nowhere",
	} {
		cases[want] = append([]string{"run", "--manifests", dir}, strings.Fields(args)...)
	}
	for want, args := range cases {
		cmd := newRoot()
		cmd.SetArgs(args)
		cmd.SetOut(io.Discard)
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: error %q should name %s in one line", args, err, want)
		}
	}
}

func TestMissingDirectory(t *testing.T) {
	s := newSite(t)
	s.dir = filepath.Join(s.dir, "missing")
	if err := s.run().Wait(); err == nil {
		t.Error("it ran")
	}
	if log := s.log.String(); !strings.Contains(log, s.dir) {
		t.Errorf("the log does not name the directory: %s", log)
	}
	s.dir = filepath.Dir(s.dir)
	s.check(os.RemoveAll(filepath.Join(s.dir, "missing")))
}
