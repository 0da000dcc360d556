// SPDX-License-Identifier: Apache-2.0

// Package control is the control plane of a cluster in a lab: etcd, kube-apiserver and
// the endpointslice controller, and the faults that tests provoke in them.
package control

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/slipstream-proxy/slipstream/test/lab"
	"github.com/slipstream-proxy/slipstream/test/oracle/upstream"
	"k8s.io/client-go/informers"
	"k8s.io/kubernetes/pkg/controller/endpointslice"
)

// Plane is a control plane on a machine of the lab's. Its Client, without a limit on its
// rate, may do all.
type Plane struct {
	*upstream.ControlPlane
	Host *lab.Host
}

// Start starts etcd and kube-apiserver on a machine of their own, with these addresses on
// the lab's fabric, and returns when kube-apiserver serves, on the first one's port 6443.
// Nothing makes EndpointSlices yet: see [Plane.RunEndpointSlices].
func Start(ctx context.Context, l *lab.Lab, addresses []netip.Prefix, o upstream.ControlPlaneOptions) (_ *Plane, err error) {
	host, err := l.Host("control-plane", addresses...)
	if err != nil {
		return nil, err
	}
	o.Namespace, o.Address = host.Namespace, netip.AddrPortFrom(addresses[0].Addr(), 6443)
	o.APIFlags = append(o.APIFlags, "--authorization-mode=RBAC")
	p := &Plane{Host: host}
	if p.ControlPlane, err = upstream.StartControlPlane(ctx, o); err != nil {
		return nil, fmt.Errorf("control plane: %w", err)
	}
	if err := p.allowProxies(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("control plane: %w", err), p.Close())
	}
	return p, nil
}

// Pause stops the API server: connections stay open, requests get no answer.
func (p *Plane) Pause() error { return p.API().Signal(syscall.SIGSTOP) }

// Resume lets a paused API server go on.
func (p *Plane) Resume() error { return p.API().Signal(syscall.SIGCONT) }

// Kill ends the API server at once. StartAPI starts it again, on the same content.
func (p *Plane) Kill() error { return p.API().Stop() }

// RunEndpointSlices runs Kubernetes' own endpointslice controller until ctx ends, in this
// process. It makes EndpointSlices of Services with a selector and of Pods.
func (p *Plane) RunEndpointSlices(ctx context.Context) {
	all := informers.NewSharedInformerFactory(p.Client, 0)
	controller := endpointslice.NewController(ctx,
		all.Core().V1().Pods(), all.Core().V1().Services(), all.Core().V1().Nodes(), all.Discovery().V1().EndpointSlices(),
		100, p.Client, 0) // endpoints in a slice: kube-controller-manager's default
	all.Start(ctx.Done())
	controller.Run(ctx, 2)
	all.Shutdown()
}
