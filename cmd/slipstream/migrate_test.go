// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/migrate"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// migrate runs slipstream migrate on the node and returns its output and exit code.
func (s *site) migrate(env []string, args ...string) (string, int) {
	s.t.Helper()
	var out bytes.Buffer
	cmd := s.command(append([]string{"migrate", "--hostname-override", "n1"}, args...)...)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdout = &out
	p, err := s.node.Start(cmd)
	s.check(err)
	err = p.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	if exit == nil {
		return out.String(), 0
	}
	return out.String(), exit.ExitCode()
}

// report runs it with -o json.
func (s *site) report(want int, env []string, args ...string) *migrate.Report {
	s.t.Helper()
	out, status := s.migrate(env, append(args, "-o", "json")...)
	var r migrate.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || status != want {
		s.t.Fatalf("exit code %d, error %v:\n%s", status, err, out)
	}
	return &r
}

const kubeProxyFile = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.244.0.0/16\nclientConnection: {kubeconfig: /nowhere}\nconntrack: {maxPerCore: 0}\n"

// TestMigrate compares kube-proxy with modes on a real kernel, and runs with the configuration
// that it prints.
func TestMigrate(t *testing.T) {
	s := newSite(t)
	s.save("web.yaml", nodePort(0, 1))
	s.save("plain.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: plain}\nspec: {clusterIP: 10.96.0.11, ports: [{port: 80}]}\n")
	conf := t.TempDir()
	file := func(mode string) string {
		name := filepath.Join(conf, mode+".conf")
		s.check(os.WriteFile(name, []byte(kubeProxyFile+"mode: "+mode+"\n"), 0o644))
		return name
	}

	// A program listens on an address that IPVS mode takes away. On a real node it is one of kube-ipvs0.
	_, err := s.node.Run(t.Context(), "ip", "addr", "add", "10.96.0.10/32", "dev", "lo")
	s.check(err)
	_, err = s.node.Serve(lab.TCP, netip.MustParseAddrPort("10.96.0.10:53"))
	s.check(err)

	r := s.report(2, nil, "--config", file("ipvs"), "--manifests", s.dir)
	if r.From != config.IPVS || r.Recommended != config.NFTables || len(r.Modes) != 3 {
		t.Errorf("from %s, recommended %s, %d modes", r.From, r.Recommended, len(r.Modes))
	}
	m := r.Modes[0]
	if m.Mode != config.NFTables || !m.Possible || m.Unchanged != 1 || len(m.Services) != 1 || m.Services[0].Name != "default/web" {
		t.Fatalf("mode %+v", m)
	}
	if !slices.ContainsFunc(m.Services[0].Findings, func(f migrate.Finding) bool {
		return f.Case == "listener" && strings.Contains(f.Text, "10.96.0.10:53")
	}) {
		t.Errorf("the listener is not found: %+v", m.Services[0].Findings)
	}

	// As text, and with one mode.
	out, status := s.migrate(nil, "--config", file("ipvs"), "--manifests", s.dir, "--mode", "nftables")
	for _, want := range []string{"kube-proxy runs in the mode ipvs. In Slipstream's mode nftables, 0 things stop, ", "\nMode nftables\n", "  Service default/web\n    differs  external-local: ", "  Services without a change of their own: 1\n", "\nConfiguration for the mode nftables:\n", "\n- all\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in the output:\n%s", want, out)
		}
	}
	if status != 2 || strings.Contains(out, "Mode iptables") {
		t.Errorf("exit code %d:\n%s", status, out)
	}

	// Nothing changes but the fast path.
	if r := s.report(2, nil, "--config", file("nftables"), "--manifests", s.dir, "--mode", "nftables"); len(r.Modes[0].Services) != 0 || len(r.Modes[0].Node) != 1 || r.Modes[0].Node[0].Case != "fast-path" {
		t.Errorf("%+v", r.Modes[0])
	}

	// The kernel lacks nf_tables.
	missing := []string{lacks + "=IPv4 IPv6"}
	r = s.report(1, missing, "--config", file("nftables"), "--manifests", s.dir, "--mode", "nftables")
	if m := r.Modes[0]; m.Possible || r.Recommended != "" || !strings.Contains(m.Node[0].Text, "chain type nat") {
		t.Errorf("%+v", m)
	}

	// Nothing was programmed. The configuration works.
	s.hasNoTable()
	printed := filepath.Join(conf, "printed.conf")
	text := strings.Replace(m.Configuration, "kubeconfig: /nowhere", `kubeconfig: ""`, 1)
	s.check(os.WriteFile(printed, []byte(text), 0o644))
	s.run("--config", printed)
	s.untilReached("web-0", "web-1")
}

// hasNoTable fails the test if the kernel has a table of Slipstream's.
func (s *site) hasNoTable() {
	s.t.Helper()
	b := s.kernel()
	defer b.Close()
	if c, err := b.Read(s.t.Context()); err != nil || len(c.Lines()) > 0 {
		s.t.Errorf("programmed: %v %v", c.Lines(), err)
	}
}

