// SPDX-License-Identifier: Apache-2.0

package kubelets

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/bpffs"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	imageutils "k8s.io/kubernetes/test/utils/image"
)

var (
	helm      = flag.String("helm", "../../../bin/helm", "`path` of helm, which make e2e builds")
	chartOnly = flag.String("chart", "", "TestChart runs only the case with this `name`, on one node")
)

const (
	deployDir = "../../../deploy"
	// image is that of the commands in docs/install.md, and the same with iptables.
	image, imageIPTables = "registry.example/slipstream:v1", "registry.example/slipstream:v1-iptables"
)

// serviceMonitor is a kind of object that is as good as Prometheus' for the API server.
const serviceMonitor = `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "servicemonitors.monitoring.coreos.com"},
 "spec": {"group": "monitoring.coreos.com", "scope": "Namespaced", "names": {"kind": "ServiceMonitor", "plural": "servicemonitors"},
  "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}`

// chartCase is a way to install Slipstream.
type chartCase struct {
	name   string
	values string
	canary string // values of a second release
	before []string
	check  func(*chartTest)
}

var chartCases = []chartCase{
	{name: "nftables", check: func(c *chartTest) {
		for _, pod := range c.pods() {
			if s := pod.Status.InitContainerStatuses; len(s) != 1 || s[0].State.Terminated == nil || s[0].State.Terminated.ExitCode != 0 {
				c.Errorf("%s: its init container: %+v", pod.Name, s)
			}
		}
	}},
	{name: "iptables", values: "{image: {tag: v1-iptables}, config: {mode: iptables}}", check: func(c *chartTest) {
		if rules := c.onNode("sh", "-c", "iptables-legacy-save; iptables-nft-save"); !strings.Contains(rules, "-A SLIP") {
			c.Errorf("iptables has no rules:\n%s", rules)
		}
	}},
	{name: "ebpf", values: "{slipstream: {fastPath: {engine: ebpf, offloadPacketThreshold: 5}}}", check: func(c *chartTest) { c.pinned("slipstream-fastpath") }},
	{name: "sockets", values: `{slipstream: {socketLoadBalancing: tcp, socketExcludePods: '"mesh" in pod.labels', serviceAnnotations: kubernetes.io/metadata.name=default}}`, before: []string{"annotate service web slipstream.io/max-connections=1000"}, check: func(c *chartTest) {
		c.kubectl("annotate", "service", "web", "slipstream.io/max-connections-")
		c.pinned("slipstream-sockets")
		for _, pod := range []string{"plain", "host"} {
			c.until("connections of "+pod+" are not translated", func() bool { return !c.translated(c.ctx, c.T, pod) })
		}
		if !c.translated(c.ctx, c.T, "meshed") {
			c.Error("a connection of a pod that is excluded is not translated")
		}
	}},
	{name: "privileged", values: "{privileged: true, image: {tag: v1-iptables}, config: {mode: iptables, oomScoreAdj: -997}}"},
	{name: "no init container", values: "{initContainer: false, config: {conntrack: {maxPerCore: 0, tcpCloseWaitTimeout: 0s, tcpEstablishedTimeout: 0s}}}"},
	{name: "metrics", values: "{metrics: {serviceMonitor: {enabled: true, interval: 15s, labels: {release: prometheus}, endpoint: {honorLabels: true}}}}", check: func(c *chartTest) {
		c.kubectl("-n", "kube-system", "get", "servicemonitor", "slipstream")
		c.scrape("http")
	}},
	{name: "authorization", values: "{tlsSecret: slipstream-tls, metrics: {enabled: true}, slipstream: {httpAuthorization: api, uiBindAddress: '0.0.0.0:10250'}}",
		check: func(c *chartTest) { c.scrape("https") }},
	{name: "pod", values: `{
		slipstream: {podSocket: /run/slipstream-pods/drained.sock}, extraArgs: [-v=4],
		imagePullSecrets: [{name: none}], image: {pullPolicy: Never},
		securityContext: {seLinuxOptions: {type: spc_t}}, resources: {requests: {cpu: 10m, memory: 60Mi}, limits: {memory: 1Gi}},
		serviceAccount: {create: false, name: own},
		podAnnotations: {a: b}, podLabels: {c: d}, priorityClassName: system-cluster-critical,
		tolerations: [{key: none, operator: Exists}], nodeSelector: {kubernetes.io/os: linux, kubernetes.io/arch: amd64},
		affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: none, operator: DoesNotExist}]}]}}},
		updateStrategy: {rollingUpdate: {maxUnavailable: 1}}, minReadySeconds: 3}`,
		before: []string{"create serviceaccount own -n kube-system", "create clusterrolebinding own --clusterrole=system:node-proxier --serviceaccount=kube-system:own"},
		check:  func(c *chartTest) { c.onNode("test", "-S", "/run/slipstream-pods/drained.sock") }},
	{name: "canary", values: "{nodeSelector: {service-proxy: slipstream}}", canary: "{serviceAccount: {name: slipstream-canary}, nodeSelector: {service-proxy: canary}}",
		before: []string{"label node n1 service-proxy=slipstream", "label node n2 service-proxy=canary"}},
	{name: "ipvs", values: "{privileged: true, config: {mode: ipvs}}"},
}

