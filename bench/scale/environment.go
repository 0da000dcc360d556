// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/bench/cluster"
	"github.com/slipstream-proxy/slipstream/test/cluster/oracle/upstream"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
)

// environment is a cluster that is filled with Services, and the pods of all Services.
type environment struct {
	*cluster.Cluster
	*options
	site   *site.Site
	pods   *lab.Host
	stop   func()       // ends the pods' server
	nodes  []*site.Node // not used yet
	filled int          // Services
	model  model        // of them
	// watched is set while proxies watch. They would miss objects that are written at once: these
	// have one version, and a watch that was ended between two of them goes on after that version.
	watched bool
	sample  []int // of them, whose rules are counted for all subjects
}

var podsAddress = netip.MustParsePrefix("192.168.100.210/24")

const namespace = "default"

// newEnvironment starts everything but the subjects, with nodes for a number of runs. The
// caller closes it.
func newEnvironment(ctx context.Context, o *options, runs int) (_ *environment, err error) {
	c := cluster.Config{
		Services: o.most(), Endpoints: o.Endpoints, Namespace: namespace, Seed: o.Seed,
	}
	if o.kind == Scale || o.kind == Fleet {
		c.Singles, c.Rolled = singles, o.Rollout
	}
	e := &environment{Cluster: cluster.New(c), options: o}
	e.site, err = site.Start(ctx, upstream.ControlPlaneOptions{Dir: o.dir, ServiceCIDRs: []netip.Prefix{cluster.Services}, Log: o.log})
	if err != nil {
		return nil, err
	}
	defer lab.OnError(&err, e.close)
	if e.pods, e.stop, err = newPods(e.site.Lab); err != nil {
		return nil, err
	}
	// All nodes now: a lab connects new nodes with deleted ones too.
	for i := range runs {
		n, err := e.site.Machine(i + 1)
		if err != nil {
			return nil, err
		}
		e.nodes = append(e.nodes, n)
	}
	return e, nil
}

// newPods makes a machine that has the addresses of all pods. Its one server answers a
// connection with the four bytes of the address that it was made to, and closes it.
func newPods(l *lab.Lab) (host *lab.Host, stop func(), err error) {
	if host, err = l.Host("pods", podsAddress); err != nil {
		return nil, nil, err
	}
	// The routes to the clients' pods are more specific than the local range.
	if err := errors.Join(host.RouteToPods(), host.AddLocalRange(cluster.Pods)); err != nil {
		return nil, nil, err
	}
	stop, err = bench.Serve(host.Namespace, netip.AddrPortFrom(netip.IPv4Unspecified(), cluster.TargetPort), func(fd int) {
		if local, err := unix.Getsockname(fd); err == nil {
			a := local.(*unix.SockaddrInet4).Addr
			_, _ = unix.Write(fd, a[:])
		}
	})
	return host, stop, err
}

func (e *environment) close() error {
	if e.stop != nil {
		e.stop()
	}
	return e.site.Close()
}

// fill writes Services until there are n. The first one is written to the API server; the others,
// copies of it, directly to etcd (see [upstream.ControlPlane.Store]).
func (e *environment) fill(ctx context.Context, n int) error {
	if n <= e.filled {
		return nil
	}
	begin, first := time.Now(), e.filled
	if first == 0 {
		if err := e.writeModel(ctx); err != nil {
			return err
		}
		e.filled = 1
	}
	if e.watched {
		if err := each(n-e.filled, func(i int) error { return e.site.Plane.Store(ctx, e.stored(e.filled+i)) }); err != nil {
			return err
		}
		e.filled = n
	}
	for e.filled < n {
		var objects []upstream.Stored
		end := min(n, e.filled+1000)
		for ; e.filled < end; e.filled++ {
			objects = append(objects, e.stored(e.filled)...)
		}
		if err := e.site.Plane.Store(ctx, objects); err != nil {
			return err
		}
	}
	if err := e.delivered(ctx); err != nil {
		return err
	}
	e.sample = e.Rand.Perm(n)[:min(e.Sample, n)]
	e.log("wrote %d Services in %.1f s", n-first, time.Since(begin).Seconds())
	return nil
}

