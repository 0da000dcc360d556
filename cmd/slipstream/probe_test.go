// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/feature"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/uml"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// lacks names the environment variable with the families in which nftables mode finds nat
// missing, as on a kernel without CONFIG_NFT_NAT. Package nftables tests the probe itself.
const lacks = "SLIPSTREAM_TEST_LACKS"

// lacking is a dataplane on such a kernel.
type lacking struct {
	programmer
	families string
}

func lack(families string) {
	if families == "" {
		return
	}
	forTests = func(b programmer) programmer { return lacking{b, families} }
}

func (l lacking) Probe(context.Context) (missing []dataplane.Missing, err error) {
	for _, f := range []desired.Family{desired.IPv4, desired.IPv6} {
		if strings.Contains(l.families, f.String()) {
			missing = append(missing, dataplane.Missing{Family: f, Missing: feature.Missing{Feature: "chain type nat", Err: unix.ENOENT, Remedy: "needs CONFIG_NFT_NAT"}})
		}
	}
	return missing, nil
}

// Supports is that of a kernel without CONFIG_NFT_HASH, if the families have "hash".
func (l lacking) Supports(a desired.Algorithm) error {
	if a.Hashes() && strings.Contains(l.families, "hash") {
		return errors.New("the kernel cannot hash")
	}
	return l.programmer.Supports(a)
}

// startLacking starts slipstream run on a node that lacks something.
func (s *site) startLacking(families string, args ...string) (wait func() error, stop func()) {
	s.t.Helper()
	cmd := s.command(append([]string{"run", "--hostname-override", "n1"}, args...)...)
	cmd.Env = append(cmd.Env, lacks+"="+families)
	p, err := s.node.Start(cmd)
	s.check(err)
	s.t.Cleanup(func() { p.Kill() })
	return p.Wait, func() { s.check(p.Signal(syscall.SIGTERM)); s.check(p.Wait()) }
}

// hasLine fails the test unless a line of the log has all of the words.
func (s *site) hasLine(words ...string) {
	s.t.Helper()
	for line := range strings.Lines(s.log.String()) {
		all := true
		for _, w := range words {
			all = all && strings.Contains(line, w)
		}
		if all {
			return
		}
	}
	s.t.Errorf("no line of the log has %q", words)
}

// TestFallBack runs on a node where nftables mode is not possible. Where no mode is
// set, iptables mode runs in its place, and verify looks at that; where it is set, that
// is an error.
func TestFallBack(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPTablesNFT, kerneltest.IPSet, kerneltest.NFTBinary)
	s := newSite(t)
	s.save("web.yaml", web(0, 1))
	file := filepath.Join(t.TempDir(), "config.yaml")
	configure := func(mode string) {
		s.check(os.WriteFile(file, fmt.Appendf(nil, `{apiVersion: kubeproxy.config.k8s.io/v1alpha1, kind: KubeProxyConfiguration, mode: %q, metricsBindAddress: "127.0.0.1:10249", conntrack: {maxPerCore: 0}}
---
{apiVersion: slipstream.config/v1beta1, kind: SlipstreamConfiguration, manifests: %s}
`, mode, s.dir), 0o644))
	}
	configure("nftables")
	wait, _ := s.startLacking("IPv4 IPv6", "--config", file)
	if err := wait(); err == nil {
		t.Error("mode nftables runs")
	}
	const missing = "IPv4: missing chain type nat (needs CONFIG_NFT_NAT): no such file or directory; IPv6: missing"
	s.hasLine("slipstream: proxy mode nftables: " + missing)
	s.hasLine(`"Event" reason="FeatureMissing" note="proxy mode nftables: ` + missing)

	configure("")
	_, stop := s.startLacking("IPv4 IPv6", "--config", file)
	s.untilReached("web-0", "web-1")
	s.hasLine(`"Event" reason="FeatureMissing" note="No mode is set and nftables mode does not work: using iptables mode: proxy mode nftables: ` + missing)
	s.hasLine(`"Event" reason="KubeProxyDefaultMode" note="No mode is set: using iptables.`)
	for _, want := range []string{
		`slipstream_kernel_feature_missing{family="IPv4",feature="chain type nat",mode="nftables"} 1`,
		`kubeproxy_sync_proxy_rules_iptables_total`,
	} {
		// Connections work before the loop counts what it has programmed.
		s.until("metrics have "+want, func() bool { return strings.Contains(s.metrics(), want) })
	}
	if mode, err := s.getPage("127.0.0.1:10249", "/proxyMode"); err != nil || mode != "iptables" {
		t.Errorf("mode %q, error %v", mode, err)
	}
	there := s.traces("nft")
	if !there[config.IPTables] || there[config.NFTables] {
		t.Errorf("there is something of %v", there)
	}
	cmd := s.command("verify", "--config", file, "--hostname-override", "n1")
	cmd.Env = append(cmd.Env, lacks+"=IPv4 IPv6")
	p, err := s.node.Start(cmd)
	s.check(err)
	if err := p.Wait(); err != nil {
		t.Errorf("verify: %v", err)
	}
	stop()
}

