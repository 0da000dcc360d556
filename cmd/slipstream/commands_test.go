// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// try runs the command in the test, without a kernel, and returns its output and error.
func try(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := newRoot()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// TestUsage checks what commands say of themselves.
func TestUsage(t *testing.T) {
	for name, check := range map[string]func(t *testing.T){
		"usage errors give no hint": func(t *testing.T) {
			if _, err := try(t, "explain"); err == nil || !strings.Contains(err.Error(), "slipstream explain --help") {
				t.Error(err)
			}
		},
		"there is no --version": func(t *testing.T) {
			if out, err := try(t, "--version"); err != nil || !strings.Contains(out, versionText()) {
				t.Error(out, err)
			}
		},
		"version takes no -o json": func(t *testing.T) {
			if out, err := try(t, "version", "-o", "json"); err != nil || !strings.HasPrefix(out, "{") {
				t.Error(out, err)
			}
		},
		"the values of -o differ between commands": func(t *testing.T) {
			if _, err := try(t, "flows", "-o", "text", "--watch", "--period", "-1s"); err == nil || strings.Contains(err.Error(), "--output") {
				t.Error(err)
			}
		},
		"flags complete file names": func(t *testing.T) {
			for flag, want := range map[string]string{"status -o": "json", "services --sort": "connections", "run --proxy-mode": "nftables"} {
				if out, err := try(t, append(append([]string{"__complete"}, strings.Fields(flag)...), "")...); err != nil || !strings.Contains(out, want) {
					t.Errorf("%s: %q, %v", flag, out, err)
				}
			}
		},
		"the commands are not grouped": func(t *testing.T) {
			if out, err := try(t, "--help"); err != nil || strings.Index(out, "\n  cleanup") < strings.Index(out, "\n  run") {
				t.Error(out, err)
			}
		},
		"cleanup has no --dry-run": func(t *testing.T) {
			if newCleanup().Flags().Lookup("dry-run") == nil {
				t.Error("no such flag")
			}
		},
	} {
		t.Run(name, check)
	}
}

// TestAnswers asks a proxy that serves Services of several kinds.
func TestAnswers(t *testing.T) {
	socket := socketPath(t)
	for name, check := range map[string]func(*testing.T, *site, func(args ...string) string){
		"services does not show the addresses of NodePorts": func(t *testing.T, _ *site, ask func(...string) string) {
			contains(t, ask("services"), "192.168.100.11:30080")
		},
		"source ranges are shown nowhere": func(t *testing.T, _ *site, ask func(...string) string) {
			contains(t, ask("services", "web"), "203.0.113.0/24")
		},
		"services of a namespace without any is a bare header": func(t *testing.T, _ *site, ask func(...string) string) {
			contains(t, ask("services", "-n", "nosuch"), "nosuch")
		},
		"status does not count Services without endpoints": func(t *testing.T, _ *site, ask func(...string) string) {
			contains(t, ask("status"), "1 Service without")
		},
		"status does not know whether verifyPeriod is set": func(t *testing.T, _ *site, ask func(...string) string) {
			if out := ask("status"); strings.Contains(out, "not yet, or") {
				t.Error(out)
			}
		},
		"status says: 1 problems, a external IP": func(t *testing.T, _ *site, ask func(...string) string) {
			out := ask("status") + ask("services", "web") + ask("explain", "web")
			for _, wrong := range []string{"1 problems", "a external IP", "There are 1 ", "1 Services", "1 endpoints"} {
				if strings.Contains(" "+out, " "+wrong) {
					t.Errorf("%q in:\n%s", wrong, out)
				}
			}
		},
		"an endpoint's node is called this, in JSON": func(t *testing.T, _ *site, ask func(...string) string) {
			if out := ask("services", "-o", "json", "web"); !strings.Contains(out, `"node": "n1"`) {
				t.Error(out)
			}
		},
		"top writes terminal codes into a pipe": func(t *testing.T, s *site, ask func(...string) string) {
			var out logBuffer
			cmd := s.command("top", "--period", "1s", "--socket", socket)
			cmd.Stdout = &out
			p, err := s.node.Start(cmd)
			s.check(err)
			t.Cleanup(func() { p.Kill() })
			s.until("it has shown Services twice", func() bool { return strings.Count(out.String(), "default/web") > 1 })
			if strings.Contains(out.String(), "\x1b") {
				t.Errorf("%q", out.String())
			}
		},
		"flows does not say why there are none": func(t *testing.T, _ *site, ask func(...string) string) {
			contains(t, ask("flows"), "no fast path")
		},
		"status shows a fast path that is off": func(t *testing.T, _ *site, ask func(...string) string) {
			contains(t, ask("status"), "none: offloadPacketThreshold is 0")
		},
		"a user who is not root reads a URL": func(t *testing.T, s *site, _ func(...string) string) {
			var out strings.Builder
			cmd := s.command("status", "--socket", "/proc/1/root/slipstream.sock")
			cmd.Stderr = &out
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			p, err := s.node.Start(cmd)
			s.check(err)
			if err := p.Wait(); err == nil || out.String() == "" || strings.Contains(out.String(), "http://slipstream") {
				t.Error(err, &out)
			}
		},
		"verify does not say that its Node does not exist": func(t *testing.T, s *site, ask func(...string) string) {
			s.save("node.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n")
			contains(t, ask("verify", "--manifests", s.dir, "--hostname-override", "vm"), "- Node vm", "\nNode vm (there is no such object; see --hostname-override), ")
			contains(t, ask("verify", "--manifests", s.dir, "--hostname-override", "n1"), "Node n1, ")
		},
		"migrate has no verdict on top": func(t *testing.T, s *site, _ func(...string) string) {
			file := filepath.Join(t.TempDir(), "config")
			s.check(os.WriteFile(file, []byte(kubeProxyFile+"mode: ipvs\n"), 0o644))
			out, _ := s.migrate(nil, "--config", file, "--manifests", s.dir, "--mode", "nftables")
			first, _, _ := strings.Cut(out, "\n")
			contains(t, first, "differ")
			for line := range strings.Lines(out) {
				if len(line) > 200 {
					t.Errorf("%d columns: %s", len(line), line)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.run("--status-socket", socket, "--proxy-mode", "nftables", "--nodeport-addresses", "192.168.100.0/24", "--offload-packet-threshold", "0")
			s.save("web.yaml", strings.Replace(balanced, "spec: {", "spec: {externalIPs: [192.0.2.1], ", 1)+"---\n"+
				strings.NewReplacer("name: web", "name: port", "10.96.0.10", "10.96.0.11", "spec: {", "spec: {type: NodePort, ", "port: 80,", "port: 80, nodePort: 30080,").Replace(strings.SplitAfter(web(0), "---\n")[0]))
			s.untilReached("web-0")
			check(t, s, func(args ...string) string {
				if args[0] != "flows" && args[0] != "verify" && args[0] != "migrate" {
					args = append(args, "--socket", socket)
				}
				out, status := s.see(args...)
				return fmt.Sprint(out, "\nexit status ", status)
			})
		})
	}
}
