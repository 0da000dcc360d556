// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// traces reports which modes have objects in the kernel, by commands.
func (s *site) traces(variant string) map[string]bool {
	s.t.Helper()
	shows := func(what, command string) bool {
		words := strings.Fields(command)
		out, err := s.node.Run(s.t.Context(), words[0], words[1:]...)
		if err != nil { // a command reads what is being removed
			return true
		}
		// SLIP-LOCALNET stays while route_localnet is set.
		return strings.Contains(strings.ReplaceAll(string(out), "SLIP-LOCALNET", ""), what)
	}
	return map[string]bool{
		config.NFTables: shows("ip slipstream", "nft list tables"),
		config.IPVS:     shows("kube-ipvs0", "ip link"),
		config.IPTables: shows("SLIP-", "iptables-"+variant+"-save") || shows("SLIP-", "ip6tables-"+variant+"-save") || shows("SLIP-", "ipset list -n"),
	}
}

// endActive ends connections that IPVS counts as active and that TestPortUsedAgain describes. The
// virtual server would stay for two minutes.
func (s *site) endActive() {
	s.t.Helper()
	if all := s.ipvsConnections(); strings.Contains(all, "ESTABLISHED") || strings.Contains(all, "SYN_SENT") {
		s.t.Logf("IPVS has active connections:\n%s", all)
		_, err := s.node.Run(s.t.Context(), "ipvsadm", "-C")
		s.check(err)
	}
}

func (s *site) ipvsConnections() string {
	s.t.Helper()
	out, err := s.node.Run(s.t.Context(), "ipvsadm", "-Lnc")
	s.check(err)
	return string(out)
}

// TestPortUsedAgain connects in IPVS mode and, within the ten seconds that IPVS remembers a connection that was
// reset, from the same port in nftables mode. The kernel takes the answers for those of the former connection:
// its state becomes SYN_SENT, which counts as active for two minutes. The virtual server stays that long. The
// new connection is served.
func TestPortUsedAgain(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPVS, kerneltest.NFTBinary)
	s := newSite(t)
	s.save("web.yaml", web(0))
	p := s.run("--proxy-mode", config.IPVS)
	s.untilReached("web-0")
	s.check(p.Signal(syscall.SIGTERM))
	s.check(p.Wait())
	from := netip.MustParseAddrPort("0.0.0.0:20000")
	state := func(state string) bool {
		for line := range strings.Lines(s.ipvsConnections()) {
			if strings.Contains(line, ":20000 ") {
				return strings.Contains(line, state)
			}
		}
		return false
	}
	former := func() bool {
		_, err := s.client.Connect(lab.TCP, webAddr, lab.Source(from))
		s.check(err)
		return state("CLOSE")
	}
	s.until("IPVS has served a connection", former)
	s.run("--proxy-mode", config.NFTables)
	s.until("the answers of another are taken for its own", func() bool { former(); return state("SYN_SENT") })
	s.endActive()
	s.until("IPVS mode has left", func() bool { return !s.traces("legacy")[config.IPVS] })
	s.untilReached("web-0")
}

