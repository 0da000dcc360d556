// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/spf13/pflag"
)

// served is a site with Service default/web, and its status socket.
func served(t *testing.T, args ...string) (s *site, socket string) {
	s, socket = newSite(t), socketPath(t)
	s.save("web.yaml", web(0))
	s.run(append([]string{"--status-socket", socket, "--proxy-mode", "nftables", "--cluster-cidr", "10.244.0.0/16"}, args...)...)
	s.untilReached("web-0")
	return s, socket
}

// TestExplainWords asks for a Service in the words that people use.
func TestExplainWords(t *testing.T) {
	s, socket := served(t)
	for _, words := range []string{"svc/web", "service/web", "web.default", "web.default.svc.cluster.local", "http://web.default.svc.cluster.local/", "-n default web"} {
		out, status := s.see(append([]string{"explain", "--socket", socket}, strings.Fields(words)...)...)
		if status != 0 || !strings.Contains(out, "10.96.0.10:80/TCP is a ClusterIP of Service default/web") {
			t.Errorf("%s: exit status %d:\n%s", words, status, out)
		}
	}
	for _, typo := range []string{"wbe", "shop/web", "default/wep"} {
		out, _ := s.see("explain", "--socket", socket, typo)
		if !strings.Contains(out, "default/web") || strings.Contains(out, "invalid AddrPort") {
			t.Errorf("%s:\n%s", typo, out)
		}
	}
	if out, _ := s.see("explain", "--socket", socket, "web/UDP"); strings.Contains(out, "no port ;") || !strings.Contains(out, "80/TCP") {
		t.Errorf("a protocol that it does not have:\n%s", out)
	}
}

// TestExplainVerdict checks that an answer begins or ends with what follows from it, and what was not examined.
func TestExplainVerdict(t *testing.T) {
	s, socket := served(t)
	out, _ := s.see("explain", "--socket", socket, "web")
	contains(t, out, "Nothing found", "Not checked: ")
}

// TestFiveQuestions breaks a Service while the proxy runs, and asks what a first user asks, with at most two commands for each:
// which Service, why, since when, on which nodes, what to do.
func TestFiveQuestions(t *testing.T) {
	s, socket := served(t, "--healthz-bind-address", "127.0.0.1:10256")
	s.save("other.yaml", strings.NewReplacer("name: web", "name: other", "10.96.0.10", "10.96.0.77").Replace(web(1)))
	s.until("the other Service is served", func() bool {
		return strings.Contains(s.ask("127.0.0.1:10256", "/problems"), `"servicesWithoutEndpoints":0`)
	})
	s.save("other.yaml", strings.NewReplacer("name: web", "name: other", "10.96.0.10", "10.96.0.77").Replace(web()))
	s.until("the Service is broken", func() bool {
		return strings.Contains(s.ask("127.0.0.1:10256", "/problems"), `"servicesWithoutEndpoints":1`)
	})

	which, _ := s.see("services", "--socket", socket, "--unserved")
	if !strings.Contains(which, "default/other") || strings.Contains(which, "default/web") || !strings.Contains(which, "since ") {
		t.Errorf("which Service, and since when:\n%s", which)
	}
	out, _ := s.see("explain", "--socket", socket, "default/other")
	first, _, _ := strings.Cut(out, "\n")
	if !strings.HasPrefix(first, "STOPS HERE (EmptySlices): ") || !strings.Contains(first, "selector") || !strings.Contains(out, "since ") {
		t.Errorf("why, what to do, and since when:\n%s", out)
	}
	// The runbook's command asks this of all nodes.
	if nodes := s.ask("127.0.0.1:10256", "/problems"); nodes != `{"node":"n1","problems":[],"servicesWithoutEndpoints":1}`+"\n" {
		t.Errorf("on which nodes: %q", nodes)
	}
}

// TestHungProxy asks a proxy that was stopped: each command says that it waits, and ends.
func TestHungProxy(t *testing.T) {
	s, socket := newSite(t), socketPath(t)
	p := s.run("--status-socket", socket, "--proxy-mode", "nftables")
	s.until("it answers", func() bool { _, status := s.see("status", "--socket", socket); return status == 0 })
	s.check(p.Signal(syscall.SIGSTOP))
	defer p.Signal(syscall.SIGCONT)
	var asking sync.WaitGroup
	for _, command := range []string{"status", "services", "explain web", "top --once"} {
		asking.Go(func() {
			out, status := s.see(append(strings.Fields(command), "--socket", socket)...)
			if contains(t, out, "The proxy has not answered yet", "no proxy answers on "+socket+" in time: it hangs"); status != int(exitNoProxy) {
				t.Errorf("%s: exit status %d", command, status)
			}
		})
	}
	asking.Wait()
}

// TestExplainOtherPod asks for a pod of another node, while the cluster's range only is known.
func TestExplainOtherPod(t *testing.T) {
	s, socket := served(t)
	out, _ := s.see("explain", "--socket", socket, "--from", "10.244.2.7", "web")
	if strings.Contains(out, "pod of this node") {
		t.Errorf("%s", out)
	}
	contains(t, out, "10.244.2.7 (")
}

// TestTraceRefused traces a connection that the endpoint refuses: the kernel ends its entry with that.
func TestTraceRefused(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	s, socket := served(t)
	s.save("web.yaml", strings.Replace(web(0), "ports: [{port: 8080}]", "ports: [{port: 8081}]", 1))
	s.until("the endpoint refuses", func() bool {
		out, _ := s.see("explain", "--socket", socket, "web")
		return strings.Contains(out, ":8081 with probability 100 %")
	})
	out, status := s.see("explain", "--socket", socket, "--trace", "--timeout", "20s", "web")
	if status != int(exitProblems) || strings.Contains(out, "did not leave") {
		t.Errorf("exit status %d:\n%s", status, out)
	}
	contains(t, out, "The connection has no entry any more, as it was refused.", "NotListening")
}

