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
	out, status := s.migrate(env, append([]string{"-o", "json"}, args...)...)
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
	for _, want := range []string{"kube-proxy runs in the mode ipvs. In Slipstream's mode nftables, what stops working: 0, what differs: ", "\nMode nftables\n", "  Service default/web\n    differs  external-local: ", "  Services without a change of their own: 1\n", "\nConfiguration for the mode nftables:\n", "\n- all\n"} {
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

// eksConfig has the fields of EKS's, some of them of versions long ago.
const eksConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 0.0.0.0
clientConnection:
  acceptContentTypes: ""
  burst: 10
  contentType: application/vnd.kubernetes.protobuf
  kubeconfig: /var/lib/kube-proxy/kubeconfig
  qps: 5
clusterCIDR: ""
configSyncPeriod: 15m0s
conntrack: {maxPerCore: 32768, min: 131072, tcpCloseWaitTimeout: 1h0m0s, tcpEstablishedTimeout: 24h0m0s}
enableProfiling: false
healthzBindAddress: 0.0.0.0:10256
hostnameOverride: ""
iptables: {masqueradeAll: false, masqueradeBit: 14, minSyncPeriod: 0s, syncPeriod: 30s}
ipvs: {excludeCIDRs: null, minSyncPeriod: 0s, scheduler: "", syncPeriod: 30s}
kind: KubeProxyConfiguration
metricsBindAddress: 0.0.0.0:10249
mode: ipvs
nodePortAddresses: null
oomScoreAdj: -998
portRange: ""
`

// TestMigrateEKS reads the ConfigMap that Amazon EKS has.
func TestMigrateEKS(t *testing.T) {
	s := newSite(t)
	url := s.configMaps(map[string]map[string]string{"kube-proxy-config": {"config": eksConfig}})
	r := s.report(2, nil, "--master", url)
	if r.From != config.IPVS || !strings.Contains(r.Modes[0].Configuration, "metricsBindAddress: 0.0.0.0:10249\n") {
		t.Errorf("from %s:\n%s", r.From, r.Modes[0].Configuration)
	}
}

// rke2Pod is a manifest as RKE2 writes it to /var/lib/rancher/rke2/agent/pod-manifests/kube-proxy.yaml, with
// kube-proxy-arg of its configuration among the flags.
const rke2Pod = `apiVersion: v1
kind: Pod
metadata:
  labels: {component: kube-proxy, tier: control-plane}
  name: kube-proxy
  namespace: kube-system
spec:
  containers:
  - args:
    - --cluster-cidr=10.42.0.0/16
    - --conntrack-max-per-core=0
    - --conntrack-tcp-timeout-close-wait=0s
    - --conntrack-tcp-timeout-established=0s
    - --healthz-bind-address=127.0.0.1
    - --hostname-override=n1
    - --ipvs-scheduler=lc
    - --kubeconfig=/var/lib/rancher/rke2/agent/kubeproxy.kubeconfig
    - --metrics-bind-address=0.0.0.0
    - --proxy-mode=ipvs
    command: [kube-proxy]
    env: [{name: FILE_HASH, value: "0"}]
    image: registry.example/hardened-kubernetes:v1.33.7-rke2r3
    imagePullPolicy: IfNotPresent
    livenessProbe: {failureThreshold: 8, httpGet: {host: localhost, path: /healthz, port: 10256, scheme: HTTP}}
    name: kube-proxy
    ports: [{containerPort: 10256, name: metrics, protocol: TCP}]
    resources: {requests: {cpu: 250m, memory: 128Mi}}
    securityContext: {privileged: true}
    volumeMounts: [{mountPath: /var/lib/rancher/rke2/agent/kubeproxy.kubeconfig, name: file0, readOnly: true}]
  hostNetwork: true
  priorityClassName: system-cluster-critical
  volumes: [{hostPath: {path: /var/lib/rancher/rke2/agent/kubeproxy.kubeconfig, type: File}, name: file0}]
status: {}
`

// kopsPod is a manifest as kops writes it to /etc/kubernetes/manifests/kube-proxy.manifest.
const kopsPod = `apiVersion: v1
kind: Pod
metadata:
  creationTimestamp: null
  labels: {k8s-app: kube-proxy, kubernetes.io/managed-by: nodeup, tier: node}
  name: kube-proxy
  namespace: kube-system
spec:
  containers:
  - args:
    - --log-file=/var/log/kube-proxy.log
    - --also-stdout
    - /usr/local/bin/kube-proxy
    - --cluster-cidr=100.96.0.0/11
    - --conntrack-max-per-core=131072
    - --hostname-override=n1
    - --ipvs-exclude-cidrs=192.0.2.0/24,198.51.100.0/24
    - --kubeconfig=/var/lib/kube-proxy/kubeconfig
    - --master=https://api.internal.example.com
    - --oom-score-adj=-998
    - --proxy-mode=ipvs
    - --v=2
    command: [/go-runner]
    image: registry.example/kube-proxy-amd64:v1.31.0
    name: kube-proxy
    resources: {requests: {cpu: 100m}}
    securityContext: {privileged: true}
    volumeMounts:
    - {mountPath: /var/log/kube-proxy.log, name: logfile}
    - {mountPath: /var/lib/kube-proxy/kubeconfig, name: kubeconfig, readOnly: true}
  hostNetwork: true
  priorityClassName: system-node-critical
  tolerations: [{key: CriticalAddonsOnly, operator: Exists}]
  volumes:
  - {hostPath: {path: /var/log/kube-proxy.log}, name: logfile}
  - {hostPath: {path: /var/lib/kube-proxy/kubeconfig}, name: kubeconfig}
status: {}
`

// k3sLine is what k3s logs after "Running kube-proxy", with kube-proxy-arg of its configuration.
const k3sLine = "--cluster-cidr=10.42.0.0/16 --conntrack-max-per-core=0 --conntrack-tcp-timeout-close-wait=0s --conntrack-tcp-timeout-established=0s --healthz-bind-address=127.0.0.1 --hostname-override=n1 --kubeconfig=/var/lib/rancher/k3s/agent/kubeproxy.kubeconfig --nodeport-addresses=192.0.2.0/24,127.0.0.0/8 --proxy-mode=iptables"

// TestMigrateFlags has kube-proxies with flags, in the forms that distributions have, whole command lines.
func TestMigrateFlags(t *testing.T) {
	s := newSite(t)
	s.save("web.yaml", nodePort(0, 1))
	dir := t.TempDir()
	file := func(name, text string) string {
		name = filepath.Join(dir, name)
		s.check(os.WriteFile(name, []byte(text), 0o644))
		return name
	}
	for name, c := range map[string]struct {
		args []string
		from string
		want []string // of the configuration for nftables mode
	}{
		"RKE2":        {[]string{"--config", file("rke2.yaml", rke2Pod)}, config.IPVS, []string{"clusterCIDR: 10.42.0.0/16\n", "  maxPerCore: 0\n", "  tcpEstablishedTimeout: 0s\n", "healthzBindAddress: 127.0.0.1:10256\n", "metricsBindAddress: 0.0.0.0:10249\n", "kubeconfig: /var/lib/rancher/rke2/agent/kubeproxy.kubeconfig\n", "\nscheduler: lc\n"}},
		"kops":        {[]string{"--config", file("kops.manifest", kopsPod)}, config.IPVS, []string{"clusterCIDR: 100.96.0.0/11\n", "  maxPerCore: 131072\n", "kubeconfig: /var/lib/kube-proxy/kubeconfig\n", "oomScoreAdj: -998\n"}},
		"k3s":         {append([]string{"--"}, strings.Fields(k3sLine)...), config.IPTables, []string{"clusterCIDR: 10.42.0.0/16\n", "- 192.0.2.0/24\n", "healthzBindAddress: 127.0.0.1:10256\n"}},
		"no mode":     {[]string{"--", "--cluster-cidr=10.244.0.0/16", "--logtostderr=false", "--resource-container="}, config.IPTables, []string{"clusterCIDR: 10.244.0.0/16\n"}},
		"empty mode":  {[]string{"--", "--proxy-mode=", "--cluster-cidr=10.244.0.0/16"}, config.IPTables, []string{"clusterCIDR: 10.244.0.0/16\n"}},
		"masquerades": {[]string{"--", "--proxy-mode=nftables", "--masquerade-all"}, config.NFTables, []string{"nftables:\n  masqueradeAll: true\n"}},
	} {
		r := s.report(2, nil, append([]string{"--manifests", s.dir, "--mode", "nftables"}, c.args...)...)
		if r.From != c.from {
			t.Errorf("%s: from %s", name, r.From)
		}
		for _, line := range c.want {
			if !strings.Contains(r.Modes[0].Configuration, line) {
				t.Errorf("%s: %q is missing in the configuration:\n%s", name, line, r.Modes[0].Configuration)
			}
		}
		if strings.Contains(r.Modes[0].Configuration, "configSyncPeriod") {
			t.Errorf("%s: defaults are in the configuration:\n%s", name, r.Modes[0].Configuration)
		}
	}
	for want, args := range map[string][]string{
		`kube-proxy's flags: --proxy-mode: Invalid value: "ipvz"`:                                                                        {"--", "--proxy-mode=ipvz"},
		"--config: " + dir + "/other.yaml: there are no flags of a kube-proxy in it":                                                     {"--config", file("other.yaml", strings.ReplaceAll(rke2Pod, "[kube-proxy]", "[etcd]"))},
		"--config: " + dir + "/eks.yaml: its flags name the configuration file /var/lib/kube-proxy-config/config: give that to --config": {"--config", file("eks.yaml", strings.ReplaceAll(rke2Pod, "[kube-proxy]", "[kube-proxy, --v=2, --config=/var/lib/kube-proxy-config/config]"))},
	} {
		if _, status := s.migrate(nil, append([]string{"--manifests", s.dir}, args...)...); status != 1 || !strings.Contains(s.log.String(), want) {
			t.Errorf("exit code %d, want the error %q", status, want)
		}
	}
}

// TestMigrateAsks has a kube-proxy run in another mode than its ConfigMap says, which was changed since, or
// which does not exist, as kube-proxy has flags only. In k3s's process, kubelet's configuration is beside it.
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
				fmt.Fprintf(w, `{"kubelet.config.k8s.io": {"address": "0.0.0.0"}, "kubeproxy.config.k8s.io": {"mode": %q, "clusterCIDR": "10.244.0.0/16"}}`, config.IPTables)
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
		"--config cannot be combined with":  "--config /c -- --proxy-mode=ipvs",
		`unknown command "x" for "slip`:     "x",
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
