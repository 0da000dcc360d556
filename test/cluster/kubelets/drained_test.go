// SPDX-License-Identifier: Apache-2.0

package kubelets

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/node/drain"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	imageutils "k8s.io/kubernetes/test/utils/image"
)

// socketDir is where a node's proxy has its podSocket. The proxy is outside of the node's mount namespace.
func (c *Cluster) socketDir(n *Node) string { return filepath.Join(c.dir, n.Name()+"-pods") }

// TestDrained restarts a Deployment, whose pods have the preStop that docs/operate.md shows, while a pod connects to it. No
// connection fails.
func TestDrained(t *testing.T) {
	if *proxyFlag == "" {
		t.Skip("make e2e runs this, as it takes long")
	}
	ctx := t.Context()
	c, _ := start(ctx, t, proxies.Slipstream, func(c *Cluster, n *Node, o *proxies.Options) {
		o.Flags = append(o.Flags, "--pod-socket", filepath.Join(c.socketDir(n), "drained.sock"))
	})
	kubectl := func(args ...string) string {
		t.Helper()
		out, err := c.Kubectl(ctx, args...)
		if err != nil {
			all, _ := c.Kubectl(ctx, "describe", "pods")
			t.Fatalf("kubectl %v: %v: %s\n%s", args, err, out, all)
		}
		return out
	}
	image := slipstreamImage(t, "docker.io/library/slipstream:test")
	for _, n := range c.Nodes {
		for _, args := range [][]string{
			{"ctr", "-n", "k8s.io", "images", "import", image},
			{"mkdir", "-p", "/run/slipstream-pods"},
			{"mount", "--bind", c.socketDir(n), "/run/slipstream-pods"},
		} {
			if out, err := n.Exec(ctx, args...); err != nil {
				t.Fatalf("%v: %v: %s", args, err, out)
			}
		}
	}
	if err := c.Apply(ctx, deployment(t)); err != nil {
		t.Fatal(err)
	}
	within := fmt.Sprint("--timeout=", *patience)
	kubectl("rollout", "status", "deployment/web", within)
	kubectl("run", "client", "--image="+imageutils.GetE2EImage(imageutils.Agnhost), "--restart=Never", "--command", "--", "bash", "-c",
		`while sleep 0.02; do curl -s -m 5 -o /dev/null http://$WEB_SERVICE_HOST/ && echo ok || echo failed: $?; done`)
	kubectl("wait", "--for=condition=Ready", "pod/client", within)
	said := func() (ok, failed int) {
		text := kubectl("logs", "client")
		return strings.Count(text, "ok\n"), strings.Count(text, "failed")
	}
	until := func(what string, is func() bool) {
		t.Helper()
		for deadline := time.Now().Add(*patience); !is(); time.Sleep(time.Second) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: it does not come to that", what)
			}
		}
	}
	until("connections", func() bool { ok, _ := said(); return ok > 100 })

	old := strings.Fields(kubectl("get", "pods", "-l", "app=web", "-o", "name"))
	var r drain.Result
	out := kubectl("exec", old[0], "-c", "web", "--", "/drained/slipstream", "drained", "-o", "json", "--max-wait", "3s")
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.Blind != "" || r.Quiet || r.Connections == 0 {
		t.Errorf("a pod to which connections come: %s, %v", out, err)
	}

	kubectl("rollout", "restart", "deployment/web")
	kubectl("rollout", "status", "deployment/web", within)
	for _, pod := range old {
		kubectl("wait", "--for=delete", pod, within)
	}
	before, _ := said()
	until("connections to new pods", func() bool { ok, _ := said(); return ok > before+100 })
	if ok, failed := said(); failed > 0 {
		t.Errorf("%d connections failed, %d did not:\n%s", failed, ok, kubectl("get", "events"))
	}
	if events := kubectl("get", "events", "--field-selector", "reason=FailedPreStopHook"); strings.Contains(events, "web") {
		t.Errorf("the preStop failed: %s", events)
	}
}

// deployment is a Service, and a Deployment whose pods are as docs/operate.md shows them.
func deployment(t *testing.T) string {
	text, err := os.ReadFile("../../../docs/operate.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text2, found := strings.Cut(string(text), "\n    spec:\n      initContainers:\n")
	pod, _, ended := strings.Cut(text2, "\n\n")
	if !found || !ended {
		t.Fatal("docs/operate.md has no pod with initContainers")
	}
	// The indentation is that of a code block in Markdown, which suits the template of a Deployment.
	pod = "      initContainers:\n" + pod
	pod = strings.Replace(pod, "slipstream:latest", "slipstream:test", 1) // the kubelet would ask a registry for the latest
	pod = strings.Replace(pod, "- name: web\n", "- name: web\n        image: "+imageutils.GetE2EImage(imageutils.Agnhost)+
		"\n        args: [netexec, --http-port=8080]\n        readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1}\n", 1)
	return `apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
` + pod + "\n"
}

// slipstreamImage returns the path of an archive with Slipstream's image, as deploy/ makes it, under a name.
func slipstreamImage(t *testing.T, name string, options ...string) string {
	t.Helper()
	const script = `dir=$1 name=$2 arch=$3
shift 3
../../../deploy/rootfs.sh "$@" "$dir/root"
tar -C "$dir/root" --owner=0 --group=0 -cf "$dir/layer.tar" .
cat >"$dir/config.json" <<END
{"architecture": "$arch", "os": "linux", "rootfs": {"type": "layers", "diff_ids": ["sha256:$(sha256sum "$dir/layer.tar" | cut -d' ' -f1)"]},
 "config": {"Env": ["$(sed -n 's/^ENV //p' ../../../deploy/Dockerfile)"], "Entrypoint": ["/usr/local/bin/slipstream"], "Cmd": ["run"]}}
END
echo "[{\"Config\": \"config.json\", \"RepoTags\": [\"$name\"], \"Layers\": [\"layer.tar\"]}]" >"$dir/manifest.json"
tar -C "$dir" -cf "$dir/image.tar" manifest.json config.json layer.tar`
	dir := t.TempDir()
	cmd := exec.Command("bash", append([]string{"-euc", script, "image", dir, name, runtime.GOARCH}, options...)...)
	cmd.Env = append(os.Environ(), "BINARY="+*program)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("image %s: %v: %s", name, err, out)
	}
	return filepath.Join(dir, "image.tar")
}
