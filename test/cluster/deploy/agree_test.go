// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// TestAgree checks that the kustomize base and the Helm chart render the same objects, with and
// without monitoring.
func TestAgree(t *testing.T) {
	for _, c := range []struct{ name, dir, values string }{
		{"base", baseDir, "apiServer: " + placeholder},
		{"monitoring", "testdata/monitoring", "apiServer: " + placeholder + "\nmetrics: {serviceMonitor: {enabled: true}}"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := withoutHash(t, kustomize(t, c.dir)), helm(t, c.values)
			if got, want := slices.Sorted(maps.Keys(b)), slices.Sorted(maps.Keys(a)); !slices.Equal(got, want) {
				t.Fatalf("the chart has %v, the base %v", got, want)
			}
			for key := range a {
				normalize(t, a[key])
				normalize(t, b[key])
				if !reflect.DeepEqual(a[key].Object, b[key].Object) {
					t.Errorf("%s is not the same\n--- kustomize:\n%s--- Helm:\n%s", key, asYAML(t, a[key]), asYAML(t, b[key]))
				}
			}
		})
	}
}

// withoutHash takes the hash from the name of the ConfigMap.
func withoutHash(t *testing.T, all objects) objects {
	t.Helper()
	hashed := regexp.MustCompile(`\bslipstream-[a-z0-9]{10}\b`)
	renamed := objects{}
	for _, u := range all {
		renamed.add(t, []byte(hashed.ReplaceAllString(asYAML(t, u), "slipstream")))
	}
	return renamed
}

// normalize parses text within a ConfigMap, so that comments do not matter, and removes the
// checksum with which the chart rolls out a new one.
func normalize(t *testing.T, u *unstructured.Unstructured) {
	t.Helper()
	annotations := []string{"spec", "template", "metadata", "annotations"}
	if all, ok, _ := unstructured.NestedMap(u.Object, annotations...); ok {
		if _, ok := all["checksum/config"]; !ok || len(all) > 1 {
			t.Errorf("annotations are %v", all)
		}
		unstructured.RemoveNestedField(u.Object, annotations...)
	}
	if u.GetKind() != "ConfigMap" {
		return
	}
	data, _, err := unstructured.NestedStringMap(u.Object, "data")
	if err != nil {
		t.Fatal(err)
	}
	parsed := map[string]any{}
	for name, text := range data {
		parsed[name] = documents(t, text)
	}
	u.Object["data"] = parsed
}