// configMaps starts an API server on the node that has a Service default/web, and in kube-system these ConfigMaps.
// It returns its URL.
func (s *site) configMaps(all map[string]map[string]string) string {
	s.t.Helper()
	answer := func(w http.ResponseWriter, code int, object any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(object)
	}
	kinds := map[string]string{"services": "ServiceList", "endpointslices": "EndpointSliceList", "nodes": "NodeList", "servicecidrs": "ServiceCIDRList"}
	server := &httptest.Server{Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
		resource, version := path[len(path)-1], strings.Join(path[1:len(path)-1], "/")
		q := r.URL.Query()
		name, isMap := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/kube-system/configmaps/")
		switch {
		case isMap && all[name] != nil:
			answer(w, http.StatusOK, map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}, "data": all[name]})
		case kinds[resource] == "":
			answer(w, http.StatusNotFound, map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "not found"})
		case q.Get("sendInitialEvents") != "":
			answer(w, http.StatusUnprocessableEntity, map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Invalid", "code": 422, "message": "no streams"})
		case q.Get("watch") != "":
			w.Header().Set("Content-Type", "application/json")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			items := []any{}
			if resource == "services" {
				items = append(items, map[string]any{"metadata": map[string]any{"namespace": "default", "name": "web"}, "spec": map[string]any{"clusterIP": "10.96.0.10", "sessionAffinity": "ClientIP", "ports": []any{map[string]any{"port": 80, "protocol": "TCP"}}}})
			}
			answer(w, http.StatusOK, map[string]any{"apiVersion": version, "kind": kinds[resource], "metadata": map[string]any{"resourceVersion": "1"}, "items": items})
		}
	})}}
	s.check(s.node.Do(func() (err error) {
		server.Listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}))
	server.Start()
	s.t.Cleanup(server.Close)
	return server.URL
}

// TestMigrateConfigMap reads kube-proxy's configuration and the Services from an API server.
func TestMigrateConfigMap(t *testing.T) {
	s := newSite(t)
	maps := map[string]map[string]string{"kube-proxy": {"config.conf": kubeProxyFile + "mode: ipvs\nipvs: {scheduler: lc}\n"}}
	url := s.configMaps(maps)
	r := s.report(2, nil, "--master", url)
	m := r.Modes[0]
	if r.From != config.IPVS || len(m.Services) != 1 || m.Services[0].Name != "default/web" || m.Services[0].Findings[0].Case != "affinity" || !strings.Contains(m.Configuration, "\nscheduler: lc\n") {
		t.Errorf("%+v", r)
	}
	delete(maps, "kube-proxy")
	if _, status := s.migrate(nil, "--master", url); status != 1 || !strings.Contains(s.log.String(), "slipstream: ConfigMap kube-system/kube-proxy: ") {
		t.Errorf("exit code %d without a ConfigMap", status)
	}
}

// TestMigrateEKS reads the ConfigMap that Amazon EKS has.
func TestMigrateEKS(t *testing.T) {
	s := newSite(t)
	url := s.configMaps(map[string]map[string]string{"kube-proxy-config": {"config": kubeProxyFile + "mode: ipvs\n"}})
	if r := s.report(2, nil, "--master", url); r.From != config.IPVS {
		t.Errorf("from %s", r.From)
	}
}

// TestMigrateAsks has a kube-proxy run in another mode than its ConfigMap says, which was changed since, or
// which does not exist, as kube-proxy has flags only.
func TestMigrateAsks(t *testing.T) {
	s := newSite(t)
	s.check(s.node.Do(func() error {
		l, err := net.Listen("tcp", "127.0.0.1:10249")
		if err != nil {
			return err
		}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/proxyMode":
				fmt.Fprint(w, config.IPTables)
			case "/configz":
				fmt.Fprintf(w, `{"kubeproxy.config.k8s.io": {"mode": %q, "clusterCIDR": "10.244.0.0/16"}}`, config.IPTables)
			default:
				http.NotFound(w, r)
			}
		})}
		t.Cleanup(func() { server.Close() })
		go func() { _ = server.Serve(l) }()
		return nil
	}))
	for _, maps := range []map[string]map[string]string{nil, {"kube-proxy": {"config.conf": kubeProxyFile + "mode: ipvs\n"}}} {
		if r := s.report(2, nil, "--master", s.configMaps(maps)); r.From != config.IPTables {
			t.Errorf("ConfigMaps %v: from %s", maps, r.From)
		}
	}
}

// TestMigrateErrors checks flags that cannot be combined, and the completion of others.
func TestMigrateErrors(t *testing.T) {
	for want, args := range map[string]string{
		"--manifests needs --config":        "--manifests /m",
		"--manifests cannot be combined":    "--manifests /m --config /c --master http://127.0.0.1:1",
		`"--mode" flag: must be one of ipt`: "--mode x",
		`flag: must be one of text, json`:   "-o yaml",
		"--config: open /nowhere: no such":  "--config /nowhere",
	} {
		cmd := newRoot()
		cmd.SetArgs(append([]string{"migrate"}, strings.Fields(args)...))
		cmd.SetOut(io.Discard)
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %q should name %s in one line", args, err, want)
		}
	}
	for flag, want := range map[string]string{"--mode": "iptables\nipvs\nnftables\n", "-o": "text\njson\n"} {
		var out bytes.Buffer
		cmd := newRoot()
		cmd.SetArgs([]string{"__complete", "migrate", flag, ""})
		cmd.SetOut(&out)
		cmd.SetErr(io.Discard)
		if err := cmd.ExecuteContext(t.Context()); err != nil || !strings.HasPrefix(out.String(), want) {
			t.Errorf("completion of %s: %v, %q", flag, err, out.String())
		}
	}
}
