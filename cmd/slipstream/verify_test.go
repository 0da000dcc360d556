// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/socket"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

// allTheSame is the output of verify without a difference.
var allTheSame = regexp.MustCompile(`^Node n1( \(there is no such object; see --hostname-override\))?, [1-9]\d* frontends?, [1-9]\d* endpoints?, [1-9]\d* rules, \d+ rules of the fast path, \d+ frontends? of sockets, \d+ kernel parameters?: the same\n$`)

// differs reports whether verify has ended with the exit status for differences.
func differs(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.ExitCode() == 2
}

// TestVerifyWhileServicesChange: a difference counts if each comparison has it. With Services that keep
// changing, each comparison has others, and none of them is one.
func TestVerifyWhileServicesChange(t *testing.T) {
	for _, c := range []struct {
		found [][]string
		want  []string
	}{
		{[][]string{{"a", "b"}, {"c", "b"}, {"b", "d"}}, []string{"b"}},
		{[][]string{{"a"}, {"b"}, {"c"}}, nil},
		{[][]string{{"a"}, nil, {"a"}}, nil},
	} {
		i := 0
		lines, err := agreed(func() ([]string, error) { i++; return c.found[i-1], nil })
		if err != nil || !slices.Equal(lines, c.want) {
			t.Errorf("%v: %v, error %v; want %v", c.found, lines, err, c.want)
		}
	}
	if _, err := agreed(func() ([]string, error) { return nil, context.Canceled }); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// TestVerify checks that verify finds no difference in intact rules, and names the Service and
// the object that were changed externally.
func TestVerify(t *testing.T) {
	for _, c := range []struct {
		mode, damage string
		needs        kerneltest.Feature
		want         []string
	}{
		{config.NFTables, "nft flush map ip slipstream endpoints", kerneltest.NFTBinary, []string{
			"- Service default/web", "+ Service default/web",
		}},
		{config.NFTables, "nft flush chain ip slipstream masq", kerneltest.NFTBinary, []string{
			"+ fault: ip: chain masq has 0 rules instead of 2\n",
		}},
		{config.NFTables, "nft insert rule ip slipstream services drop", kerneltest.NFTBinary, []string{
			"+ fault: ip: chains or rules were modified", "+ fault: ip: chain services has 8 rules instead of 7\n",
		}},
		{config.IPVS, `
			ipvsadm -d -t 10.96.0.10:80 -r 10.244.1.10:8080
			ipvsadm -e -t 10.96.0.10:80 -r 10.244.1.11:8080 -m -w 7
			ipvsadm -A -t 10.96.9.9:80
			ip addr add 10.96.8.8/32 dev kube-ipvs0`, kerneltest.IPVS, []string{
			"- Service default/web: 10.96.0.10:80/TCP -> 10.244.1.10:8080 10.244.1.11:8080 10.244.1.12:8080\n",
			"+ Service default/web: 10.96.0.10:80/TCP -> 10.244.1.11:8080 10.244.1.12:8080 (shares 875 125)\n",
			"virtual server 10.96.9.9:80/TCP of no frontend that IPVS serves",
			"interface kube-ipvs0 has address 10.96.8.8 of no Service",
		}},
	} {
		t.Run(c.mode+"/"+c.damage, func(t *testing.T) {
			kerneltest.Require(t, c.needs)
			s := newSite(t)
			s.save("web.yaml", web(0, 1, 2))
			p := s.run("--proxy-mode", c.mode)
			s.untilReached("web-0", "web-1", "web-2")
			for range 10 { // until it has the rules of the fast path, too
				if _, err := s.verify("--proxy-mode", c.mode); err == nil {
					break
				}
			}
			p.Kill() // it would heal
			<-p.Done()
			if out, err := s.verify("--proxy-mode", c.mode); err != nil || !allTheSame.MatchString(out) {
				t.Errorf("error %v, output:\n%s", err, out)
			}
			if out, err := s.verify("--proxy-mode", c.mode, "--cluster-cidr", "10.77.0.0/16"); !differs(err) || !strings.Contains(out, "of another configuration") {
				t.Errorf("with another --cluster-cidr: error %v, output:\n%s", err, out)
			}
			if out, err := s.node.Run(t.Context(), "sh", "-ec", c.damage); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			out, err := s.verify("--proxy-mode", c.mode)
			if !differs(err) {
				t.Errorf("error %v", err)
			}
			for _, want := range c.want {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in the output:\n%s", want, out)
				}
			}
		})
	}
}

// misdirect has a shell command for each mode that replaces the backend 10.244.1.10 by
// 10.244.1.12, or the scheduler. The number of objects stays the same.
var misdirect = map[string]string{
	config.NFTables: `
		key=$(nft list map ip slipstream endpoints | grep -oE '[^{},]+ : 10\.244\.1\.10 \. ' | sed 's/ :.*//')
		nft "delete element ip slipstream endpoints { $key }; add element ip slipstream endpoints { $key : 10.244.1.12 . 8080 }"`,
	config.IPTables: `
		iptables-legacy -t mangle -N KUBE-IPTABLES-HINT || true # it does not use the other variant for that
		iptables-nft-save -t nat | sed s/10.244.1.10:8080/10.244.1.12:8080/ | iptables-nft-restore`,
	config.IPVS: `ipvsadm -E -t 10.96.0.10:80 -s lc`,
}

