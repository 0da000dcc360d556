// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/source"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// Inputs deliver the objects of a source and the addresses of this node.
type Inputs struct {
	Events    *source.Queue
	Addresses chan []netip.Addr
	Failed    chan error // why one of them ended

	cancel  context.CancelFunc
	running sync.WaitGroup
}

// Listen starts inputs, which run until ctx ends or Stop is called. addresses is
// [Options.NodeAddresses].
func Listen(ctx context.Context, objects source.Source, addresses func(context.Context, func([]netip.Addr)) error) *Inputs {
	ctx, cancel := context.WithCancel(ctx)
	in := &Inputs{
		Events:    source.NewQueue(ctx),
		Addresses: make(chan []netip.Addr),
		Failed:    make(chan error, 2),
		cancel:    cancel,
	}
	in.run(ctx, "source of objects", func() error { return objects.Run(ctx, in.Events.Put) })
	if addresses != nil {
		in.run(ctx, "addresses of this node", func() error {
			return addresses(ctx, func(all []netip.Addr) {
				select {
				case in.Addresses <- all:
				case <-ctx.Done():
				}
			})
		})
	}
	return in
}

// run runs an input in a goroutine.
func (in *Inputs) run(ctx context.Context, name string, input func() error) {
	in.running.Go(func() {
		err := input()
		if err == nil && ctx.Err() == nil {
			err = errors.New("it ended")
		}
		if err != nil {
			in.Failed <- fmt.Errorf("%s: %w", name, err)
		}
	})
}

// Stop ends the inputs and waits for their goroutines.
func (in *Inputs) Stop() {
	in.cancel()
	in.running.Wait()
}

// ApplyEvent applies an event of a source to a state. Events without an object have no
// effect. It reports whether the state may have changed, which is exact for
// EndpointSlices and other Nodes only.
func ApplyEvent(s *desired.State, e source.Event) (changed bool) {
	deleted := e.Type == source.Delete
	switch o := e.Object.(type) {
	case *corev1.Service:
		if deleted {
			s.DeleteService(o.Namespace, o.Name)
		} else {
			s.SetService(o)
		}
	case *discoveryv1.EndpointSlice:
		if deleted {
			return s.DeleteEndpointSlice(o.Namespace, o.Name)
		}
		return s.SetEndpointSlice(o)
	case *corev1.Node:
		if deleted {
			s.DeleteNode(o.Name)
		} else {
			return s.SetNode(o)
		}
	case *networkingv1.ServiceCIDR:
		if deleted {
			s.DeleteServiceCIDR(o.Name)
		} else {
			s.SetServiceCIDR(o)
		}
	case *corev1.Namespace:
		if deleted {
			s.DeleteNamespace(o.Name)
		} else {
			s.SetNamespace(o)
		}
	case *corev1.Pod:
		if deleted {
			s.DeletePod(o.Namespace, o.Name)
		} else {
			s.SetPod(o)
		}
	}
	return true
}