// TestHashMissing configures Maglev on a node that cannot hash. The proxy chooses at random, and
// verify expects that.
func TestHashMissing(t *testing.T) {
	s := newSite(t)
	s.save("web.yaml", web(0, 1))
	file := filepath.Join(t.TempDir(), "config.yaml")
	s.check(os.WriteFile(file, fmt.Appendf(nil, `{apiVersion: kubeproxy.config.k8s.io/v1alpha1, kind: KubeProxyConfiguration, mode: nftables, conntrack: {maxPerCore: 0}}
---
{apiVersion: slipstream.config/v1beta1, kind: SlipstreamConfiguration, scheduler: maglev, manifests: %s}
`, s.dir), 0o644))
	_, stop := s.startLacking("hash", "--config", file)
	s.untilReached("web-0", "web-1")
	s.hasLine(`"Event" reason="FeatureMissing" note="Endpoints are chosen at random: the kernel cannot hash"`)
	cmd := s.command("verify", "--config", file, "--hostname-override", "n1")
	cmd.Env = append(cmd.Env, lacks+"=hash")
	p, err := s.node.Start(cmd)
	s.check(err)
	if err := p.Wait(); err != nil {
		t.Errorf("verify: %v", err)
	}
	stop()
}

// TestFamilyMissing serves the other family on a node that cannot do one.
func TestFamilyMissing(t *testing.T) {
	s := newSite(t)
	s.save("web.yaml", strings.Replace(web(0, 1), "clusterIP: 10.96.0.10", "clusterIPs: [10.96.0.10, 'fd96::10']", 1))
	_, stop := s.startLacking("IPv6", "--manifests", s.dir, "--proxy-mode", "nftables", "--metrics-bind-address", "127.0.0.1:10249")
	s.untilReached("web-0", "web-1")
	s.hasLine(`"Event" reason="FeatureMissing" note="IPv6 is not served in mode nftables: IPv6: missing chain type nat`)
	if m := s.metrics(); !strings.Contains(m, `slipstream_kernel_feature_missing{family="IPv6",feature="chain type nat",mode="nftables"} 1`) {
		t.Errorf("metrics:\n%s", m)
	}
	b := s.kernel()
	defer b.Close()
	content, err := b.Read(t.Context())
	s.check(err)
	for f := range content.Frontends {
		if f.Addr().Is6() {
			t.Errorf("there is a frontend %s", f)
		}
	}
	stop()
}

// TestUnprivileged runs and verifies without privileges in the network namespace. No other
// mode takes the place of nftables mode for that.
func TestUnprivileged(t *testing.T) {
	s := newSite(t)
	s.save("web.yaml", web(0))
	file := filepath.Join(t.TempDir(), "config.yaml")
	s.check(os.WriteFile(file, []byte("{apiVersion: slipstream.config/v1beta1, kind: SlipstreamConfiguration, manifests: "+s.dir+"}"), 0o644))
	for _, command := range []string{"run", "verify"} {
		var out bytes.Buffer
		cmd := s.command(command, "--config", file, "--hostname-override", "n1")
		cmd.Stderr = &out
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
		p, err := s.node.Start(cmd)
		s.check(err)
		if err := p.Wait(); err == nil || !strings.Contains(out.String(), "slipstream needs CAP_NET_ADMIN") || strings.Contains(out.String(), "iptables-") {
			t.Errorf("%s: error %v, output:\n%s", command, err, &out)
		}
	}
}

// TestStopDuringCommand ends a proxy with SIGTERM while it waits for a command of iptables
// that takes minutes.
func TestStopDuringCommand(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPTablesNFT, kerneltest.IPTablesLegacy, kerneltest.IPSet)
	s := newSite(t)
	dir := t.TempDir()
	begun := filepath.Join(dir, "begun")
	for _, variant := range []string{"nft", "legacy"} {
		for _, family := range []string{"iptables-", "ip6tables-"} {
			for _, end := range []string{"", "-save"} {
				path, err := exec.LookPath(family + variant + end)
				s.check(err)
				s.check(os.Symlink(path, filepath.Join(dir, family+variant+end)))
			}
			script := "#!/bin/sh\n: >" + begun + "\nexec /bin/sleep 600\n"
			s.check(os.WriteFile(filepath.Join(dir, family+variant+"-restore"), []byte(script), 0o755))
		}
	}
	cmd := s.command("run", "--manifests", s.dir, "--hostname-override", "n1", "--proxy-mode", "iptables")
	cmd.Env = append(cmd.Env, "PATH="+dir)
	p, err := s.node.Start(cmd)
	s.check(err)
	t.Cleanup(func() { p.Kill() })
	s.until("the command runs", func() bool { _, err := os.Stat(begun); return err == nil })
	s.check(p.Signal(syscall.SIGTERM))
	ended := make(chan error, 1)
	go func() { ended <- p.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("after SIGTERM: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("it waits for the command")
	}
}

