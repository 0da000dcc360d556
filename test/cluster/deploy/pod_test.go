// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// imageRoots are directories of images, to be removed.
var imageRoots []string

// image makes an image's root file system, once.
func image(args ...string) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		dir, err := os.MkdirTemp("", "slipstream-rootfs-")
		if err != nil {
			return "", err
		}
		imageRoots = append(imageRoots, dir)
		out, err := exec.Command("../../../deploy/rootfs.sh", append(args, dir)...).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("rootfs.sh: %w: %s", err, out)
		}
		return dir, nil
	})
}

// rootFS is the root file system of the image, and rootFSIPTables that of the one for
// iptables mode.
var (
	rootFS         = image()
	rootFSIPTables = image("--iptables")
)

// imagePath is the PATH of the image.
func imagePath() (string, error) {
	text, err := os.ReadFile("../../../deploy/Dockerfile")
	if err != nil {
		return "", err
	}
	path := regexp.MustCompile(`(?m)^ENV (PATH=.*)$`).FindSubmatch(text)
	if path == nil {
		return "", errors.New("Dockerfile: no PATH")
	}
	return string(path[1]), nil
}

// pod is the DaemonSet's pod on the node.
type pod struct {
	*cluster
	spec corev1.PodSpec
	run  container

	mu  sync.Mutex
	log bytes.Buffer
	*lab.Process
}

func (p *pod) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *pod) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// numbers are those of the capabilities that the manifests name.
var numbers = map[corev1.Capability]int{
	"NET_ADMIN": unix.CAP_NET_ADMIN, "NET_RAW": unix.CAP_NET_RAW,
	"BPF": unix.CAP_BPF, "PERFMON": unix.CAP_PERFMON, "SYS_ADMIN": unix.CAP_SYS_ADMIN,
}

// newPod prepares a DaemonSet's pod, with all that its volumes say.
func newPod(c *cluster, all objects, daemonSet string) *pod {
	c.Helper()
	return newPodOf(c, all, daemonSet, rootFS)
}

// newPodOf is newPod with another image.
func newPodOf(c *cluster, all objects, daemonSet string, rootFS func() (string, error)) *pod {
	c.Helper()
	var set appsv1.DaemonSet
	c.check(runtime.DefaultUnstructuredConverter.FromUnstructured(all.get(c, "DaemonSet "+daemonSet).Object, &set))
	p := &pod{cluster: c, spec: set.Spec.Template.Spec}
	main := p.main()
	image, err := rootFS()
	c.check(err)
	p.run = container{
		Root:     filepath.Join(c.dir, "root"),
		ReadOnly: ptr.Deref(main.SecurityContext.ReadOnlyRootFilesystem, false),
		Mounts:   map[string]hostMount{},
	}
	if c.ControlPlane != nil {
		p.run.Mounts["/var/run/secrets/kubernetes.io/serviceaccount"] = hostMount{Source: p.secrets(), ReadOnly: true}
	}
	c.check(os.CopyFS(p.run.Root, os.DirFS(image)))
	path, err := imagePath()
	c.check(err)
	p.run.Capabilities = p.capabilities(main)
	if p.run.Privileged = ptr.Deref(main.SecurityContext.Privileged, false); !p.run.Privileged {
		p.run.AppArmor, err = appArmor()
		c.check(err)
	}
	for _, m := range main.VolumeMounts {
		p.run.Mounts[m.MountPath] = hostMount{Source: p.volume(all, m.Name), ReadOnly: m.ReadOnly}
	}
	p.run.Command = p.command(main)
	host, port := apiServer.Addr().String(), fmt.Sprint(apiServer.Port())
	p.run.Env = []string{path, "NODE_NAME=" + c.node.Name(), "KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}
	c.check(p.run.prepare())
	return p
}

// command is a container's.
func (p *pod) command(c *corev1.Container) (words []string) {
	env := strings.NewReplacer("$(NODE_NAME)", p.node.Name())
	for _, word := range slices.Concat(c.Command, c.Args) {
		words = append(words, env.Replace(word))
	}
	return words
}

// initialize runs the init container, which has the image of the main container and some of its mounts.
func (p *pod) initialize() {
	p.Helper()
	run, init := p.run, &p.spec.InitContainers[0]
	run.Command, run.Capabilities, run.Privileged = p.command(init), p.capabilities(init), *init.SecurityContext.Privileged
	if run.Privileged {
		run.AppArmor = ""
	}
	run.Mounts = maps.Clone(run.Mounts)
	maps.DeleteFunc(run.Mounts, func(path string, _ hostMount) bool {
		return !slices.ContainsFunc(init.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == path })
	})
	cmd, err := run.cmd()
	p.check(err)
	cmd.Stdout, cmd.Stderr = p, p
	process, err := p.node.Start(cmd)
	p.check(err)
	if err := process.Wait(); err != nil {
		p.Fatalf("init container: %v\n%s", err, p.output())
	}
}

// capabilities are all of a privileged container, otherwise those that are asked for.
func (p *pod) capabilities(c *corev1.Container) (all []int) {
	security := c.SecurityContext
	if ptr.Deref(security.Privileged, false) {
		for c := range unix.CAP_LAST_CAP + 1 {
			all = append(all, c)
		}
		return all
	}
	for _, name := range security.Capabilities.Add {
		number, ok := numbers[name]
		if !ok {
			p.Fatalf("capability %s: not known here", name)
		}
		all = append(all, number)
	}
	return all
}