// chartTest is one case on the cluster of all.
type chartTest struct {
	*testing.T
	*Cluster
	ctx context.Context
}

// TestChart installs the chart with one set of values after the other, as helm does, and the kustomize base. The kubelets and
// containerd run its pods. These become ready, at once a pod reaches a ClusterIP and NodePorts, and status and verify find
// nothing. Then helm uninstalls it, and the DaemonSet of docs/install.md cleans up.
func TestChart(t *testing.T) {
	if !strings.Contains(*proxyFlag, "slipstream") {
		t.Skip("make e2e runs this, as it takes long")
	}
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, unix.SIGTERM)
	defer stop()
	nodes := 2
	if *chartOnly != "" {
		nodes = 1
	}
	c := &chartTest{t, startCluster(ctx, t, "chart", nodes), ctx}
	c.check(bpffs.Mount()) // as systemd does
	for name, options := range map[string][]string{image: nil, imageIPTables: {"--iptables"}} {
		if *chartOnly == "ipvs" && options != nil {
			continue
		}
		archive := slipstreamImage(t, name, options...)
		for _, n := range c.Nodes {
			_, err := n.Exec(ctx, "ctr", "-n", "k8s.io", "images", "import", archive)
			c.check(err)
		}
	}
	pods := strings.ReplaceAll(socketPods, "IMAGE", imageutils.GetE2EImage(imageutils.Agnhost))
	c.check(c.Apply(ctx, strings.ReplaceAll(pods, `"n2"`, fmt.Sprintf(`"n%d"`, nodes))))
	c.check(c.Apply(ctx, serviceMonitor))
	certificates := filepath.Dir(c.Plane.CertificateAuthority())
	c.kubectl("-n", "kube-system", "create", "secret", "tls", "slipstream-tls",
		"--cert="+filepath.Join(certificates, "apiserver.crt"), "--key="+filepath.Join(certificates, "apiserver.key"))
	c.kubectl("wait", "--for=condition=Ready", "pod/web", "pod/plain", "pod/meshed", "pod/host", within())
	for _, k := range chartCases {
		if k.name == *chartOnly || *chartOnly == "" {
			t.Run(k.name, func(t *testing.T) {
				if k.name == "ipvs" {
					kerneltest.Require(t, kerneltest.IPVS)
				}
				(&chartTest{t, c.Cluster, ctx}).install(k)
			})
		}
	}
	if *chartOnly == "" {
		t.Run("kustomize", func(t *testing.T) { (&chartTest{t, c.Cluster, ctx}).kustomize() })
	}
}

func within() string { return fmt.Sprint("--timeout=", *patience) }

func (c *chartTest) check(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

func (c *chartTest) kubectl(args ...string) string {
	c.Helper()
	out, err := c.Kubectl(c.ctx, args...)
	if err != nil {
		all, _ := c.Kubectl(c.ctx, "-n", "kube-system", "describe", "pods")
		logs, _ := c.Kubectl(c.ctx, "-n", "kube-system", "logs", "-l", "app.kubernetes.io/name", "--all-containers", "--prefix", "--tail=40")
		c.Fatalf("kubectl %v: %v: %s\n%s\n%s", args, err, out, all, logs)
	}
	return out
}

// helm runs helm for a release.
func (c *chartTest) helm(args ...string) {
	c.Helper()
	_, err := c.Plane.Host.Run(c.ctx, *helm, append(args, "--kubeconfig", c.Kubeconfig)...)
	c.check(err)
}

func (c *chartTest) onNode(args ...string) string {
	c.Helper()
	out, err := c.Nodes[0].Exec(c.ctx, args...)
	c.check(err)
	return out
}

func (c *chartTest) until(what string, is func() bool) {
	c.Helper()
	for end := time.Now().Add(*patience); !is(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			c.Fatal("it does not come to that: " + what)
		}
	}
}

