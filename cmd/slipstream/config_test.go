// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// siteConfig is a configuration file with a directory of manifests.
const siteConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: n1
clusterCIDR: 10.244.0.0/16
oomScoreAdj: 77
conntrack: {maxPerCore: 0, tcpCloseWaitTimeout: 7m, tcpEstablishedTimeout: 0s, udpTimeout: 33s, tcpBeLiberal: true}
logging: {format: json, verbosity: 2}
---
apiVersion: slipstream.config/v1beta1
kind: SlipstreamConfiguration
manifests: %s
checkPeriod: 100ms
fastPath: {offloadPacketThreshold: 0}
`

// configFile writes the file, beside the directory of manifests.
func (s *site) configFile() string {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "config.conf")
	s.check(os.WriteFile(file, fmt.Appendf(nil, siteConfig, s.dir), 0o600))
	return file
}

// kubeProxy starts the program under kube-proxy's name.
func (s *site) kubeProxy(args ...string) *lab.Process {
	s.t.Helper()
	cmd := s.command(args...)
	cmd.Args[0] = "/usr/local/bin/" + kubeProxy
	p, err := s.node.Start(cmd)
	s.check(err)
	s.t.Cleanup(func() { p.Kill() })
	return p
}

// sysctls returns the node's conntrack parameters.
func (s *site) sysctls() string {
	s.t.Helper()
	out, err := s.node.Run(s.t.Context(), "sh", "-c", "cd /proc/sys/net/netfilter && cat nf_conntrack_tcp_timeout_close_wait nf_conntrack_udp_timeout nf_conntrack_udp_timeout_stream nf_conntrack_tcp_be_liberal")
	s.check(err)
	return strings.Join(strings.Fields(string(out)), " ")
}

// TestConfigFile configures the program by a file, under kube-proxy's name.
func TestConfigFile(t *testing.T) {
	s := newSite(t)
	s.save("web.yaml", web(0, 1))
	before := strings.Fields(s.sysctls())
	file := s.configFile()
	p := s.kubeProxy("--config="+file, "--nodeport-addresses=primary")
	s.untilReached("web-0", "web-1")
	if got, want := s.sysctls(), "420 33 "+before[2]+" 1"; got != want {
		t.Errorf("parameters of conntrack are %s; want %s", got, want)
	}
	if score, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", p.PID())); err != nil || string(score) != "77\n" {
		t.Errorf("oom_score_adj is %q, %v", score, err)
	}
	// Addresses and ports that are served by default.
	for path, want := range map[string]string{"/metrics": "kubeproxy_sync_proxy_rules_duration_seconds", "/proxyMode": "nftables", "/configz": `"udpTimeout":"33s"`} {
		s.until(path+" says "+want, func() bool { return strings.Contains(s.ask("127.0.0.1:10249", path), want) })
	}
	s.until("/healthz is good", func() bool { return strings.Contains(s.ask("127.0.0.1:10256", "/healthz"), `"nodeEligible":true`) })
	for line := range strings.Lines(s.log.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("a line of the log is not JSON: %s", line)
		}
	}
	if log := s.log.String(); !strings.Contains(log, `"file":"`+file+`","v":0,"field":"--nodeport-addresses","note":"is ignored with --config"`) {
		t.Error("nothing says that a flag is ignored")
	}

	// The file changes: the process ends, and the rules stay.
	s.check(os.WriteFile(file, []byte("# nothing any more\n"), 0o600))
	if err := p.Wait(); err == nil {
		t.Error("the proxy ended without an error")
	}
	if log := s.log.String(); !strings.Contains(log, "kube-proxy: --config: the file has changed") {
		t.Error("nothing says why the proxy ended")
	}
	s.untilReached("web-0", "web-1")
	if err := s.kubeProxy("--config=" + file).Wait(); err == nil {
		t.Error("the proxy runs without a configuration")
	}
	if log := s.log.String(); !strings.Contains(log, file+": it contains no configuration") {
		t.Error("nothing says what is wrong with the file")
	}

	// Also with the configuration that kube-proxy was run with, in another mode.
	s.check(os.WriteFile(file, []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\n"), 0o600))
	s.check(s.kubeProxy("--cleanup", "--config="+file).Wait())
	if tables := s.tables(); strings.Contains(tables, "slipstream") {
		t.Errorf("after --cleanup there are\n%s", tables)
	}
}

// ask gets a page on the node; "" after an error.
func (s *site) ask(address, path string) string {
	text, err := s.getPage(address, path)
	if err != nil {
		return ""
	}
	return text
}

// TestInitOnly checks that --init-only sets the kernel's parameters and nothing else.
func TestInitOnly(t *testing.T) {
	s := newSite(t)
	before := strings.Fields(s.sysctls())
	s.check(s.kubeProxy("--init-only", "--proxy-mode=nftables", "--conntrack-max-per-core=0", "--conntrack-udp-timeout-stream=3m").Wait())
	if got, want := s.sysctls(), "3600 "+before[1]+" 180 "+before[3]; got != want {
		t.Errorf("parameters of conntrack are %s; want %s", got, want)
	}
	// The size of the table belongs to the machine's first network namespace. Containers that are nodes start nevertheless.
	s.check(s.kubeProxy("--init-only", "--proxy-mode=nftables", "--conntrack-max-per-core=1000000").Wait())
	if tables := s.tables(); strings.Contains(tables, "slipstream") {
		t.Errorf("after --init-only there are\n%s", tables)
	}
}

// TestWriteConfig checks that the written file can be read again.
func TestWriteConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out.yaml")
	output := func(args ...string) (string, error) {
		cmd := exec.Command("/proc/self/exe", args...)
		cmd.Args[0] = kubeProxy
		cmd.Env = append(os.Environ(), asMain+"=1")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := output("--write-config-to", file, "--proxy-mode", "nftables", "--cluster-cidr", "10.0.0.0/8"); err != nil || out != "" {
		t.Fatalf("%v: %s", err, out)
	}
	c, notes, err := config.Load(file)
	if err != nil || c.KubeProxy.ClusterCIDR != "10.0.0.0/8" || c.Mode() != config.NFTables {
		t.Errorf("%v: %+v", err, c)
	}
	for _, n := range notes {
		if n.Verbosity == 0 {
			t.Errorf("what is written out has a note: %v", n)
		}
	}
	if out, err := output("--version"); err != nil || !strings.HasPrefix(out, "slipstream ") || !strings.Contains(out, config.KubernetesVersion) {
		t.Errorf("--version: %v: %s", err, out)
	}
	if out, err := output("--version=v1.2.3"); err == nil || !strings.Contains(out, `--version: "v1.2.3"`) {
		t.Errorf("--version=v1.2.3: %v: %s", err, out)
	}
	if out, err := output("--help"); err != nil || !strings.Contains(out, "kube-proxy [flags]") {
		t.Errorf("--help: %v: %s", err, out)
	}
	if out, err := output("cleanup"); err == nil || !strings.Contains(out, "kube-proxy:") || !strings.Contains(out, "cleanup") {
		t.Errorf("an argument: %v: %s", err, out)
	}
	if out, err := output("--write-config-to", "/no/such/directory"); err == nil || !strings.Contains(out, "--write-config-to: open /no/such/directory") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestNoAPIServer starts a proxy without a reachable API server. It waits, and programs
// nothing before it has received the objects.
func TestNoAPIServer(t *testing.T) {
	s := newSite(t)
	p := s.kubeProxy("--master=http://127.0.0.1:1", "--proxy-mode=nftables", "--conntrack-max-per-core=0", "--hostname-override=n1")
	s.until("the log says that there is no API server", func() bool { return strings.Contains(s.log.String(), "127.0.0.1:1") })
	s.until("/metrics is served", func() bool { return s.ask("127.0.0.1:10249", "/metrics") != "" })
	if tables := s.tables(); strings.Contains(tables, "table ip slipstream\n") {
		t.Errorf("there are\n%s", tables)
	}
	s.check(p.Signal(os.Interrupt))
	if err := p.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}
