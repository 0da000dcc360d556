// SPDX-License-Identifier: Apache-2.0

//go:build firewalls

package main

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// These tests run programs that CI does not have. The tag keeps them out of CI, as a test that
// is skipped on every kernel fails there.

// firewall is a node with Slipstream and a program that has rules of its own.
type firewall struct {
	*site
	programs string // the directory of their files
}

func newFirewall(t *testing.T, commands ...string) *firewall {
	kerneltest.Require(t, kerneltest.NFTables, kerneltest.NFTBinary, kerneltest.IPTablesNFT)
	for _, c := range commands {
		if _, err := exec.LookPath(c); err != nil {
			t.Skip("NOT RUN: ", err)
		}
	}
	return &firewall{newSite(t), t.TempDir()}
}

func (f *firewall) path(name string) string { return filepath.Join(f.programs, name) }

func (f *firewall) file(name, text string) {
	f.t.Helper()
	f.check(os.MkdirAll(filepath.Dir(f.path(name)), 0o755))
	f.check(os.WriteFile(f.path(name), []byte(text), 0o644))
}

func (f *firewall) shell(script string) string {
	f.t.Helper()
	out, err := f.node.Run(f.t.Context(), "sh", "-c", script)
	f.check(err)
	return string(out)
}

// start starts a program on the node, and waits until a command succeeds there.
func (f *firewall) start(ready, name string, args ...string) *lab.Program {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	p, err := f.node.StartProgram(f.programs, name, name, args...)
	f.check(err)
	f.check(p.Await(ctx, func(ctx context.Context) error {
		_, err := f.node.Run(ctx, "sh", "-c", ready)
		return err
	}))
	f.t.Cleanup(func() { f.end(p) })
	return p
}

// end ends a program with SIGTERM, if it runs.
func (f *firewall) end(p *lab.Program) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.Terminate(ctx); err != nil {
		f.t.Error(err)
	}
}

// rules are those of all programs except Slipstream. Docker's order varies.
func (f *firewall) rules() string {
	f.t.Helper()
	return f.shell(`
for c in iptables-nft ip6tables-nft iptables-legacy ip6tables-legacy; do
	echo $c; $c-save 2>/dev/null | sed -E '/SLIP-|^[#*]|^COMMIT|^:.* ACCEPT/d; s/\[[0-9:]+\]//' | sort
done
nft list tables | grep firewalld | while read -r table; do nft -s list $table; done`)
}

// beside runs Slipstream in a mode, with clients that connect all the time, while the other
// program acts. It checks that the program's rules are the same before Slipstream starts, after
// each action, and after clean-up; that Services are served after each; and that rules of
// Slipstream have to be repaired only if they are flushed. Unless they are, connections may
// time out, as firewalld drops packets while it reloads, but fail in no other way.
func (f *firewall) beside(mode string, flushed bool, actions ...func()) {
	f.t.Helper()
	before, client := f.rules(), f.outside()
	same := func(after string) {
		f.t.Helper()
		if is := f.rules(); is != before {
			f.t.Errorf("after %s the other program has\n%s\ninstead of\n%s", after, is, before)
		}
	}
	f.save("web.yaml", nodePort(0, 1))
	p := f.run("--proxy-mode", mode, "--nodeport-addresses", "192.168.100.0/24", "--metrics-bind-address", "127.0.0.1:10249")
	f.untilReached("web-0", "web-1")
	same("the start")
	var loads []*lab.Load
	for to, from := range map[netip.AddrPort]*lab.Machine{webAddr: &f.client.Machine, netip.AddrPortFrom(ownAddr, 30080): &client.Machine} {
		l, err := from.StartLoad(f.t.Context(), lab.TCP, to, lab.LoadOptions{Pace: 5 * time.Millisecond})
		f.check(err)
		loads = append(loads, l)
	}
	const none = "slipstream_repairs_total 0\n"
	for _, act := range actions {
		act()
		if flushed {
			f.until("a repair", func() bool { return !strings.Contains(f.metrics(), none) })
		}
		f.untilReached("web-0", "web-1")
		same("an action")
	}
	for _, l := range loads {
		stats := l.Stop()
		f.t.Log(mode, stats)
		if !flushed && stats.Failed > stats.Failures["timeout"] {
			f.t.Error("connections were not translated")
		}
	}
	if !flushed && !strings.Contains(f.metrics(), none) {
		f.t.Error("rules of Slipstream were repaired")
	}
	f.check(p.Kill())
	<-p.Done()
	f.cleanup()
	same("clean-up")
}

// TestFirewalld reloads firewalld, which flushes all tables of iptables, also where its own
// rules are in nftables.
func TestFirewalld(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables"} {
		for _, backend := range []string{"nftables", "iptables"} {
			t.Run(mode+" beside "+backend, func(t *testing.T) {
				f := newFirewall(t, "dbus-daemon", "firewalld", "firewall-cmd")
				f.file("bus.conf", `<busconfig><type>system</type><listen>unix:path=`+f.path("bus")+`</listen><policy context="default">
<allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/><allow user="*"/></policy></busconfig>`)
				f.file("firewalld/firewalld.conf", "FirewallBackend="+backend+"\n")
				f.file("firewalld/zones/trusted.xml", `<zone target="ACCEPT"><source address="10.244.0.0/16"/></zone>`)
				t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+f.path("bus"))
				f.start("test -S "+f.path("bus"), "dbus-daemon", "--config-file="+f.path("bus.conf"), "--nofork", "--nopidfile")
				f.start("firewall-cmd --state", "firewalld", "--nofork", "--nopid", "--system-config="+f.path("firewalld"), "--log-file="+f.path("firewalld.log"))
				f.beside(mode, mode == "iptables",
					func() { f.shell("firewall-cmd --reload") },
					func() { f.shell("firewall-cmd --complete-reload") },
				)
			})
		}
	}
}

// TestDocker reloads and restarts dockerd with a network.
func TestDocker(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			f := newFirewall(t, "dockerd", "docker", "containerd")
			f.file("daemon.json", "{}")
			t.Setenv("DOCKER_HOST", "unix://"+f.path("docker.sock"))
			start := func() *lab.Program {
				return f.start("docker network ls", "dockerd", "-H", os.Getenv("DOCKER_HOST"), "--config-file="+f.path("daemon.json"), "--data-root="+f.path("data"),
					"--exec-root="+f.path("exec"), "--pidfile="+f.path("pid"), "--storage-driver=vfs")
			}
			dockerd := start()
			f.shell("docker network create --subnet 172.30.0.0/16 other")
			f.beside(mode, false,
				func() { f.check(dockerd.Signal(syscall.SIGHUP)) },
				func() { f.end(dockerd); dockerd = start() },
			)
		})
	}
}
