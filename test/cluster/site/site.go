// SPDX-License-Identifier: Apache-2.0

// Package site is a cluster in a lab: nodes and pods that are network namespaces, and a
// control plane that has an object for each of them. It does what kubelets would.
package site

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/slipstream-proxy/slipstream/test/cluster/oracle/upstream"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
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
}

// Plane is the cluster's control plane, on a machine of its own.
type Plane struct {
	*upstream.ControlPlane
	Host *lab.Host
}

// Start makes a cluster without nodes and without controllers: etcd and kube-apiserver
// serve. It sets the address and the namespace of the options, and writes into their
// directory. The caller closes the Site.
func Start(ctx context.Context, o upstream.ControlPlaneOptions) (_ *Site, err error) {
	l, err := lab.New()
	if err != nil {
		return nil, err
	}
	s := &Site{Lab: l}
	defer lab.OnError(&err, s.Close)
	host, err := l.Host("control-plane", OnFabric(2)...)
	if err != nil {
		return nil, err
	}
	o.Namespace, o.Address = host.Namespace, netip.AddrPortFrom(host.Addr(false), 6443)
	plane, err := upstream.StartControlPlane(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("control plane: %w", err)
	}
	s.Plane = &Plane{plane, host}
	return s, s.Plane.allowProxies(ctx)
}

// OnFabric are addresses of a machine outside of all nodes, by a number from 2 to 9 or from 200.
func OnFabric(number int) []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix(fmt.Sprintf("192.168.100.%d/24", number)),
		netip.MustParsePrefix(fmt.Sprintf("fd00:100::%x/64", number)),
	}
}

// Close ends everything.
func (s *Site) Close() error {
	var err error
	if s.Plane != nil {
		err = s.Plane.Close()
	}
	return errors.Join(err, s.Lab.Close())
}