// install installs the chart, tests it, and uninstalls it.
func (c *chartTest) install(k chartCase) {
	for _, args := range k.before {
		c.kubectl(strings.Fields(args)...)
	}
	releases := map[string]string{"slipstream": "kube-system"}
	all := map[string]string{"slipstream": k.values}
	if k.canary != "" {
		releases["slipstream-canary"], all["slipstream-canary"] = "slipstream-canary", k.canary
	}
	base := filepath.Join(c.TempDir(), "base.yaml")
	c.check(os.WriteFile(base, fmt.Appendf(nil, `{apiServer: "https://%s", image: {repository: registry.example/slipstream, tag: v1},
		config: {clusterCIDR: "10.244.0.0/16,fd00:244::/32"}, minReadySeconds: 0}`, c.Plane.Address()), 0o600))
	c.Cleanup(func() { c.cleanUp(strings.Contains(k.values, "v1-iptables")) })
	for release, namespace := range releases {
		c.Cleanup(func() { c.helm("uninstall", release, "--namespace", namespace, "--wait") })
		values := filepath.Join(c.TempDir(), release+".yaml")
		c.check(os.WriteFile(values, []byte(all[release]+"\n"), 0o600))
		c.helm("install", release, filepath.Join(deployDir, "helm", "slipstream"), "--namespace", namespace, "--create-namespace", "-f", base, "-f", values)
	}
	for _, namespace := range releases {
		c.kubectl("-n", namespace, "rollout", "status", "daemonset/slipstream", within())
	}
	c.serves()
	if k.check != nil {
		k.check(c)
	}
}

// pods are Slipstream's.
func (c *chartTest) pods() []corev1.Pod {
	c.Helper()
	var list corev1.PodList
	c.check(json.Unmarshal([]byte(c.kubectl("get", "pods", "-A", "-l", "app.kubernetes.io/name=slipstream", "-o", "json")), &list))
	if len(list.Items) != len(c.Nodes) {
		c.Fatalf("%d pods on %d nodes", len(list.Items), len(c.Nodes))
	}
	return list.Items
}

