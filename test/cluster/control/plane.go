// SPDX-License-Identifier: Apache-2.0

// Package control is the control plane of a cluster in a lab: etcd, kube-apiserver and
// the endpointslice controller, and what can go wrong with them.
package control

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/slipstream-proxy/slipstream/test/lab"
	"github.com/slipstream-proxy/slipstream/test/oracle/upstream"
)

// Options are how a control plane is set up.
type Options struct {
	// Dir is an existing directory for what the programs write; what they have
	// written goes away with the control plane.
	Dir string
	// Addresses are those of the machine that it runs on, on the lab's fabric. The API
	// server listens on the first one, port 6443.
	Addresses []netip.Prefix
	// ServiceCIDRs are where ClusterIPs are from: one, or one of each family.
	ServiceCIDRs []netip.Prefix
	// Log is called about what takes long (kube-apiserver is built when it is first needed). It
	// may be nil.
	Log upstream.Log
}

// Plane is a control plane on a machine of the lab's. Its Client, without a limit on its
// rate, may do all.
type Plane struct {
	*upstream.ControlPlane
	Host *lab.Host
	dir  string
}

// Start starts etcd and kube-apiserver and returns when the latter serves. Nothing makes
// EndpointSlices yet: see [Plane.RunEndpointSlices].
func Start(ctx context.Context, l *lab.Lab, o Options) (_ *Plane, err error) {
	host, err := l.Host("control-plane", o.Addresses...)
	if err != nil {
		return nil, err
	}
	var cidrs []string
	for _, c := range o.ServiceCIDRs {
		cidrs = append(cidrs, c.String())
	}
	p := &Plane{Host: host, dir: o.Dir}
	p.ControlPlane, err = upstream.StartControlPlane(ctx, upstream.ControlPlaneOptions{
		Dir:          o.Dir,
		ServiceCIDRs: cidrs,
		Namespace:    host.Namespace(),
		Address:      netip.AddrPortFrom(o.Addresses[0].Addr(), 6443),
		APIFlags:     []string{"--authorization-mode=RBAC"},
		Log:          o.Log,
	})
	if err != nil {
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