// TestTraceBridge traces a connection that is masqueraded, to an endpoint behind a bridge. A rule drops the reply.
func TestTraceBridge(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	s, socket := served(t, "--masquerade-all")
	link := s.servers[0].NodeLink()
	out, err := s.node.Run(t.Context(), "sh", "-ec", "ip link add cni0 type bridge; ip link set cni0 up; ip link set "+link+" master cni0; ip route replace 10.244.1.10 dev cni0 src 192.168.100.11")
	if err != nil {
		t.Fatal(err, string(out))
	}
	s.untilReached("web-0")
	inPod, err := s.client.Start(exec.Command("sleep", "infinity"))
	s.check(err)
	defer inPod.Kill()
	s.nft("add table inet other; add chain inet other forward { type filter hook forward priority 5; }; add rule inet other forward tcp sport 8080 drop")
	text, _ := s.see("explain", "--socket", socket, "--trace", "--from", "10.244.1.2", "web")
	contains(t, text, "The reply is dropped here. table inet other chain forward: drop.")
}

// TestTraceSilentPod traces a connection to a pod that drops it: the packet has left for the pod, which is where
// to look.
func TestTraceSilentPod(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	s, socket := served(t)
	out, err := s.servers[0].Run(t.Context(), "nft", "add table inet other; add chain inet other input { type filter hook input priority 0; }; add rule inet other input tcp dport 8080 drop")
	if err != nil {
		t.Fatal(err, string(out))
	}
	said, _ := s.see("explain", "--socket", socket, "--trace", "--timeout", "20s", "--from", "node", "web")
	contains(t, said, "look inside it")
}

// TestServicesWidth checks that the list fits a terminal of 120 columns, as a Service with short names is in it.
func TestServicesWidth(t *testing.T) {
	s, socket := served(t)
	out, _ := s.see("services", "--socket", socket)
	for line := range strings.Lines(out) {
		if n := utf8.RuneCountInString(strings.TrimSpace(line)); n > 120 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	contains(t, out, "default/web")
}

// TestPageUnknownBytes checks that the page does not say 0 where bytes are not counted.
func TestPageUnknownBytes(t *testing.T) {
	const page = "127.0.0.1:10280"
	s, _ := served(t, "--ui-bind-address", page, "--offload-packet-threshold", "0")
	s.check(s.node.SetSysctl("netfilter/nf_conntrack_acct", "0"))
	text, err := s.getPage(page, "/data/services")
	s.check(err)
	var all struct{ Rows []map[string]any }
	s.check(json.Unmarshal([]byte(text), &all))
	if len(all.Rows) != 1 || all.Rows[0]["bytesPerSecond"] != nil {
		t.Errorf("%v", all.Rows)
	}
	s.until("the picture of the Service has rates", func() bool {
		text, err = s.getPage(page, "/data/services/default/web")
		return err == nil && strings.Contains(text, `"connectionsPerSecond"`)
	})
	if strings.Contains(text, `"bytesPerSecond":0`) || strings.Contains(text, `"bytesPerSecond": 0`) {
		t.Errorf("the picture: %s", text)
	}
}

// TestRunHelp checks that the help has each flag once, in sections.
func TestRunHelp(t *testing.T) {
	cmd := newRun()
	var help bytes.Buffer
	cmd.SetOut(&help)
	if err := cmd.Usage(); err != nil {
		t.Fatal(err)
	}
	contains(t, help.String(), "\nServices:\n", "\nIPVS mode:\n", "\n  slipstream run --manifests ")
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		lines := regexp.MustCompile(`\n {2,6}(-v, )?--`+f.Name+`[ [].*`).FindAllString(help.String(), -1)
		if len(lines) != 1 && f.Deprecated == "" {
			t.Errorf("--%s: %q", f.Name, lines)
		}
	})
}

// TestListsBesideFile gives lists as flags beside a configuration file.
func TestListsBesideFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(file, []byte(kubeProxyFile), 0o644); err != nil {
		t.Fatal(err)
	}
	c := parsed(t, "--config "+file+" --external-ip-ranges 192.0.2.0/24,198.51.100.0/24 --exclude-dscp 3,4 --exclude-addresses 203.0.113.7")
	if s := &c.Slipstream; !slices.Equal(s.ExternalIPRanges, []string{"192.0.2.0/24", "198.51.100.0/24"}) || fmt.Sprint(s.FastPath.ExcludeDSCP, s.FastPath.ExcludeAddresses) != "[3 4] [203.0.113.7]" {
		t.Errorf("%+v", s)
	}
}

// TestVerifyHelp checks that verify offers no flags of what it does not do. It still takes them, as it
// gets the flags of a proxy.
func TestVerifyHelp(t *testing.T) {
	for _, name := range []string{"cleanup", "init-only", "ui-bind-address", "http-authorization", "write-config-to", "check-period", "v", "oom-score-adj"} {
		cmd := newVerify()
		var help bytes.Buffer
		cmd.SetOut(&help)
		if err := cmd.Usage(); err != nil || strings.Contains(help.String(), "--"+name+" ") || cmd.Flags().Lookup(name) == nil {
			t.Errorf("--%s: %v", name, err)
		}
	}
}