// serves checks that a pod is answered at a ClusterIP and at NodePorts, and that Slipstream is content.
func (c *chartTest) serves() {
	c.Helper()
	targets := []string{c.kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")}
	for _, n := range c.Nodes {
		for _, a := range n.Addrs() {
			if a.Is4() {
				targets = append(targets, netip.AddrPortFrom(a, 30080).String())
			}
		}
	}
	for _, target := range targets {
		if said := c.kubectl("exec", "plain", "--", "curl", "-sS", "--max-time", "20", "http://"+target+"/hostname"); said != "web" {
			c.Errorf("%s answers %q", target, said)
		}
	}
	for _, pod := range c.pods() {
		exec := append([]string{"-n", pod.Namespace, "exec", pod.Name, "-c", "slipstream", "--"}, pod.Spec.Containers[0].Command[0])
		if said, err := c.Kubectl(c.ctx, append(exec, "status")...); err != nil {
			c.Errorf("status on %s: %v\n%s", pod.Spec.NodeName, err, said)
		}
		verify := append([]string{"verify"}, pod.Spec.Containers[0].Args...)
		for i, arg := range verify { // as the kubelet does
			verify[i] = strings.ReplaceAll(arg, "$(NODE_NAME)", pod.Spec.NodeName)
		}
		if said, err := c.Kubectl(c.ctx, append(exec, verify...)...); err != nil {
			c.Errorf("verify on %s: %v\n%s", pod.Spec.NodeName, err, said)
		}
		if s := pod.Status.ContainerStatuses[0]; s.RestartCount > 0 {
			c.Errorf("%s was restarted: %+v", pod.Name, s)
		}
	}
}

// pinned checks that Slipstream has pinned BPF objects on the first node.
func (c *chartTest) pinned(name string) {
	c.Helper()
	pins, err := bpffs.Folder(name, c.Nodes[0].FD())
	c.check(err)
	if _, err := os.Stat(pins); err != nil {
		c.Error(err)
	}
}

// scrape has a pod ask for metrics. Without a token, those by TLS are refused.
func (c *chartTest) scrape(scheme string) {
	c.Helper()
	url := scheme + "://" + net.JoinHostPort(c.Nodes[0].Addr(false).String(), "10249") + "/metrics"
	token := c.Plane.RESTConfig().BearerToken
	if said := c.kubectl("exec", "plain", "--", "curl", "-sSk", "--max-time", "20", "-H", "Authorization: Bearer "+token, url); !strings.Contains(said, "\nkubeproxy_") {
		c.Errorf("%s says %q", url, said)
	}
	said := c.kubectl("exec", "plain", "--", "curl", "-sSk", "--max-time", "20", "-o", "/dev/null", "-w", "%{http_code}", url)
	if refused := said == "401"; refused != (scheme == "https") {
		c.Errorf("%s without a token: %s", url, said)
	}
}

// kustomize applies the overlay of docs/install.md, with both components.
func (c *chartTest) kustomize() {
	dir := c.TempDir()
	c.check(os.CopyFS(filepath.Join(dir, "deploy", "kustomize"), os.DirFS(filepath.Join(deployDir, "kustomize"))))
	overlay := filepath.Join(dir, "overlay")
	c.check(os.Mkdir(overlay, 0o700))
	text := fromInstallDoc(c.T, "cat > overlay/kustomization.yaml <<END\n")
	files := map[string]string{"kustomization.yaml": strings.Replace(text, "- ../deploy/kustomize/monitoring\n", "- ../deploy/kustomize/monitoring\n- ../deploy/kustomize/authorization\n", 1)}
	for _, name := range []string{"config.conf", "kubeconfig.conf"} {
		text, err := os.ReadFile(filepath.Join(deployDir, "kustomize", "base", name))
		c.check(err)
		files[name] = string(text)
	}
	files["kubeconfig.conf"] = regexp.MustCompile(`https://\S+`).ReplaceAllString(files["kubeconfig.conf"], "https://"+c.Plane.Address())
	files["config.conf"] += `
clusterCIDR: 10.244.0.0/16,fd00:244::/32
metricsBindAddress: 0.0.0.0:10249
---
apiVersion: slipstream.config/v1beta1
kind: SlipstreamConfiguration
httpAuthorization: api
tlsCertFile: /run/secrets/slipstream-tls/tls.crt
tlsPrivateKeyFile: /run/secrets/slipstream-tls/tls.key
`
	for name, text := range files {
		c.check(os.WriteFile(filepath.Join(overlay, name), []byte(text), 0o600))
	}
	c.kubectl("apply", "--server-side", "-k", overlay)
	c.kubectl("-n", "kube-system", "rollout", "status", "daemonset/slipstream", within())
	c.serves()
	c.scrape("https")
	c.kubectl("delete", "--wait", "-k", overlay)
	c.cleanUp(false)
}

// fromInstallDoc is a file that docs/install.md shows.
func fromInstallDoc(t *testing.T, after string) string {
	t.Helper()
	doc, err := os.ReadFile("../../../docs/install.md")
	_, text, found := strings.Cut(string(doc), after)
	text, _, ended := strings.Cut(text, "    END\n")
	if err != nil || !found || !ended {
		t.Fatalf("docs/install.md (%v) does not have %q", err, after)
	}
	return strings.ReplaceAll("\n"+text, "\n    ", "\n")
}

// cleanUp runs the DaemonSet that cleans up, and checks that nothing is left.
func (c *chartTest) cleanUp(iptables bool) {
	c.Helper()
	c.until("pods have ended", func() bool {
		return c.kubectl("get", "pods", "-A", "-l", "app.kubernetes.io/name=slipstream", "-o", "name") == ""
	})
	text := strings.Replace(fromInstallDoc(c.T, "cat > cleanup.yaml <<END\n"), "registry.k8s.io/pause:3.10", imageutils.GetPauseImageName(), 1)
	if iptables {
		text = strings.Replace(strings.Replace(text, image, imageIPTables, 1), "add: [NET_ADMIN]", "add: [NET_ADMIN, NET_RAW]", 1)
	}
	file := filepath.Join(c.TempDir(), "cleanup.yaml")
	c.check(os.WriteFile(file, []byte(text), 0o600))
	c.kubectl("apply", "-f", file)
	c.kubectl("-n", "kube-system", "rollout", "status", "daemonset/slipstream-cleanup", within())
	logs := c.kubectl("-n", "kube-system", "logs", "-l", "app.kubernetes.io/name=slipstream-cleanup", "-c", "cleanup", "--prefix", "--tail=-1")
	c.kubectl("delete", "--wait", "-f", file)
	for _, n := range c.Nodes {
		rules, err := n.Exec(c.ctx, "sh", "-c", "nft list tables; iptables-legacy-save; iptables-nft-save")
		c.check(err)
		// This chain stays while route_localnet is set, as docs/services.md says.
		if strings.Contains(rules, "slipstream") || strings.Contains(strings.ReplaceAll(rules, "SLIP-LOCALNET", ""), "SLIP") {
			c.Errorf("%s: after the clean-up there is\n%s\n%s", n.Name(), rules, logs)
		}
		for _, name := range []string{"slipstream-fastpath", "slipstream-sockets"} {
			pins, err := bpffs.Folder(name, n.FD())
			c.check(err)
			if _, err := os.Stat(pins); !errors.Is(err, os.ErrNotExist) {
				c.Errorf("%s: after the clean-up: %s, %v\n%s", n.Name(), pins, err, logs)
			}
		}
	}
}
