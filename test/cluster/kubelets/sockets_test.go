// SPDX-License-Identifier: Apache-2.0

package kubelets

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/bpffs"
	"github.com/slipstream-proxy/slipstream/internal/socket"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"golang.org/x/sys/unix"
	imageutils "k8s.io/kubernetes/test/utils/image"
)

// socketPods are a server on one node, and three clients on the other: an ordinary one, one that is excluded, and one in the
// node's network namespace.
const socketPods = `{"apiVersion": "v1", "kind": "List", "items": [
 {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"},
  "spec": {"type": "NodePort", "selector": {"app": "web"}, "ports": [{"port": 80, "nodePort": 30080, "targetPort": 8080}]}},
 {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default", "labels": {"app": "web"}},
  "spec": {"nodeName": "n2", "containers": [{"name": "c", "image": "IMAGE", "args": ["netexec", "--http-port=8080"]}]}},
 {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain", "namespace": "default"},
  "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "IMAGE", "args": ["pause"]}]}},
 {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "meshed", "namespace": "default", "labels": {"mesh": "on"}},
  "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "IMAGE", "args": ["pause"]}]}},
 {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "host", "namespace": "default"},
  "spec": {"nodeName": "n1", "hostNetwork": true, "containers": [{"name": "c", "image": "IMAGE", "args": ["pause"]}]}}
]}`

// watchPods lets proxies watch pods, which system:node-proxier does not.
const watchPods = `{"apiVersion": "v1", "kind": "List", "items": [
 {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "pods"},
  "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]},
 {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "pods"},
  "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "pods"},
  "subjects": [{"kind": "ServiceAccount", "namespace": "kube-system", "name": "kube-proxy"}]}
]}`

// TestSockets has pods that a kubelet and containerd run connect to a ClusterIP while Slipstream balances at sockets: the
// node's conntrack knows the endpoint only. Connections of an excluded pod are translated. A start without the option, after
// Slipstream was killed, leaves nothing.
func TestSockets(t *testing.T) {
	if !strings.Contains(*proxyFlag, "slipstream") {
		t.Skip("make e2e runs this, as it takes long")
	}
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, unix.SIGTERM)
	defer stop()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(bpffs.Mount()) // as systemd does
	var namespaces []int
	t.Cleanup(func() { // when the proxies have ended
		for _, fd := range namespaces {
			if err := errors.Join(socket.Remove(fd), unix.Close(fd)); err != nil {
				t.Error(err)
			}
		}
	})
	var used proxies.Options
	c, running := start(ctx, t, proxies.Slipstream, func(c *Cluster, n *Node, o *proxies.Options) {
		check(c.Apply(ctx, watchPods))
		// Slipstream sees the node's /run, as in the chart's pod.
		inside := filepath.Join(o.Dir, "slipstream-"+n.Name())
		script := fmt.Sprintf("#!/bin/sh\nexec nsenter --target %d --mount --pid -- %q \"$@\"\n", n.kubelet.PID(), o.Binary)
		check(os.WriteFile(inside, []byte(script), 0o700))
		o.Binary, o.Flags = inside, []string{"--socket-load-balancing=tcp", `--socket-exclude-pods="mesh" in pod.labels`}
		if n.Name() == "n1" {
			used = *o
		}
		fd, err := unix.Dup(n.FD())
		check(err)
		namespaces = append(namespaces, fd)
	})
	n1 := c.Nodes[0]
	check(c.Apply(ctx, strings.ReplaceAll(socketPods, "IMAGE", imageutils.GetE2EImage(imageutils.Agnhost))))
	within := fmt.Sprint("--timeout=", *patience)
	_, err := c.Kubectl(ctx, "wait", "--for=condition=Ready", "pod/web", "pod/plain", "pod/meshed", "pod/host", within)
	check(err)
	translated := func(pod string) bool { t.Helper(); return c.translated(ctx, t, pod) }
	become := func(pod string, want bool) {
		t.Helper()
		for end := time.Now().Add(*patience); translated(pod) != want; time.Sleep(100 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("connections of %s: translated %t, want %t\n%s", pod, !want, want, running[0].Log())
			}
		}
	}
	become("plain", false) // once the API server has reported its address
	become("host", false)
	for range 5 {
		if !translated("meshed") {
			t.Error("a connection of a pod that is excluded is not translated")
		}
	}
	// A label counts from the next connection on.
	_, err = c.Kubectl(ctx, "label", "pod", "meshed", "mesh-")
	check(err)
	_, err = c.Kubectl(ctx, "label", "pod", "plain", "mesh=on")
	check(err)
	become("meshed", false)
	become("plain", true)

	pins, err := bpffs.Folder("slipstream-sockets", n1.FD())
	check(err)
	if _, err := os.Stat(pins); err != nil {
		t.Error(err)
	}
	check(running[0].Close()) // by SIGKILL
	used.Flags = []string{"--socket-load-balancing=off"}
	running[0], err = proxies.Start(ctx, proxies.Slipstream, n1.Node.Node, used)
	check(err)
	become("meshed", true)
	become("host", true)
	if _, err := os.Stat(pins); !os.IsNotExist(err) {
		t.Errorf("%s after a start without the option: %v", pins, err)
	}
}

// translated has one of socketPods on the first node connect to the Service, and reports whether conntrack translates that.
func (c *Cluster) translated(ctx context.Context, t *testing.T, pod string) bool {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	clusterIP, err := c.Kubectl(ctx, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	check(err)
	n1 := c.Nodes[0]
	_, _ = n1.Run(ctx, "conntrack", "-D", "-p", "tcp", "--orig-dst", clusterIP) // fails if there is none
	said, err := c.Kubectl(ctx, "exec", pod, "--", "curl", "-sS", "--max-time", "20", "--retry", "20", "--retry-all-errors", "http://"+clusterIP+"/hostname")
	check(err)
	if said != "web" {
		t.Fatalf("%s was answered by %q", pod, said)
	}
	list, err := n1.Run(ctx, "conntrack", "-L", "-p", "tcp", "--orig-dst", clusterIP)
	check(err)
	return len(list) > 0
}
