// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/cluster"
	"github.com/slipstream-proxy/slipstream/test/cluster/control"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/lab"
	"github.com/slipstream-proxy/slipstream/test/oracle/upstream"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// environment is a control plane that is filled with Services, the pods of all Services, and
// nodes.
type environment struct {
	*cluster.Cluster
	options *options
	site    *site.Site
	plane   *control.Plane
	pods    *pods
	dir     string
	log     upstream.Log
	nodes   []*site.Node // not used yet
	filled  int          // Services
	sample  []int        // of them, whose rules are counted for all subjects
}

// planeAddress is the control plane's, on the fabric.
var planeAddress = netip.MustParsePrefix("192.168.100.2/24")

const namespace = "default"

// newCluster makes up the objects.
func newCluster(o *options) *cluster.Cluster {
	c := cluster.Config{
		Families: []cluster.Family{cluster.IPv4}, Services: o.most(), Endpoints: o.Endpoints, Namespace: namespace, Seed: o.Seed,
	}
	if !o.rules {
		c.Singles = singles
	}
	return cluster.New(c)
}

// newEnvironment starts everything but the subjects, with nodes for a number of runs. The
// caller closes it.
func newEnvironment(ctx context.Context, o *options, runs int, dir string, log upstream.Log) (_ *environment, err error) {
	// Without this, filling waits until each write of etcd is on the disk. Nothing that is
	// measured does.
	if err := os.Setenv("ETCD_UNSAFE_NO_FSYNC", "true"); err != nil {
		return nil, err
	}
	l, err := lab.New()
	if err != nil {
		return nil, err
	}
	e := &environment{Cluster: newCluster(o), options: o, dir: dir, log: log, site: &site.Site{Lab: l}}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	e.plane, err = control.Start(ctx, l, []netip.Prefix{planeAddress}, upstream.ControlPlaneOptions{
		Dir: dir, ServiceCIDRs: []netip.Prefix{cluster.IPv4.Services}, Log: log,
	})
	if err != nil {
		return nil, err
	}
	e.site.Plane = e.plane
	if e.pods, err = newPods(ctx, l); err != nil {
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

func (e *environment) close() error {
	var errs []error
	if e.pods != nil {
		e.pods.close()
	}
	if e.plane != nil {
		errs = append(errs, e.plane.Close())
	}
	return errors.Join(append(errs, e.site.Lab.Close())...)
}

// fill writes Services and their EndpointSlices until there are n Services.
func (e *environment) fill(ctx context.Context, n int) error {
	if n <= e.filled {
		return nil
	}
	begin, first := time.Now(), e.filled
	err := each(n-first, func(k int) error {
		svc := e.Service(first + k)
		if _, err := e.plane.Client.CoreV1().Services(namespace).Create(ctx, svc, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create Service %s: %w", svc.Name, err)
		}
		for _, s := range e.Slices(cluster.IPv4, first+k) {
			if _, err := e.plane.Client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, s, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("create EndpointSlice %s: %w", s.Name, err)
			}
		}
		return nil
	})
	e.filled, e.sample = n, e.Rand.Perm(n)[:min(e.options.Sample, n)]
	e.log("wrote %d Services in %.1f s", n-first, time.Since(begin).Seconds())
	return err
}

// writeFirst writes the first slice of a Service, and returns after the API server's reply.
func (e *environment) writeFirst(ctx context.Context, service int) error {
	s := e.firstSlice(service)
	// Without a version, whatever is stored is replaced.
	if _, err := e.plane.Client.DiscoveryV1().EndpointSlices(namespace).Update(ctx, s, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update EndpointSlice %s: %w", s.Name, err)
	}
	return nil
}

// firstSlice is the first slice of a Service, with the annotation that the EndpointSlice
// controller writes and kube-proxy reads.
func (e *environment) firstSlice(service int) *discoveryv1.EndpointSlice {
	s := e.Slices(cluster.IPv4, service)[0]
	s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().UTC().Format(time.RFC3339Nano)}
	return s
}

// replaceFirst replaces the first endpoint of a Service, and returns the new one's address.
// The change is not written yet.
func (e *environment) replaceFirst(service int) netip.Addr {
	return cluster.IPv4.PodIP(e.ReplaceFirst(service).New)
}

// frontend is where clients of a Service connect to.
func frontend(service int) netip.AddrPort {
	return netip.AddrPortFrom(cluster.IPv4.ClusterIP(service), cluster.Port)
}

// each calls do for 0 to n-1, several at a time, until one fails.
func each(n int, do func(i int) error) error {
	const writers = 24 // requests to the API server at a time
	var next atomic.Int64
	var once sync.Once
	var failed error
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for i := int(next.Add(1) - 1); i < n; i = int(next.Add(1) - 1) {
				if err := do(i); err != nil {
					once.Do(func() { failed = err })
					next.Store(int64(n))
				}
			}
		})
	}
	all.Wait()
	return failed
}

// node is where one subject runs once.
type node struct {
	*site.Node
	client *lab.Pod
}

// run runs a subject once, on a node that was not used before. It returns what was measured
// before an error too.
func (e *environment) run(ctx context.Context, s subject, program string) (_ bench.Samples, err error) {
	n := &node{Node: e.nodes[0]}
	e.nodes = e.nodes[1:]
	defer func() { err = errors.Join(err, n.remove(context.WithoutCancel(ctx))) }()
	if err := e.prepare(ctx, n, s); err != nil {
		return nil, err
	}
	access, err := e.plane.NewAccess(ctx, e.dir, fmt.Sprintf("%s-%s", s.name, n.Name()))
	if err != nil {
		return nil, err
	}
	m := &measurement{environment: e, node: n, subject: s, samples: bench.Samples{}, prober: &prober{client: n.client, timeout: e.options.Timeout}}
	m.start = func() (*proxies.Proxy, error) {
		return proxies.Start(ctx, s.kind, n.Node.Node, proxies.Options{
			Dir: e.dir, Binary: program, Kubeconfig: access.Kubeconfig,
			ClusterCIDRs: site.ClusterCIDRs[:1],
			Configure:    func(config map[string]any) { config["mode"] = s.mode },
			Flags:        []string{"--v=0"}, // the default, which kubeadm leaves in place
		})
	}
	if e.options.rules {
		return m.samples, m.countRules(ctx)
	}
	return m.samples, m.measure(ctx)
}

// prepare makes a client's pod on the node, and for an iptables mode the sign of which
// variant the node uses. It tries the way from the client to the pods, without any proxy.
func (e *environment) prepare(ctx context.Context, n *node, s subject) (err error) {
	if err := n.AddRoute(cluster.IPv4.Pods, podsAddress.Addr()); err != nil {
		return err
	}
	if err := n.Register(ctx); err != nil {
		return fmt.Errorf("register node %s: %w", n.Name(), err)
	}
	if s.mode == iptablesMode {
		if err := hint(ctx, n.Node); err != nil {
			return err
		}
	}
	if n.client, err = n.Idle("client-" + n.Name()); err != nil {
		return err
	}
	pod := cluster.IPv4.PodAddr(e.Pods(0)[0])
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

// remove deletes the node, with its processes and rules.
func (n *node) remove(ctx context.Context) error {
	var err error
	if n.client != nil {
		err = n.client.Delete()
	}
	return errors.Join(err, n.Namespace.Close(), n.Unregister(ctx))
}
