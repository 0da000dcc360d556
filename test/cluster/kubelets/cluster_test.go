// SPDX-License-Identifier: Apache-2.0

package kubelets

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/slipstream-proxy/slipstream/internal/plain"
	"github.com/slipstream-proxy/slipstream/test/cluster/oracle/upstream"
	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	imageutils "k8s.io/kubernetes/test/utils/image"
)

//go:embed images.sh node.sh coredns.yaml
var files embed.FS

// Options are how a cluster is set up.
type Options struct {
	Dir   string       // an existing directory, in which everything is, logs too
	Nodes int          // how many, named n1, n2, ...
	Log   upstream.Log // called about what takes long, if not nil
}

// Cluster is a running cluster.
type Cluster struct {
	*site.Site
	Nodes      []*Node
	Kubeconfig string            // path; its user may do all
	Programs   map[string]string // paths of upstream's programs, by name

	dir string
}

// Node is a node of a cluster. Its kubelet is reached on its address, port 10250, by everyone.
type Node struct {
	*site.Node
	kubelet *lab.Program
	cgroups []string // paths
}

// Start starts a cluster and returns when its nodes are ready. CoreDNS runs as soon as a proxy does, as it
// needs the API server's Service. The caller closes the Cluster.
func Start(ctx context.Context, o Options) (_ *Cluster, err error) {
	c := &Cluster{Kubeconfig: filepath.Join(o.Dir, "kubeconfig"), Programs: map[string]string{}, dir: o.Dir}
	for _, name := range []string{"kubelet", "kube-controller-manager", "kube-scheduler", "kubectl", "agnhost", "regression-issue-74839", "coredns"} {
		release := upstream.Nodes
		if name == "coredns" {
			release = upstream.CoreDNS
		}
		if c.Programs[name], err = release.Binary(ctx, name, o.Log); err != nil {
			return nil, err
		}
	}
	if err := os.CopyFS(o.Dir, files); err != nil {
		return nil, err
	}
	images, coredns, err := c.images(ctx, o.Log)
	if err != nil {
		return nil, err
	}
	c.Site, err = site.Start(ctx, upstream.ControlPlaneOptions{
		Dir: o.Dir, ServiceCIDRs: site.ServiceCIDRs, Controllers: true, Log: o.Log,
		// Names of nodes are in no DNS.
		APIFlags: []string{"--endpoint-reconciler-type=lease", "--allow-privileged", "--kubelet-preferred-address-types=InternalIP"},
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if err := c.startControllers(); err != nil {
		return nil, err
	}
	for i := range o.Nodes {
		if err := c.startNode(ctx, i+1, images); err != nil {
			return nil, err
		}
	}
	for _, n := range c.Nodes {
		if err := n.kubelet.Await(ctx, func(ctx context.Context) error { return c.ready(ctx, n) }); err != nil {
			return nil, err
		}
	}
	manifest, err := files.ReadFile("coredns.yaml")
	if err != nil {
		return nil, err
	}
	return c, c.Apply(ctx, strings.Replace(string(manifest), "COREDNS", coredns, 1))
}

// startControllers starts kube-controller-manager and kube-scheduler beside the API server.
func (c *Cluster) startControllers() error {
	kubeconfig := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "default",
		"clusters": [{"name": "default", "cluster": {"server": "https://%s", "certificate-authority": %q}}],
		"users":    [{"name": "default", "user": {"token": %q}}],
		"contexts": [{"name": "default", "context": {"cluster": "default", "user": "default"}}]}`,
		c.Plane.Address(), c.Plane.CertificateAuthority(), c.Plane.RESTConfig().BearerToken)
	if err := os.WriteFile(c.Kubeconfig, []byte(kubeconfig), 0o600); err != nil {
		return err
	}
	flags := []string{"--kubeconfig=" + c.Kubeconfig, "--leader-elect=false", "--secure-port=0", "--kube-api-qps=200", "--kube-api-burst=400"}
	_, err1 := c.Plane.Host.StartProgram(c.dir, "kube-scheduler", c.Programs["kube-scheduler"], flags...)
	_, err2 := c.Plane.Host.StartProgram(c.dir, "kube-controller-manager", c.Programs["kube-controller-manager"], append(flags,
		"--service-account-private-key-file="+c.Plane.ServiceAccountKey(), "--root-ca-file="+c.Plane.CertificateAuthority(),
		"--cluster-cidr="+plain.List(site.ClusterCIDRs, ","), "--service-cluster-ip-range="+plain.List(site.ServiceCIDRs, ","),
		"--node-monitor-grace-period=3m")...) // the machine may be slow
	// Some specs have the API server connect to pods.
	return errors.Join(err1, err2, c.Plane.Host.RouteToPods())
}

// startNode makes a node, and starts its containerd and its kubelet.
func (c *Cluster) startNode(ctx context.Context, number int, images string) error {
	machine, err := c.Machine(number)
	if err != nil {
		return err
	}
	if err := machine.Register(ctx); err != nil { // with its pod CIDRs
		return err
	}
	n := &Node{Node: machine}
	c.Nodes = append(c.Nodes, n)
	name := n.Name()
	dir := filepath.Join(c.dir, name)
	cgroup := fmt.Sprintf("slipstream-%d-%s", os.Getpid(), name)
	if n.cgroups, err = makeCgroups(cgroup); err != nil {
		return err
	}
	var ranges, addresses []string
	for i, cidr := range n.PodCIDRs() {
		ranges = append(ranges, fmt.Sprintf(`[{"subnet": %q}]`, cidr))
		addresses = append(addresses, n.Addrs()[i].String())
	}
	cni := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [
		{"type": "ptp", "ipam": {"type": "host-local", "ranges": [%s], "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}},
		{"type": "portmap", "capabilities": {"portMappings": true}}]}`, strings.Join(ranges, ", "))
	config, err := json.Marshal(map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"authentication":           map[string]any{"anonymous": map[string]any{"enabled": true}, "webhook": map[string]any{"enabled": false}},
		"authorization":            map[string]any{"mode": "AlwaysAllow"},
		"containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
		"cgroupDriver":             "cgroupfs", "cgroupRoot": "/" + cgroup, "failCgroupV1": false, "failSwapOn": false,
		"clusterDNS": []string{"10.96.0.10"}, "clusterDomain": "cluster.local", "resolvConf": "",
		// The disk is the machine's: how full it is, is none of the kubelet's business.
		"evictionHard":                map[string]string{"nodefs.available": "0%", "imagefs.available": "0%"},
		"imageGCHighThresholdPercent": 100,
	})
	if err != nil {
		return err
	}
	if err := errors.Join(
		os.Mkdir(dir, 0o700),
		os.WriteFile(filepath.Join(dir, "cni.conflist"), []byte(cni), 0o600),
		os.WriteFile(filepath.Join(dir, "kubelet.yaml"), config, 0o600),
	); err != nil {
		return err
	}
	cmd := exec.Command("bash", filepath.Join(c.dir, "node.sh"), dir, images, imageutils.GetPauseImageName(), c.Programs["kubelet"],
		"--config="+filepath.Join(dir, "kubelet.yaml"), "--kubeconfig="+c.Kubeconfig,
		"--hostname-override="+name, "--node-ip="+strings.Join(addresses, ","), "--node-labels=topology.kubernetes.io/zone="+name)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	n.kubelet, err = n.StartCommand(dir, "kubelet", cmd)
	return err
}

