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

// inputs are what the loop hears of.
type inputs struct {
	events    chan []source.Event
	addresses chan []netip.Addr
	failed    chan error // why there will be no more of one of them

	cancel  context.CancelFunc
	running sync.WaitGroup
}

// waitingBatches is how many batches of events can wait for a sync to end before
// the source has to.
const waitingBatches = 2

// listen starts to hear, until ctx ends or stop is called.
func (p *Proxy) listen(ctx context.Context) *inputs {
	ctx, cancel := context.WithCancel(ctx)
	in := &inputs{
		events:    make(chan []source.Event, waitingBatches),
		addresses: make(chan []netip.Addr),
		failed:    make(chan error, 2),
		cancel:    cancel,
	}
	hear(ctx, in, "source of objects", in.events, p.source.Run)
	if p.options.NodeAddresses != nil {
		hear(ctx, in, "addresses of this node", in.addresses, p.options.NodeAddresses)
	}
	return in
}

// hear has run send to c whatever it delivers.
func hear[T any](ctx context.Context, in *inputs, name string, c chan<- T, run func(context.Context, func(T)) error) {
	in.running.Go(func() {
		err := run(ctx, func(v T) {
			select {
			case c <- v:
			case <-ctx.Done():
			}
		})
		if err == nil && ctx.Err() == nil {
			err = errors.New("it ended")
		}
		if err != nil {
			in.failed <- fmt.Errorf("%s: %w", name, err)
		}
	})
}

// stop returns when nothing delivers any more.
func (in *inputs) stop() {
	in.cancel()
	in.running.Wait()
}

// ApplyEvent applies an event of a source to a state. Events without an object have no
// effect. It reports whether the state may have changed, which is exact for
// EndpointSlices only.
func ApplyEvent(s *desired.State, e source.Event) (changed bool) {
	gone := e.Type == source.Delete
	switch o := e.Object.(type) {
	case *corev1.Service:
		if gone {
			s.DeleteService(o.Namespace, o.Name)
		} else {
			s.SetService(o)
		}
	case *discoveryv1.EndpointSlice:
		if gone {
			return s.DeleteEndpointSlice(o.Namespace, o.Name)
		}
		return s.SetEndpointSlice(o)
	case *corev1.Node:
		if gone {
			s.DeleteNode(o.Name)
		} else {
			s.SetNode(o)
		}
	case *networkingv1.ServiceCIDR:
		if gone {
			s.DeleteServiceCIDR(o.Name)
		} else {
			s.SetServiceCIDR(o)
		}
	}
	return true
}