func (p *pod) main() *corev1.Container { return &p.spec.Containers[0] }

// secrets is the directory with the ServiceAccount's token.
func (p *pod) secrets() string {
	dir := filepath.Join(p.dir, "secrets")
	p.check(os.Mkdir(dir, 0o755))
	token, err := p.Client.CoreV1().ServiceAccounts("kube-system").CreateToken(p.Context(), p.spec.ServiceAccountName,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	p.check(err)
	p.check(os.WriteFile(filepath.Join(dir, "token"), []byte(token.Status.Token), 0o644))
	ca, err := os.ReadFile(filepath.Join(p.dir, "control-plane", "certificates", "apiserver.crt")) // it has signed itself
	p.check(err)
	p.check(os.WriteFile(filepath.Join(dir, "ca.crt"), ca, 0o644))
	return dir
}

// volume is a volume's file or directory.
func (p *pod) volume(all objects, name string) string {
	path := filepath.Join(p.dir, "volume-"+name)
	for _, v := range p.spec.Volumes {
		switch {
		case v.Name != name:
		case v.ConfigMap != nil:
			var m corev1.ConfigMap
			p.check(runtime.DefaultUnstructuredConverter.FromUnstructured(all.get(p, "ConfigMap "+v.ConfigMap.Name).Object, &m))
			p.check(os.Mkdir(path, 0o755))
			for file, text := range m.Data {
				p.check(os.WriteFile(filepath.Join(path, file), []byte(text), 0o644))
			}
			return path
		case v.EmptyDir != nil, v.HostPath != nil && v.HostPath.Type == nil: // a directory, of which it needs nothing
			p.check(os.Mkdir(path, 0o755))
			return path
		case v.HostPath != nil && *v.HostPath.Type == corev1.HostPathFileOrCreate:
			p.check(os.WriteFile(path, nil, 0o600))
			return path
		case v.HostPath != nil:
			_, err := os.Stat(v.HostPath.Path)
			if err != nil && *v.HostPath.Type == corev1.HostPathDirectoryOrCreate {
				p.check(os.Mkdir(path, 0o755))
				return path
			}
			p.check(err)
			return v.HostPath.Path
		}
	}
	p.Fatalf("volume %s: not known here", name)
	return ""
}

// start starts the container.
func (p *pod) start() {
	p.Helper()
	cmd, err := p.run.cmd()
	p.check(err)
	cmd.Stdout, cmd.Stderr = p, p
	p.Process, err = p.node.Start(cmd)
	p.check(err)
	p.Cleanup(func() {
		if p.Failed() {
			p.Logf("log of slipstream:\n%s", p.output())
		}
	})
}

// probe sends the request of a kubelet's probe.
func (p *pod) probe(what *corev1.Probe) error {
	ports := map[string]int32{}
	for _, port := range p.main().Ports {
		ports[port.Name] = port.ContainerPort
	}
	url := fmt.Sprintf("http://%s:%d%s", p.node.Addr(false), ports[what.HTTPGet.Port.StrVal], what.HTTPGet.Path)
	client := p.node.HTTPClient()
	client.Timeout = 5 * time.Second
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	return nil
}

// service makes a Service with one endpoint, and a client for it.
func (c *cluster) service() (client *lab.Pod, address netip.AddrPort) {
	c.Helper()
	client, err := c.node.Pod("client", netip.MustParseAddr("10.244.1.2"))
	c.check(err)
	server, err := c.node.Pod("web", netip.MustParseAddr("10.244.1.3"))
	c.check(err)
	_, err = server.Serve(lab.TCP, netip.MustParseAddrPort("0.0.0.0:8080"))
	c.check(err)
	address = netip.MustParseAddrPort("10.96.0.80:80")
	for _, object := range []string{`
{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}`, `
{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"},
 "spec": {"clusterIP": "10.96.0.80", "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}}`, `
{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
 "metadata": {"name": "web", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
 "ports": [{"name": "http", "port": 8080}], "endpoints": [{"addresses": ["10.244.1.3"], "nodeName": "n1"}]}`} {
		all := objects{}
		all.add(c, []byte(object))
		for _, u := range all {
			c.check(c.apply(c.Context(), u))
		}
	}
	return client, address
}

// audited are "verb resource.group" of all requests of a user to the API server, and the
// refused ones.
func (c *cluster) audited(user string) (asked map[string]bool, refused []string) {
	c.Helper()
	text, err := os.ReadFile(c.audit)
	c.check(err)
	asked = map[string]bool{}
	for line := range bytes.Lines(text) {
		var e struct {
			Verb      string
			User      struct{ Username string }
			ObjectRef struct{ Resource, Subresource, APIGroup string }
			Status    struct{ Code int } `json:"responseStatus"`
		}
		if json.Unmarshal(line, &e) != nil || e.User.Username != user {
			continue // half a line, at the end
		}
		what := strings.TrimSuffix(e.Verb+" "+e.ObjectRef.Resource+"."+e.ObjectRef.APIGroup, ".")
		if e.Status.Code == http.StatusForbidden {
			refused = append(refused, what)
		}
		asked[what] = true
	}
	return asked, refused
}

// chart is the chart for this cluster.
func chart(t testing.TB, more string) objects {
	return helm(t, "apiServer: https://"+apiServer.String()+"\n"+more)
}
