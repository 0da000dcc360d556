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

	"github.com/slipstream-proxy/slipstream/test/cluster/control"
	"github.com/slipstream-proxy/slipstream/test/lab"
	"github.com/slipstream-proxy/slipstream/test/oracle/upstream"
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
	Plane *control.Plane
	Nodes []*Node // those that New made
	// Outside is a machine outside the cluster.
	Outside *lab.Host

	stop context.CancelFunc
	done sync.WaitGroup // what runs until stop
}

// New makes a cluster of nodes named n1, n2, ... with a control plane that serves. What is
// written to files is in dir. The caller closes it.
func New(ctx context.Context, dir string, nodes int, log upstream.Log) (_ *Site, err error) {
	l, err := lab.New()
	if err != nil {
		return nil, err
	}
	s := &Site{Lab: l}
	background, stop := context.WithCancel(context.Background())
	s.stop = stop
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	s.Plane, err = control.Start(ctx, l, onFabric(2), upstream.ControlPlaneOptions{Dir: dir, ServiceCIDRs: ServiceCIDRs, Log: log})
	if err != nil {
		return nil, err
	}
	s.done.Go(func() { s.Plane.RunEndpointSlices(background) })
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
	s.Outside, err = l.Host("outside", onFabric(200)...)
	return s, err
}

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