// ready says whether the kubelet says that the node is.
func (c *Cluster) ready(ctx context.Context, n *Node) error {
	object, err := c.Plane.Client.CoreV1().Nodes().Get(ctx, n.Name(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range object.Status.Conditions {
		// Register has set one without a reason.
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue && condition.Reason != "" {
			return nil
		}
	}
	return fmt.Errorf("node %s is not ready: %v", n.Name(), object.Status.Conditions)
}

// Kubectl runs kubectl and returns its standard output.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	out, err := c.Plane.Host.Run(ctx, c.Programs["kubectl"], append([]string{"--kubeconfig", c.Kubeconfig}, args...)...)
	return string(out), err
}

// Apply is "kubectl apply" of a manifest.
func (c *Cluster) Apply(ctx context.Context, manifest string) error {
	path := filepath.Join(c.dir, "apply.yaml")
	if err := os.WriteFile(path, []byte(manifest), 0o600); err != nil {
		return err
	}
	_, err := c.Kubectl(ctx, "apply", "-f", path)
	return err
}

// Exec runs a program beside the node's kubelet, in its namespaces, and returns its standard output.
func (n *Node) Exec(ctx context.Context, args ...string) (string, error) {
	enter := []string{"--target", fmt.Sprint(n.kubelet.PID()), "--mount", "--pid", "--net", "--"}
	out, err := n.Run(ctx, "nsenter", append(enter, args...)...)
	return string(out), err
}

// Close ends everything: all processes of the nodes, containers too, and then what they leave.
func (c *Cluster) Close() error {
	var errs []error
	for _, n := range c.Nodes {
		if n.kubelet != nil {
			errs = append(errs, n.kubelet.Close())
		}
		errs = append(errs, removeCgroups(n.cgroups))
	}
	return errors.Join(append(errs, c.Site.Close())...)
}