// model is how the API server stores a Service.
type model struct {
	service *corev1.Service
	slice   *discoveryv1.EndpointSlice
	address *networkingv1.IPAddress
}

// writeModel writes the first Service.
func (e *environment) writeModel(ctx context.Context) (err error) {
	client := e.site.Plane.Client
	svc := e.Service(0)
	if e.model.service, err = client.CoreV1().Services(namespace).Create(ctx, svc, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create Service %s: %w", svc.Name, err)
	}
	for _, s := range e.Slices(0) {
		if e.model.slice, err = client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, s, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create EndpointSlice %s: %w", s.Name, err)
		}
	}
	e.model.address, err = client.NetworkingV1().IPAddresses().Get(ctx, svc.Spec.ClusterIP, metav1.GetOptions{})
	return err
}

// stored returns the objects of a Service: the model with its own names, addresses and endpoints.
func (e *environment) stored(service int) (all []upstream.Stored) {
	add := func(prefix string, o metav1.Object, name string) {
		o.SetName(name)
		o.SetUID(uuid.NewUUID())
		o.SetResourceVersion("")
		all = append(all, upstream.Stored{Key: prefix + name, Object: o.(runtime.Object)})
	}
	svc, own := e.model.service.DeepCopy(), e.Service(service)
	svc.Spec.ClusterIP, svc.Spec.ClusterIPs = own.Spec.ClusterIP, []string{own.Spec.ClusterIP}
	svc.Labels, svc.Spec.Selector = own.Labels, own.Spec.Selector
	address := e.model.address.DeepCopy()
	address.Spec.ParentRef.Name = own.Name
	add("ipaddresses/", address, own.Spec.ClusterIP)
	add("services/specs/"+namespace+"/", svc, own.Name)
	for _, own := range e.Slices(service) {
		slice := e.model.slice.DeepCopy()
		slice.Labels, slice.OwnerReferences, slice.Endpoints = own.Labels, own.OwnerReferences, own.Endpoints
		add("endpointslices/"+namespace+"/", slice, own.Name)
	}
	return all
}

// delivered waits until the API server delivers all Services to those that watch.
func (e *environment) delivered(ctx context.Context) error {
	return wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, e.Timeout, true, func(ctx context.Context) (bool, error) {
		last := e.filled - 1
		slices := e.Slices(last)
		// Resource version 0 is what the API server has in memory.
		_, err := e.site.Plane.Client.DiscoveryV1().EndpointSlices(namespace).Get(ctx, slices[len(slices)-1].Name, metav1.GetOptions{ResourceVersion: "0"})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
}

// writeFirst writes the first slice of a Service, and returns after the API server's reply.
// The slice has the annotation that the EndpointSlice controller writes and kube-proxy
// reads.
func (e *environment) writeFirst(ctx context.Context, service int) error {
	return e.write(ctx, e.Slice(service, 0))
}

func (e *environment) write(ctx context.Context, s *discoveryv1.EndpointSlice) error {
	s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().UTC().Format(time.RFC3339Nano)}
	// Without a version, any stored object is replaced.
	if _, err := e.site.Plane.Client.DiscoveryV1().EndpointSlices(namespace).Update(ctx, s, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update EndpointSlice %s: %w", s.Name, err)
	}
	return nil
}

// replaceFirst replaces the first endpoint of a Service, and returns the new one's address.
// The change is not written yet.
func (e *environment) replaceFirst(service int) netip.Addr {
	return cluster.PodIP(e.Replace(service, 0, 0))
}

func frontend(service int) netip.AddrPort {
	return netip.AddrPortFrom(cluster.ClusterIP(service), cluster.Port)
}

