// SPDX-License-Identifier: Apache-2.0

// Package site is a cluster in a lab: nodes and pods that are network namespaces, and a
// control plane that has an object for each of them. It does what kubelets would.
package site

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"

	"github.com/slipstream-proxy/slipstream/test/lab"
	"github.com/slipstream-proxy/slipstream/test/oracle/upstream"
	"k8s.io/client-go/informers"
	"k8s.io/kubernetes/pkg/controller/endpointslice"
)

var (
	ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")}
	ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/32")} // of all pods
)

// Namespace is where all objects are that are in a namespace.
const Namespace = "default"

// Site is a cluster.
type Site struct {
	Lab   *lab.Lab
	Plane *Plane
	Nodes []*Node // those that New made
	// Outside is a machine outside the cluster.
	Outside *lab.Host

	stop context.CancelFunc // ends what runs in the background
	done sync.WaitGroup
}

// Plane is the cluster's control plane, on a machine of its own, and the faults that tests
// provoke in it.
type Plane struct {
	*upstream.ControlPlane
	Host *lab.Host

	auditLog string // path
}

// Start makes a cluster without nodes and without controllers: etcd and kube-apiserver
// serve. It sets the address and the namespace of the options, and writes into their
// directory. The caller closes the Site.
func Start(ctx context.Context, o upstream.ControlPlaneOptions) (_ *Site, err error) {
	l, err := lab.New()
	if err != nil {
		return nil, err
	}
	s := &Site{Lab: l, stop: func() {}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	host, err := l.Host("control-plane", onFabric(2)...)
	if err != nil {
		return nil, err
	}
	o.Namespace, o.Address = host.Namespace, netip.AddrPortFrom(host.Addr(false), 6443)
	audit, log, err := auditFlags(o.Dir)
	if err != nil {
		return nil, err
	}
	o.APIFlags = append(o.APIFlags, audit...)
	plane, err := upstream.StartControlPlane(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("control plane: %w", err)
	}
	s.Plane = &Plane{plane, host, log}
	return s, s.Plane.allowProxies(ctx)
}

// New starts a cluster of nodes named n1, n2, ... and Kubernetes' own endpointslice
// controller, which makes EndpointSlices of Services with a selector and of Pods. It sets
// ServiceCIDRs in the options. See [Start].
func New(ctx context.Context, nodes int, o upstream.ControlPlaneOptions) (_ *Site, err error) {
	o.ServiceCIDRs = ServiceCIDRs
	s, err := Start(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	background, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.done.Go(func() { s.Plane.runEndpointSlices(background) })
	for i := range nodes {
		n, err := s.Machine(i + 1)
		if err != nil {
			return nil, err
		}
		if err := n.Register(ctx); err != nil {
			return nil, err
		}
		s.Nodes = append(s.Nodes, n)
	}
	s.Outside, err = s.Lab.Host("outside", onFabric(200)...)
	return s, err
}

func (p *Plane) runEndpointSlices(ctx context.Context) {
	all := informers.NewSharedInformerFactory(p.Client, 0)
	controller := endpointslice.NewController(ctx,
		all.Core().V1().Pods(), all.Core().V1().Services(), all.Core().V1().Nodes(), all.Discovery().V1().EndpointSlices(),
		100, p.Client, 0) // endpoints in a slice: kube-controller-manager's default
	all.Start(ctx.Done())
	controller.Run(ctx, 2)
	all.Shutdown()
}

// Pause stops the API server: connections stay open, requests get no answer.
func (p *Plane) Pause() error { return p.API().Signal(syscall.SIGSTOP) }

// Resume lets a paused API server continue.
func (p *Plane) Resume() error { return p.API().Signal(syscall.SIGCONT) }

// Kill ends the API server at once. StartAPI starts it again, on the same content.
func (p *Plane) Kill() error { return p.API().Close() }

func onFabric(number int) []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix(fmt.Sprintf("192.168.100.%d/24", number)),
		netip.MustParsePrefix(fmt.Sprintf("fd00:100::%x/64", number)),
	}
}

// Close ends everything.
func (s *Site) Close() error {
	s.stop()
	var errs []error
	if s.Plane != nil {
		errs = append(errs, s.Plane.Close())
	}
	s.done.Wait()
	return errors.Join(append(errs, s.Lab.Close())...)
}