// TestChangeOfMode starts a proxy in another mode than before. No connection fails, and
// nothing of the former mode remains, nor of any mode after cleanup. The commands of the
// former mode may be missing in the new run.
func TestChangeOfMode(t *testing.T) {
	for variant, needs := range map[string]kerneltest.Feature{"nft": kerneltest.IPTablesNFT, "legacy": kerneltest.IPTablesLegacy} {
		t.Run(variant, func(t *testing.T) {
			kerneltest.Require(t, needs, kerneltest.NFTBinary, kerneltest.IPSet)
			s := newSite(t)
			_, err := s.node.Run(t.Context(), "iptables-"+variant, "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
			s.check(err)
			s.save("web.yaml", web(0, 1, 2))
			s.save("padding.yaml", padding(100))
			modes := []string{config.NFTables, config.IPTables, config.NFTables, config.IPTables}
			if kerneltest.IPVS.Probe() == nil {
				modes = append(modes, config.IPVS, config.NFTables, config.IPVS, config.IPTables)
			}
			for i, mode := range modes {
				begun := time.Now()
				table := mode
				if mode == config.IPVS {
					table = config.NFTables
				}
				// Virtual servers drain: a connection whose end IPVS has missed does not take 15 minutes.
				cmd := s.command("run", "--manifests", s.dir, "--hostname-override", "n1", "--proxy-mode", mode, "--ipvs-tcp-timeout", "20s")
				if mode == config.NFTables {
					cmd.Env = append(cmd.Env, "PATH=/nowhere")
				}
				p, err := s.node.Start(cmd)
				s.check(err)
				t.Cleanup(func() { p.Kill() })
				if i == 0 {
					s.untilReached("web-0", "web-1", "web-2")
				}
				s.until("only mode "+mode+" is left", func() bool {
					if _, err := reached(s.client, webAddr, 5); err != nil {
						t.Fatalf("a connection failed at the change to %s: %v", mode, err)
					}
					there := s.traces(variant)
					for name := range there {
						if there[name] != (name == mode || name == table) {
							if name == config.IPVS && time.Since(begun) > time.Minute {
								s.endActive()
							}
							return false
						}
					}
					return true
				})
				s.untilReached("web-0", "web-1", "web-2")
				s.check(p.Signal(syscall.SIGTERM))
				s.check(p.Wait())
			}
			s.untilReached("web-0", "web-1", "web-2")
			s.cleanup("--kube-proxy")
			for mode, there := range s.traces(variant) {
				if there {
					t.Errorf("after cleanup there is something of mode %s", mode)
				}
			}
		})
	}
}

// TestSYNWithoutRules connects while the rules are missing, first because another program deletes
// them, then because Slipstream starts late. The client's SYN goes to nowhere, and leaves an
// untranslated conntrack entry. One that it repeats after the repair, or the start, is served. One
// that it repeats after the rules are back, and before the entry is deleted, is refused. So several
// connections repeat theirs one after the other, and one has to be served.
func TestSYNWithoutRules(t *testing.T) {
	for _, mode := range []string{config.NFTables, config.IPTables} {
		t.Run(mode, func(t *testing.T) {
			kerneltest.Require(t, kerneltest.IPTablesNFT, kerneltest.NFTBinary, kerneltest.IPSet)
			s := newSite(t)
			s.save("web.yaml", web(0))
			node := func(command string) string {
				words := strings.Fields(command)
				out, err := s.node.Run(t.Context(), words[0], words[1:]...)
				s.check(err)
				return string(out)
			}
			start := func() *lab.Process { return s.run("--proxy-mode", mode) }
			// Translated connections need conntrack and NAT, which end with the last rule.
			replaceRules := func() {
				node("nft flush ruleset; add table ip firewall; add chain ip firewall nat { type nat hook prerouting priority -100; };" +
					"add chain ip firewall forward { type filter hook forward priority 0; }; add rule ip firewall forward ct state established accept")
				node("iptables-nft -t mangle -N KUBE-IPTABLES-HINT")
			}
			replaceRules()
			p := start()
			s.untilReached("web-0")
			// A restore of IPv6's rules that is still under way when they are deleted can hang for
			// the two minutes of its timeout: seen once, with iptables 1.8.9 on Linux 6.1 and 6.12.
			s.until("both families are programmed", func() bool { return strings.Contains(s.log.String(), "Programmed the kernel") })
			stays, err := s.client.Stream(lab.TCP, webAddr, 10*time.Millisecond, lab.Timeout(patience))
			s.check(err)
			defer stays.Close()
			// So that all kernels repeat a SYN after 1, 3 and 7 s. Linux 6.5 has the setting.
			_, _ = s.client.Run(t.Context(), "sysctl", "-qw", "net.ipv4.tcp_syn_linear_timeouts=0")
			for _, test := range []struct {
				what       string
				stop, cont func()
			}{
				{"a repair", func() { s.check(p.Signal(syscall.SIGSTOP)) }, func() { s.check(p.Signal(syscall.SIGCONT)) }},
				{"a start", func() { s.check(p.Kill()); <-p.Done() }, func() { p = start() }},
			} {
				test.stop()
				replaceRules()
				const connections, pause = 6, 600 * time.Millisecond
				results := make(chan string, connections)
				for range connections {
					go func() {
						_, err := s.client.Connect(lab.TCP, webAddr, lab.Timeout(patience))
						results <- lab.Outcome(err)
					}()
					time.Sleep(pause)
				}
				s.until("no SYN is answered", func() bool {
					return strings.Count(node("conntrack -L -p tcp --state SYN_SENT"), "[UNREPLIED] src=10.96.0.10") == connections
				})
				time.Sleep(5 * pause) // the next SYNs are those after 7 s, in 0.4 to 3.4 s
				test.cont()
				outcomes := map[string]int{}
				for range connections {
					outcomes[<-results]++
				}
				if outcomes["ok"] == 0 || outcomes["ok"]+outcomes["refused"] < connections {
					t.Errorf("connected before %s: %v", test.what, outcomes)
				}
				t.Logf("%s: %v", test.what, outcomes)
			}
			if st := stays.Stats(); st.Failed > 0 || st.Ended {
				t.Errorf("the connection established before: %+v", st)
			}
		})
	}
}

// TestRemovalsOfOtherModes checks which objects of former modes go: those of each mode, also of a new one, except
// what the mode in use has.
func TestRemovalsOfOtherModes(t *testing.T) {
	former := modes
	t.Cleanup(func() { modes = former })
	var removed []string
	remover := func(name string) mode {
		return mode{remove: func(context.Context) error { removed = append(removed, name); return nil }}
	}
	modes = map[string]mode{"new": remover("new"), "other": remover("other"), "upon": {table: "other"}}
	for used, want := range map[string]string{"": "new other", "new": "other", "other": "new", "upon": "new"} {
		removed = nil
		if err := removeModes(t.Context(), used); err != nil || strings.Join(removed, " ") != want {
			t.Errorf("mode %q: removed %v, error %v, want %s", used, removed, err, want)
		}
	}
}

// TestFlowsEnd removes the endpoint of a flow of UDP. Its next datagrams reach another one, in every mode.
func TestFlowsEnd(t *testing.T) {
	for _, mode := range modeNames() {
		t.Run(mode, func(t *testing.T) {
			switch mode {
			case config.IPTables:
				kerneltest.Require(t, kerneltest.IPTablesNFT, kerneltest.IPSet)
			case config.IPVS:
				kerneltest.Require(t, kerneltest.IPVS, kerneltest.IPSet)
			}
			s := newSite(t)
			udp := func(server int) string {
				return strings.NewReplacer("port: 80,", "protocol: UDP, port: 80,", "[{port: 8080}]", "[{protocol: UDP, port: 8080}]").Replace(web(server))
			}
			s.save("web.yaml", udp(0))
			s.run("--proxy-mode", mode)
			for _, server := range []int{0, 1} {
				s.save("web.yaml", udp(server))
				s.until(fmt.Sprint("the flow reaches web-", server), func() bool {
					r, err := s.client.Connect(lab.UDP, webAddr, lab.Source(netip.AddrPortFrom(s.client.Addrs()[0], 5353)), lab.Timeout(100*time.Millisecond))
					return err == nil && r.Server == fmt.Sprint("web-", server)
				})
			}
		})
	}
}