func asYAML(t *testing.T, u *unstructured.Unstructured) string {
	t.Helper()
	text, err := yaml.Marshal(u.Object)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestValues checks that the chart's values have their effect, that the API server's
// address is required, and for IPVS mode the privilege.
func TestValues(t *testing.T) {
	if _, err := helmFiles(t, ""); err == nil || !strings.Contains(err.Error(), "apiServer: the URL of the API server is required") {
		t.Errorf("without apiServer: %v", err)
	}
	const ipvs = "apiServer: https://192.0.2.1:6443\nconfig: {mode: ipvs}\n"
	if _, err := helmFiles(t, ipvs); err == nil || !strings.Contains(err.Error(), "config.mode: ipvs needs privileged: true") {
		t.Errorf("IPVS mode without privileges: %v", err)
	}
	if _, err := helmFiles(t, ipvs+"privileged: true\n"); err != nil {
		t.Errorf("IPVS mode with privileges: %v", err)
	}
	for _, wrong := range []string{"image: {tags: v2}", "updateStrateggy: {}", "config: {mode: nftable}", "privileged: yes please"} {
		if _, err := helmFiles(t, "apiServer: https://192.0.2.1:6443\n"+wrong); err == nil || !strings.Contains(err.Error(), "schema") {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	o := helm(t, `
apiServer: https://192.0.2.1:6443
image: {repository: registry.example/slipstream, tag: v1}
imagePullSecrets: [{name: pull}]
config: {clusterCIDR: 10.244.0.0/16, conntrack: {min: 131072}}
slipstream: {fastPath: {offloadPacketThreshold: 7}}
extraArgs: [-v=2]
privileged: true
securityContext: {seLinuxOptions: {type: spc_t}}
podAnnotations: {a: b}
podLabels: {c: d}
tlsSecret: certificate
resources: {limits: {memory: 1Gi}}
`)
	if o["Service slipstream-metrics"] != nil || o["ServiceMonitor slipstream"] != nil {
		t.Error("monitoring is there, unasked")
	}
	text := asYAML(t, o.get(t, "DaemonSet slipstream"))
	for _, values := range []string{"privileged: true", "initContainer: false"} {
		if other := helm(t, "apiServer: "+placeholder+"\n"+values); strings.Contains(asYAML(t, other.get(t, "DaemonSet slipstream")), "initContainers") {
			t.Errorf("%s: there is an init container", values)
		}
	}
	for _, want := range []string{"image: registry.example/slipstream:v1", "name: pull", "- -v=2", "privileged: true", "a: b", "c: d", "memory: 1Gi", "type: spc_t", "secretName: certificate"} {
		if !strings.Contains(text, want) {
			t.Errorf("the DaemonSet lacks %q:\n%s", want, text)
		}
	}
	data, _, err := unstructured.NestedStringMap(o.get(t, "ConfigMap slipstream").Object, "data")
	if err != nil {
		t.Fatal(err)
	}
	config := documents(t, data["config.conf"])
	proxy := config["KubeProxyConfiguration"].(map[string]any)
	if proxy["clusterCIDR"] != "10.244.0.0/16" || proxy["mode"] != "nftables" ||
		!reflect.DeepEqual(proxy["conntrack"], map[string]any{"min": 131072.}) {
		t.Errorf("KubeProxyConfiguration is %v", proxy)
	}
	own := config["SlipstreamConfiguration"].(map[string]any)
	if own["apiVersion"] != "slipstream.config/v1beta1" || own["tlsCertFile"] != "/run/secrets/slipstream-tls/tls.crt" || own["tlsPrivateKeyFile"] != "/run/secrets/slipstream-tls/tls.key" || !reflect.DeepEqual(own["fastPath"], map[string]any{"offloadPacketThreshold": 7.}) {
		t.Errorf("SlipstreamConfiguration is %v", own)
	}
	if !strings.Contains(data["kubeconfig.conf"], "server: https://192.0.2.1:6443") {
		t.Errorf("kubeconfig is\n%s", data["kubeconfig.conf"])
	}
}

// TestEBPFValues checks that the engine ebpf of the fast path has what docs/fastpath.md says it needs,
// and that the flowtable has not. The BPF programs of the engine are removed by their pins when another is chosen.
func TestEBPFValues(t *testing.T) {
	for engine, want := range map[string]bool{"flowtable": false, "ebpf": true, "auto": true} {
		text := asYAML(t, helm(t, "apiServer: "+placeholder+"\nslipstream: {fastPath: {engine: "+engine+"}}").get(t, "DaemonSet slipstream"))
		for _, part := range []string{"- BPF", "- PERFMON", "- SYS_ADMIN"} {
			if strings.Contains(text, part) != want {
				t.Errorf("engine %s: %q is there: %t", engine, part, !want)
			}
		}
		hasPins(t, text)
	}
}

// TestSocketsValues checks that socketLoadBalancing has what docs/sockets.md says it needs, and that
// its absence has not.
func TestSocketsValues(t *testing.T) {
	for value, want := range map[string]bool{"{}": false, `{socketLoadBalancing: "off"}`: false, "{socketLoadBalancing: tcp}": true} {
		text := asYAML(t, helm(t, "apiServer: "+placeholder+"\nslipstream: "+value).get(t, "DaemonSet slipstream"))
		for _, part := range []string{"- BPF", "- SYS_ADMIN", "mountPath: /host/sys/fs/cgroup", "path: /sys/fs/cgroup", "mountPropagation: HostToContainer", "path: /run/netns"} {
			if strings.Contains(text, part) != want {
				t.Errorf("%s: %q is there: %t", value, part, !want)
			}
		}
		hasPins(t, text)
	}
}

// TestPodSocketValues checks that podSocket is in a directory of the node.
func TestPodSocketValues(t *testing.T) {
	for value, want := range map[string]bool{"{}": false, "{podSocket: /run/slipstream-pods/drained.sock}": true} {
		text := asYAML(t, helm(t, "apiServer: "+placeholder+"\nslipstream: "+value).get(t, "DaemonSet slipstream"))
		for _, part := range []string{"mountPath: /run/slipstream-pods\n", "path: /run/slipstream-pods\n"} {
			if strings.Contains(text, part) != want {
				t.Errorf("%s: %q is there: %t", value, part, !want)
			}
		}
	}
}

func hasPins(t *testing.T, daemonSet string) {
	t.Helper()
	for _, part := range []string{"mountPath: /host/sys/fs/bpf", " path: /sys/fs/bpf"} {
		if !strings.Contains(daemonSet, part) {
			t.Errorf("there is no %q", part)
		}
	}
}
