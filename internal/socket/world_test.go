// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// world is a node with a client and a server. It has no dataplane, so that connections to Services
// succeed only if sockets connect directly.
type world struct {
	*Balancer
	t              *testing.T
	node           *lab.Node
	client, server *lab.Pod
	state          *desired.State
	options        Options
}

const (
	webPort   = 80
	nodePort  = 30080
	firstPort = 8000 // of the server
	ports     = 8
	node      = "n1"
)

func newWorld(t *testing.T) *world {
	return newWorldWith(t, desired.Config{NodeName: node, MaxTable: desired.TableSizes()[0]})
}

func newWorldWith(t *testing.T, c desired.Config) *world {
	kerneltest.Require(t, kerneltest.CGroupBPF)
	w := &world{t: t, state: desired.New(c)}
	l := kerneltest.NewLab(t)
	var err error
	w.node, err = l.Node(node, lab.NodeOptions{
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24"), netip.MustParsePrefix("fd00:100::11/64")},
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:244:1::/64")},
	})
	w.check(err)
	for _, unserved := range []string{"10.96.0.0/16", "203.0.113.0/24", "fd00:96::/64", "2001:db8::/32"} {
		out, err := w.node.Run(t.Context(), "ip", "route", "add", "unreachable", unserved)
		if err != nil {
			t.Fatal(err, string(out))
		}
	}
	for _, limit := range []string{"ipv4/icmp_ratelimit", "ipv6/icmp/ratelimit"} {
		w.check(w.node.SetSysctl(limit, "0"))
	}
	w.client, w.server = w.pod("client", 2), w.pod("server", 3)
	for port := firstPort; port < firstPort+ports; port++ {
		_, err := w.server.Serve(lab.TCP, netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(port)))
		w.check(err)
	}
	w.options = Options{NetNS: w.node.FD(), CGroup: kerneltest.CGroup(t), Pods: t.TempDir(), lease: time.Hour}
	w.name(w.client, 1)
	w.start()
	t.Cleanup(func() {
		w.check(w.Close())
		w.check(Remove(w.node.FD())) // pinned objects would remain
	})
	return w
}

func (w *world) start() {
	w.t.Helper()
	var err error
	w.Balancer, err = New(w.options)
	w.check(err)
	w.check(w.scan())
}

func (w *world) pod(name string, n int) *lab.Pod {
	w.t.Helper()
	p, err := w.node.Pod(name, netip.MustParseAddr(fmt.Sprintf("10.244.1.%d", n)), netip.MustParseAddr(fmt.Sprintf("fd00:244:1::%d", n)))
	w.check(err)
	return p
}

// name mounts a pod's network namespace, like a container runtime.
func (w *world) name(p interface{ FD() int }, n int) (unmount func()) {
	w.t.Helper()
	path := filepath.Join(w.options.Pods, fmt.Sprintf("cni-00000000-0000-0000-0000-%012d", n))
	w.check(os.WriteFile(path, nil, 0o600))
	w.check(unix.Mount(fmt.Sprintf("/proc/self/fd/%d", p.FD()), path, "", unix.MS_BIND, ""))
	unmount = func() {
		_ = unix.Unmount(path, unix.MNT_DETACH)
		_ = os.Remove(path)
	}
	w.t.Cleanup(unmount)
	return unmount
}

func (w *world) check(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) reconcile() {
	w.t.Helper()
	_, err := w.Reconcile(w.t.Context(), &w.state.Full().Change)
	w.check(err)
}

func (w *world) apply() {
	w.t.Helper()
	_, err := w.Apply(w.t.Context(), &w.state.Change().Change)
	w.check(err)
}

// service is a dual-stack Service of type NodePort.
func service() *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1", "fd00:96::1"}, ExternalIPs: []string{"203.0.113.1", "2001:db8::1"},
		Ports: []corev1.ServicePort{{Port: webPort, NodePort: nodePort}},
	}}
}

// endpoints makes the first n ports of the server the Service's endpoints, each by a slice of its own.
func (w *world) endpoints(n int) {
	for i := range ports {
		for _, family := range []struct {
			of      discoveryv1.AddressType
			address string
		}{{discoveryv1.AddressTypeIPv4, "10.244.1.3"}, {discoveryv1.AddressTypeIPv6, "fd00:244:1::3"}} {
			name := fmt.Sprintf("web-%d-%s", i, family.of)
			if i >= n {
				w.state.DeleteEndpointSlice("default", name)
				continue
			}
			w.state.SetEndpointSlice(&discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
				AddressType: family.of, Ports: []discoveryv1.EndpointPort{{Port: ptr.To(int32(firstPort + i))}},
				Endpoints: []discoveryv1.Endpoint{{Addresses: []string{family.address}, NodeName: ptr.To(node)}},
			})
		}
	}
}
