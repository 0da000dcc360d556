// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// securityTable returns what the columns of the table in SECURITY.md have, as words in backticks for what it
// reads and needs, and as text for what it opens.
func securityTable(t *testing.T) (reads, needs map[string]bool, opens string) {
	t.Helper()
	text, err := os.ReadFile("../../../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	reads, needs = map[string]bool{}, map[string]bool{}
	words := regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 6 || !strings.HasPrefix(line, "|") {
			continue
		}
		for column, to := range map[int]map[string]bool{2: reads, 4: needs} {
			for _, word := range words.FindAllStringSubmatch(cells[column], -1) {
				to[word[1]] = true
			}
		}
		opens += cells[3] + "\n"
	}
	return reads, needs, opens
}

// securityOptions are values of the chart that change its objects.
var securityOptions = []string{
	"", "config: {mode: iptables}", "config: {mode: ipvs}\nprivileged: true", "slipstream: {fastPath: {engine: ebpf}}", "slipstream: {fastPath: {engine: auto}}",
	"slipstream: {socketLoadBalancing: tcp}", "slipstream: {podSocket: /run/slipstream-pods/drained.sock}", "metrics: {enabled: true}",
	"slipstream: {httpAuthorization: api, tlsCertFile: /tls/tls.crt, tlsPrivateKeyFile: /tls/tls.key}",
}

// TestSecurityTable compares SECURITY.md with what the chart and the base ask for: each resource, capability
// and port is in its table, and nothing else.
func TestSecurityTable(t *testing.T) {
	reads, needs, opens := securityTable(t)
	all := []objects{kustomize(t, baseDir)}
	for _, values := range securityOptions {
		all = append(all, helm(t, "apiServer: "+placeholder+"\n"+values))
	}
	// The component binds what the chart binds.
	authorized := kustomize(t, "testdata/authorization")
	all = append(all, authorized)
	for what, o := range map[string]objects{"kustomize": authorized, "Helm": all[len(all)-2]} {
		var b rbacv1.ClusterRoleBinding
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.get(t, "ClusterRoleBinding slipstream-auth-delegator").Object, &b); err != nil {
			t.Fatal(err)
		}
		if subject := (rbacv1.Subject{Kind: "ServiceAccount", Name: "slipstream", Namespace: "kube-system"}); b.RoleRef.Name != "system:auth-delegator" || !slices.Equal(b.Subjects, []rbacv1.Subject{subject}) {
			t.Errorf("%s binds %v to %v", what, b.RoleRef, b.Subjects)
		}
	}
	var d appsv1.DaemonSet
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(authorized.get(t, "DaemonSet slipstream").Object, &d); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(d.Spec.Template.Spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "tls" }) {
		t.Error("the component mounts no certificate")
	}
	resources, capabilities := map[string]bool{}, map[string]bool{}
	for i, o := range all {
		byDefault := i < 2 // the base, and the chart without values
		for _, u := range o {
			into := func(to any) {
				t.Helper()
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, to); err != nil {
					t.Fatal(err)
				}
			}
			switch u.GetKind() {
			case "ClusterRole":
				var role rbacv1.ClusterRole
				into(&role)
				for _, r := range role.Rules {
					want := []string{"list", "watch"}
					if slices.Contains(r.Resources, "events") {
						want = []string{"create", "patch"}
					}
					if !slices.Equal(r.Verbs, want) || len(r.NonResourceURLs) > 0 {
						t.Errorf("a rule of the role is %v; SECURITY.md knows only reading, and writing Events", r)
					}
					for _, resource := range r.Resources {
						resources[resource] = true
					}
				}
			case "ClusterRoleBinding":
				var b rbacv1.ClusterRoleBinding
				into(&b)
				if b.RoleRef.Name == "system:auth-delegator" {
					for _, r := range []string{b.RoleRef.Name, "tokenreviews", "subjectaccessreviews"} {
						resources[r] = true
					}
				}
			case "Role", "RoleBinding":
				t.Errorf("SECURITY.md has nothing about %s %s", u.GetKind(), u.GetName())
			case "DaemonSet":
				var d appsv1.DaemonSet
				into(&d)
				for _, c := range append(d.Spec.Template.Spec.Containers, d.Spec.Template.Spec.InitContainers...) {
					if given := c.SecurityContext.Capabilities; given != nil {
						for _, capability := range given.Add {
							capabilities[string(capability)] = true
						}
					}
					for _, p := range c.Ports {
						if !strings.Contains(opens, fmt.Sprintf("port %d ", p.ContainerPort)) {
							t.Errorf("SECURITY.md does not have port %d (%s)", p.ContainerPort, p.Name)
						}
					}
					sets := slices.Contains(c.Args, "--init-only") // SECURITY.md has this one
					if p := c.SecurityContext.Privileged; byDefault && (p == nil || *p != sets) {
						t.Errorf("container %s is privileged: %v", c.Name, *p)
					}
				}
			}
		}
	}
	for what, sets := range map[string][2]map[string]bool{"resources": {reads, resources}, "capabilities": {needs, capabilities}} {
		table, asked := slices.Sorted(maps.Keys(sets[0])), slices.Sorted(maps.Keys(sets[1]))
		if len(asked) == 0 || !slices.Equal(table, asked) {
			t.Errorf("%s: SECURITY.md has %v, deploy/ asks for %v", what, table, asked)
		}
	}
}

// TestRights renders the chart with options: it asks for pods, namespaces and networkpolicies only with those that
// need them.
func TestRights(t *testing.T) {
	const off = "fastPath: {offloadPacketThreshold: 0}"
	for values, want := range map[string]string{
		"": "[namespaces networkpolicies pods]",
		"slipstream: {fastPath: {offloadPacketThreshold: 5}}":                            "[namespaces networkpolicies pods]",
		"slipstream: {" + off + "}":                                                      "[]",
		"slipstream: {" + off + ", serviceAnnotations: none}":                            "[]",
		"slipstream: {" + off + ", serviceAnnotations: team=a}":                          "[namespaces]",
		"slipstream: {" + off + ", socketLoadBalancing: tcp, socketExcludePods: 'true'}": "[pods]",
	} {
		got := []string{}
		for _, u := range helm(t, "apiServer: "+placeholder+"\n"+values) {
			var role rbacv1.ClusterRole
			if u.GetKind() != "ClusterRole" || runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &role) != nil {
				continue
			}
			for _, r := range role.Rules {
				if strings.HasSuffix(role.Name, "-options") {
					got = append(got, r.Resources...)
				}
			}
		}
		if slices.Sort(got); fmt.Sprint(got) != want {
			t.Errorf("%s: %v, want %s", values, got, want)
		}
	}
}