// TestVerifyInBackground checks that a running proxy finds and repairs, in each mode, an
// external modification that Check does not see, or not in time.
func TestVerifyInBackground(t *testing.T) {
	needs := map[string][]kerneltest.Feature{
		config.NFTables: {kerneltest.NFTBinary},
		config.IPTables: {kerneltest.IPTablesNFT, kerneltest.IPSet},
		config.IPVS:     {kerneltest.IPVS},
	}
	for _, mode := range modeNames() {
		t.Run(mode, func(t *testing.T) {
			kerneltest.Require(t, needs[mode]...)
			s := newSite(t)
			s.save("web.yaml", web(0, 1))
			// Check would see it first in two modes.
			s.run("--proxy-mode", mode, "--metrics-bind-address", "127.0.0.1:10249", "--check-period", "1h", "--verify-period", "200ms")
			s.untilReached("web-0", "web-1")
			s.until("it has verified", func() bool {
				return strings.Contains(s.log.String(), `"Verified the programmed content" differences=0`)
			})
			if out, err := s.node.Run(t.Context(), "sh", "-ec", misdirect[mode]); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			s.untilMetric(`slipstream_verify_runs_total{result="different"} 1`)
			s.untilReached("web-0", "web-1")
			s.untilMetric("slipstream_verify_differences 0")
			m := s.metrics()
			for _, want := range []string{`{result="different"} 1`, `{result="failed"} 0`, "slipstream_repairs_total 1"} {
				if !strings.Contains(m, want+"\n") {
					t.Errorf("the metrics do not have %s:\n%s", want, m)
				}
			}
			differences := []string{
				`"The kernel differs from the programmed content" difference="- Service default/web: 10.96.0.10:80/TCP -> 10.244.1.10:8080 10.244.1.11:8080"`,
				`"The kernel differs from the programmed content" difference="+ Service default/web: 10.96.0.10:80/TCP -> 10.244.1.11:8080 10.244.1.12:8080"`,
				`"Event" reason="Damaged" note="ruleset modified externally: 2 differences, such as`,
			}
			if mode == config.IPVS {
				differences[1] = `"The kernel differs from the programmed content" difference="+ Service default/web: 10.96.0.10:80/TCP -> 10.244.1.10:8080 10.244.1.11:8080; scheduler lc"`
			}
			for _, want := range differences {
				if !strings.Contains(s.log.String(), want) {
					t.Errorf("the log does not have %s", want)
				}
			}
			if mode != config.IPVS {
				return
			}
			if out, err := s.verify("--proxy-mode", mode); err != nil || !allTheSame.MatchString(out) {
				t.Errorf("verify: error %v, output:\n%s", err, out)
			}
		})
	}
}

// untilMetric waits for a line of the metrics.
func (s *site) untilMetric(line string) {
	s.t.Helper()
	s.until(line, func() bool { return strings.Contains(s.ask("127.0.0.1:10249", "/metrics"), "\n"+line+"\n") })
}

// verify runs slipstream verify on the node.
func (s *site) verify(args ...string) (string, error) {
	var out bytes.Buffer
	cmd := s.command(append([]string{"verify", "--manifests", s.dir, "--hostname-override", "n1"}, args...)...)
	cmd.Stdout = &out
	p, err := s.node.Start(cmd)
	s.check(err)
	err = p.Wait()
	return out.String(), err
}

// TestVerifyBeside damages what is beside the dataplane: a parameter of the kernel, and programs of sockets.
func TestVerifyBeside(t *testing.T) {
	s := newSite(t)
	kerneltest.Require(t, kerneltest.CGroupBPF)
	kerneltest.CGroup(t) // in /proc/self/mountinfo
	t.Cleanup(func() { s.check(socket.Remove(s.node.FD())) })
	s.save("web.yaml", web(0, 1))
	options := []string{"--socket-load-balancing", "tcp", "--conntrack-udp-timeout", "77s", "--proxy-mode", "nftables"}
	p := s.run(options...)
	s.untilReached("web-0", "web-1")
	out := ""
	s.until("verify finds all", func() (same bool) { // the programs are attached later than the rules
		var err error
		out, err = s.verify(options...)
		return err == nil && allTheSame.MatchString(out) && strings.Contains(out, " 1 frontend of sockets, 1 kernel parameter:")
	})
	s.check(p.Kill())
	<-p.Done()
	s.check(s.node.SetSysctl("netfilter/nf_conntrack_udp_timeout", "5"))
	s.check(socket.Remove(s.node.FD()))
	out, err := s.verify(options...)
	if !differs(err) {
		t.Errorf("error %v", err)
	}
	contains(t, out, "+ fault: nf_conntrack_udp_timeout is 5 instead of 77\n", "+ fault: the BPF program connect4 is not at cgroup ", ": 5 differences\n")
}