// inside is set where TestIPv6Disabled runs on its machine.
const inside = "SLIPSTREAM_TEST_INSIDE"

// TestIPv6Disabled boots a kernel with IPv6 switched off. IPv4 is served in each mode;
// the IPv6 tables of iptables-legacy do not work there.
func TestIPv6Disabled(t *testing.T) {
	if os.Getenv(inside) != "" {
		onIPv4Machine(t)
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	if kerneltest.UML() {
		t.Skip("NOT RUN: User Mode Linux boots no machine of its own")
	}
	kernel, err := uml.Find(ctx, "../../test/kernel/build.sh", uml.Versions[0])
	if err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	machine := uml.Machine{Kernel: kernel, Memory: "512M", Parameters: []string{"ipv6.disable=1"}}
	code, err := machine.Run(ctx, uml.Command{
		Path: self, Args: []string{"-test.v", "-test.run", "^" + t.Name() + "$"}, Env: append(os.Environ(), inside+"=1"),
	}, &out)
	if err != nil || code != 0 {
		t.Errorf("error %v, exit code %d", err, code)
	}
	t.Logf("%s", &out)
}

func onIPv4Machine(t *testing.T) {
	if _, err := os.Stat("/proc/net/if_inet6"); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("IPv6 is there: %v", err)
	}
	link := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "pods"}}
	addr, err := netlink.ParseAddr("10.244.1.1/16")
	for _, err := range []error{err, netlink.LinkAdd(link), netlink.AddrAdd(link, addr), netlink.LinkSetUp(link), netlink.RouteAdd(&netlink.Route{
		LinkIndex: link.Index, Dst: &net.IPNet{IP: net.IPv4(10, 96, 0, 0), Mask: net.CIDRMask(16, 32)},
	})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	listener, err := net.Listen("tcp", "10.244.1.1:8080")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	dir := t.TempDir()
	manifest := strings.NewReplacer("clusterIP: 10.96.0.10", "clusterIPs: [10.96.0.10, 'fd96::10']", "10.244.1.11", "10.244.1.1").Replace(web(1))
	if err := os.WriteFile(filepath.Join(dir, "web.yaml"), []byte(manifest), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{"nftables", "iptables-nft", "iptables-legacy", "ipvs"} {
		mode, variant, _ := strings.Cut(mode, "-")
		if variant != "" {
			if out, err := exec.Command("iptables-"+variant, "-t", "mangle", "-N", "KUBE-IPTABLES-HINT").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		objects := []string{"--manifests", dir, "--hostname-override", "n1", "--proxy-mode", mode}
		log := &logBuffer{}
		defer func() { t.Logf("%s %s:\n%s", mode, variant, log) }()
		s := &site{t: t, dir: dir}
		run := func(args ...string) *exec.Cmd {
			cmd := s.command(args...)
			cmd.Stdout, cmd.Stderr = log, log
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			return cmd
		}
		proxy := run(append([]string{"run", "--check-period", "20ms"}, objects...)...)
		s.until(mode+" "+variant+" serves IPv4", func() bool {
			c, err := net.DialTimeout("tcp4", netip.AddrPortFrom(webAddr.Addr(), 80).String(), time.Second)
			if err == nil {
				c.Close()
			}
			return err == nil
		})
		if err := run(append([]string{"verify"}, objects...)...).Wait(); err != nil {
			t.Errorf("%s %s: verify: %v", mode, variant, err)
		}
		if err := proxy.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := proxy.Wait(); err != nil {
			t.Errorf("%s %s: %v", mode, variant, err)
		}
		missing := map[string]string{
			"iptables-legacy": "missing table nat of iptables-legacy (needs CONFIG_IP6_NF_NAT)",
			"ipvs":            "missing addresses (needs IPv6, which ipv6.disable=1 switches off)",
		}[strings.Trim(mode+"-"+variant, "-")]
		if left := strings.Contains(log.String(), "IPv6 is not served in mode "+mode+": IPv6: "+missing); left != (missing != "") {
			t.Errorf("%s %s: IPv6 is left out: %t", mode, variant, left)
		}
		for _, bad := range []string{"\nE", "again"} {
			if missing == "" && strings.Contains("\n"+log.String(), bad) || strings.Contains(log.String(), "Could not program") {
				t.Errorf("%s %s: the log has %q", mode, variant, bad)
			}
		}
		if err := run("cleanup").Wait(); err != nil {
			t.Errorf("%s %s: cleanup: %v", mode, variant, err)
		}
		if variant != "" {
			if out, err := exec.Command("iptables-"+variant, "-t", "mangle", "-X", "KUBE-IPTABLES-HINT").CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		}
	}
}
