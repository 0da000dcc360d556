// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// TestCleanupWhileRunning checks that cleanup refuses while a proxy runs in the same network
// namespace, and not while one runs in another.
func TestCleanupWhileRunning(t *testing.T) {
	s := newSite(t)
	for _, socket := range []string{config.DefaultStatusSocket, filepath.Join(t.TempDir(), "other.sock")} {
		p := s.run("--status-socket", socket)
		s.until("it has programmed", func() bool { return strings.Contains(s.nft("list tables"), "table ip slipstream") })
		out, err := s.node.Run(t.Context(), "env", asMain+"=1", "/proc/"+strconv.Itoa(os.Getpid())+"/exe", "cleanup")
		if err == nil || !strings.Contains(string(out)+err.Error(), "is running here: stop it first") {
			t.Errorf("error %v, output: %s", err, out)
		}
		elsewhere, err := lab.NewNamespace()
		s.check(err)
		if out, err := elsewhere.Run(t.Context(), "env", asMain+"=1", "/proc/"+strconv.Itoa(os.Getpid())+"/exe", "cleanup"); err != nil {
			t.Errorf("in another network namespace: %v: %s", err, out)
		}
		s.check(elsewhere.Close())
		if !strings.Contains(s.nft("list tables"), "table ip slipstream") {
			t.Error("the table is gone")
		}
		s.check(p.Kill())
		<-p.Done()
		s.cleanup()
		if log := s.log.String(); !strings.Contains(log, "Removed: nftables table ip slipstream with ") {
			t.Error("cleanup does not say what it has removed")
		}
	}
}

// TestTwoInstances starts a second proxy beside one that runs in the same network namespace. Each would take
// the other's commits for damage, so the second one ends and says why.
func TestTwoInstances(t *testing.T) {
	s := newSite(t)
	s.save("web.yaml", web(0))
	s.run("--status-socket", filepath.Join(t.TempDir(), "first.sock"))
	s.untilReached("web-0")
	var out strings.Builder
	cmd := s.command("run", "--manifests", t.TempDir(), "--hostname-override", "n1", "--status-socket", filepath.Join(t.TempDir(), "second.sock"),
		"--healthz-bind-address", "127.0.0.1:10266", "--metrics-bind-address", "127.0.0.1:10267")
	cmd.Stderr = &out
	second, err := s.node.Start(cmd)
	s.check(err)
	t.Cleanup(func() { second.Kill() })
	select {
	case <-second.Done():
		if err := second.Wait(); err == nil || !strings.Contains(out.String(), "running here") {
			t.Errorf("error %v, output: %s", err, &out)
		}
	case <-time.After(patience):
		t.Error("the second one runs, too")
	}
	s.untilReached("web-0")
}

// TestCleanupOfUser checks that cleanup says in one line that it takes root.
func TestCleanupOfUser(t *testing.T) {
	s := newSite(t)
	cmd := s.command("cleanup")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: []syscall.SysProcIDMap{{ContainerID: 65534, Size: 1}}}
	p, err := s.node.Start(cmd)
	if errors.Is(err, syscall.EINVAL) {
		t.Skip("the kernel has no user namespaces")
	}
	s.check(err)
	if err := p.Wait(); err == nil || strings.TrimSpace(s.log.String()) != "slipstream: only root can remove what is in the kernel" {
		t.Errorf("error %v, output: %s", err, &s.log)
	}
}

// TestCleanupOfKubeProxy checks that cleanup removes kube-proxy's objects with ours only with
// --kube-proxy, and never other objects.
func TestCleanupOfKubeProxy(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPTablesNFT)
	s := newSite(t)
	s.nft("add table ip kube-proxy")
	s.nft("add table ip slipstream")
	s.nft("add table ip firewall")
	for _, args := range []string{"-N KUBE-SERVICES", "-A OUTPUT -j KUBE-SERVICES", "-N KUBE-ROUTER-FORWARD"} {
		_, err := s.node.Run(t.Context(), "iptables-nft", append([]string{"-w", "10", "-t", "nat"}, strings.Fields(args)...)...)
		s.check(err)
	}
	has := func(want, not []string) {
		t.Helper()
		rules := s.nft("list ruleset")
		for _, w := range want {
			if !strings.Contains(rules, w) {
				t.Errorf("%s is gone:\n%s", w, rules)
			}
		}
		for _, n := range not {
			if strings.Contains(rules, n) {
				t.Errorf("%s is left:\n%s", n, rules)
			}
		}
	}
	s.cleanup()
	has([]string{"table ip kube-proxy", "KUBE-SERVICES", "table ip firewall"}, []string{"table ip slipstream"})
	s.nft("add table ip slipstream")
	s.cleanup("--keep-kube-proxy") // of earlier versions
	has([]string{"table ip kube-proxy"}, []string{"table ip slipstream"})
	s.cleanup("--kube-proxy")
	has([]string{"table ip firewall", "KUBE-ROUTER-FORWARD"}, []string{"kube-proxy", "KUBE-SERVICES"})
}

