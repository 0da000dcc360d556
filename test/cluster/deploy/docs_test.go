// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/strvals"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// installDoc is docs/install.md.
func installDoc(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestDocsHelm renders the chart with the settings of each "helm install" in the
// documentation, which have to be known to the chart.
func TestDocsHelm(t *testing.T) {
	operate, err := os.ReadFile("../../../docs/operate.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := regexp.MustCompile(`(?m)^    helm install (?:.*\\\n)*.*$`).FindAllString(installDoc(t)+string(operate), -1)
	if len(commands) < 4 {
		t.Fatalf("%d commands found", len(commands))
	}
	known := map[string]any{}
	defaults, err := os.ReadFile(filepath.Join(chartDir, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(defaults, &known); err != nil {
		t.Fatal(err)
	}
	for _, command := range commands {
		values := map[string]any{}
		for _, set := range regexp.MustCompile(`--set (\S+)`).FindAllStringSubmatch(command, -1) {
			if err := strvals.ParseInto(set[1], values); err != nil {
				t.Fatal(err)
			}
			path := strings.Split(strings.Split(set[1], "=")[0], ".")
			if path[0] != "config" && path[0] != "nodeSelector" {
				if _, ok, _ := unstructured.NestedFieldNoCopy(known, path...); !ok {
					t.Errorf("the chart has no value %s", path)
				}
			}
		}
		text, err := yaml.Marshal(values)
		if err != nil {
			t.Fatal(err)
		}
		all := asYAML(t, helm(t, string(text)).get(t, "DaemonSet slipstream"))
		if !strings.Contains(all, "image: registry.example/slipstream:v1") {
			t.Errorf("the image is another one:\n%s", all)
		}
	}
}

// TestDocsKustomize renders the overlay in the documentation.
func TestDocsKustomize(t *testing.T) {
	_, text, _ := strings.Cut(installDoc(t), "cat > overlay/kustomization.yaml <<END\n")
	text, _, found := strings.Cut(text, "    END\n")
	if !found {
		t.Fatal("there is none")
	}
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "deploy", "kustomize"), os.DirFS("../../../deploy/kustomize")); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "overlay", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "overlay"), 0o755); err != nil {
		t.Fatal(err)
	}
	write("kustomization.yaml", regexp.MustCompile(`(?m)^    `).ReplaceAllString(text, ""))
	write("config.conf", "mine\n")
	write("kubeconfig.conf", "mine, too\n")
	all := withoutHash(t, kustomize(t, filepath.Join(dir, "overlay")))
	all.get(t, "ServiceMonitor slipstream")
	if set := asYAML(t, all.get(t, "DaemonSet slipstream")); !strings.Contains(set, "image: registry.example/slipstream:v1") {
		t.Errorf("the image is another one:\n%s", set)
	}
	data, _, _ := unstructured.NestedStringMap(all.get(t, "ConfigMap slipstream").Object, "data")
	if data["config.conf"] != "mine\n" || data["kubeconfig.conf"] != "mine, too\n" {
		t.Errorf("the overlay's files have not come through: %q", data)
	}
}

// TestDocsCleanup applies the DaemonSet of the documentation and runs its init container, which refuses while
// Slipstream runs, and otherwise leaves nothing of it.
func TestDocsCleanup(t *testing.T) {
	_, text, _ := strings.Cut(installDoc(t), "cat > cleanup.yaml <<END\n")
	text, _, found := strings.Cut(text, "    END\n")
	if !found {
		t.Fatal("there is none")
	}
	c := newCluster(t)
	all := objects{}
	all.add(t, []byte(text))
	c.applyAll(all)
	u := all.get(t, "DaemonSet slipstream-cleanup")
	spec := u.Object["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	spec["containers"] = spec["initContainers"]
	own := *c
	own.ControlPlane = nil // the pod asks no API server
	p := newPod(&own, all, "slipstream-cleanup")
	tables := []string{"ip slipstream", "inet slipstream-fastpath", "ip6 slipstream-limits"}
	for _, table := range tables {
		c.command("nft add table " + table)
	}
	var proxy net.Listener // its socket
	c.check(c.node.Do(func() (err error) { proxy, err = net.Listen("unix", "@slipstream"); return err }))
	p.start()
	if err := p.Wait(); err == nil || !strings.Contains(p.output(), "is running here") {
		t.Errorf("while Slipstream runs: %v\n%s", err, p.output())
	}
	c.check(proxy.Close())
	p.start()
	c.check(p.Wait())
	for _, table := range tables {
		if !strings.Contains(p.output(), "Removed: nftables table "+table) {
			t.Errorf("it does not say that it has removed %s:\n%s", table, p.output())
		}
	}
	if rest := c.command("nft list ruleset"); rest != "" {
		t.Errorf("it has left\n%s", rest)
	}
}