// requests is how many are made to the API server at a time.
const requests = 24

func each(n int, do func(i int) error) error {
	var all errgroup.Group
	all.SetLimit(requests)
	for i := range n {
		all.Go(func() error { return do(i) })
	}
	return all.Wait()
}

type node struct {
	*site.Node
	client *lab.Pod
}

// run measures a subject once. If it fails, the samples before the error are added all the same.
func (e *environment) run(ctx context.Context, s subject, samples bench.Samples) (err error) {
	m, err := e.newMeasurement(ctx, s)
	defer func() { err = errors.Join(err, m.node.remove(context.WithoutCancel(ctx))) }()
	if err != nil {
		return err
	}
	m.samples = samples
	if e.kind == Rules {
		return m.countRules(ctx)
	}
	return m.measure(ctx)
}

// newMeasurement prepares a node that was not used before for a subject. The node is there with an error, too.
func (e *environment) newMeasurement(ctx context.Context, s subject) (*measurement, error) {
	n := &node{Node: e.nodes[0]}
	e.nodes = e.nodes[1:]
	m := &measurement{environment: e, node: n, subject: s.Kind}
	if err := e.prepare(ctx, n, s); err != nil {
		return m, err
	}
	m.prober = &prober{client: n.client, timeout: e.Timeout}
	access, err := e.site.Plane.NewAccess(ctx, e.dir, fmt.Sprintf("%s-%s", s.Kind, n.Name()))
	if err != nil {
		return m, err
	}
	m.start = func() (err error) {
		o := e.proxyOptions(s, access)
		if e.kind == Latency && s.Mode() == "nftables" {
			o.Configure = func(config map[string]any) {
				config["featureGates"] = map[string]bool{"KubeProxyNFTablesLocalhostNodePorts": true}
				config["nodePortAddresses"] = []string{"localhost"}
			}
		}
		if m.proxy, err = proxies.Start(ctx, s.Kind, n.Node.Node, o); err == nil {
			m.prober.ended = m.proxy.Done()
		}
		return err
	}
	return m, nil
}

func (e *environment) proxyOptions(s subject, access *site.Access) proxies.Options {
	return proxies.Options{
		Dir: e.dir, Binary: s.program, Kubeconfig: access.Kubeconfig, ClusterCIDRs: site.ClusterCIDRs[:1],
		Flags: []string{"--v=0"}, // the default, which kubeadm leaves in place
	}
}

// prepare makes a client's pod on the node. For an iptables mode it makes the chain by
// which a kubelet shows which variant its node uses (KEP-3178): Slipstream looks for it,
// kube-proxy runs the command called iptables. It tries the way from the client to the pods,
// without any proxy.
func (e *environment) prepare(ctx context.Context, n *node, s subject) (err error) {
	if err := n.AddRoute(cluster.Pods, podsAddress.Addr()); err != nil {
		return err
	}
	if err := n.Register(ctx); err != nil {
		return fmt.Errorf("register node %s: %w", n.Name(), err)
	}
	if s.Mode() == "iptables" {
		if _, err := n.Run(ctx, "iptables", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT"); err != nil {
			return err
		}
	}
	if n.client, err = n.Idle("client-" + n.Name()); err != nil {
		return err
	}
	pod := cluster.PodAddr(e.Pods(0)[0])
	return n.client.Do(func() error {
		answer, err := connect(pod, 2*time.Second)
		if err == nil && answer != pod.Addr() {
			err = fmt.Errorf("%v answers", answer)
		}
		if err != nil {
			return fmt.Errorf("from the client on %s to pod %v: %w", n.Name(), pod, err)
		}
		return nil
	})
}

func (n *node) remove(ctx context.Context) error {
	var err error
	if n.client != nil {
		err = n.client.Delete()
	}
	return errors.Join(err, n.Namespace.Close(), n.Unregister(ctx))
}