// TestCleanupAfterIPVS goes back from IPVS mode: by cleanup, and by nftables mode and cleanup while a
// virtual server drains. No route of a virtual server stays, and no mark by which a later run would take
// kube-proxy's virtual servers for its own.
func TestCleanupAfterIPVS(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPVS, kerneltest.NFTBinary)
	for _, modes := range [][]string{{config.IPVS}, {config.IPVS, config.NFTables}} {
		s := newSite(t)
		s.save("web.yaml", web(0))
		for i, mode := range modes {
			p := s.run("--proxy-mode", mode)
			s.untilReached("web-0")
			if i == 0 {
				stream, err := s.client.Stream(lab.TCP, webAddr, 10*time.Millisecond, lab.Timeout(patience))
				s.check(err)
				defer stream.Close()
			} else {
				s.until("a route takes the place of an address", func() bool { return s.shell("ip route show table local proto 83") != "" })
			}
			s.check(p.Signal(syscall.SIGTERM))
			s.check(p.Wait())
		}
		s.cleanup()
		if routes := s.shell("ip route show table local proto 83"); routes != "" {
			t.Errorf("after %v, routes are left: %s", modes, routes)
		}
		if link := s.shell("ip link show kube-ipvs0 || true"); strings.Contains(link, "alias slipstream") {
			t.Errorf("after %v, the interface is marked: %s", modes, link)
		}
	}
}

// TestKubeProxyBackInIPVS: kube-proxy's IPVS mode has taken over from IPVS mode without a cleanup. A later run beside it
// leaves it the virtual servers.
func TestKubeProxyBackInIPVS(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPVS, kerneltest.IPSet)
	s := newSite(t)
	s.save("web.yaml", web(0))
	p := s.run("--proxy-mode", config.IPVS)
	s.untilReached("web-0")
	s.check(p.Signal(syscall.SIGTERM))
	s.check(p.Wait())
	c := config.New()
	c.KubeProxy.Mode = config.NFTables
	for _, kubeProxy := range []bool{false, true} {
		if kubeProxy {
			s.shell("ipset create KUBE-LOOP-BACK hash:ip,port,ip")
		}
		var taken bool
		s.check(s.node.Do(func() error { _, taken = (&app{config: c}).leftovers(t.Context()); return nil }))
		if taken == kubeProxy {
			t.Errorf("with IP sets of kube-proxy: %v, and virtual servers are taken for an earlier run's: %v", kubeProxy, taken)
		}
	}
}

// shell runs a command line on the node.
func (s *site) shell(line string) string {
	s.t.Helper()
	out, err := s.node.Run(s.t.Context(), "sh", "-ec", line)
	s.check(err)
	return string(out)
}

// TestCleanupWithoutCommands checks that cleanup needs no command of iptables, also where
// iptables-legacy has tables.
func TestCleanupWithoutCommands(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPTablesLegacy, kerneltest.NFTBinary)
	s := newSite(t)
	s.nft("add table ip6 slipstream-limits")
	for _, table := range []string{"nat", "filter"} {
		_, err := s.node.Run(t.Context(), "iptables-legacy", "-w", "10", "-t", table, "-N", "SLIP-SERVICES")
		s.check(err)
	}
	exe := "/proc/" + strconv.Itoa(os.Getpid()) + "/exe"
	out, err := s.node.Run(t.Context(), "env", "PATH=/nowhere", asMain+"=1", exe, "cleanup")
	if err != nil || !strings.Contains(string(out), "Removed: iptables: 2 chains SLIP-*") || !strings.Contains(string(out), "Removed: nftables table ip6 slipstream-limits\n") {
		t.Errorf("error %v, output: %s", err, out)
	}

	out, err = s.node.Run(t.Context(), "setpriv", "--bounding-set", "-net_admin", "env", asMain+"=1", exe, "cleanup")
	if err == nil || !strings.Contains(string(out)+err.Error(), "can only be read by root") {
		t.Errorf("without CAP_NET_ADMIN: error %v, output: %s", err, out)
	}
}

// nft runs the command on the node.
func (s *site) nft(command string) string {
	s.t.Helper()
	out, err := s.node.Run(s.t.Context(), "nft", strings.Fields(command)...)
	s.check(err)
	return string(out)
}
