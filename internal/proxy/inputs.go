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

// inputs are the loop's inputs. Goroutines deliver them.
type inputs struct {
	events    chan []source.Event
	addresses chan []netip.Addr
	failed    chan error // why one of the inputs ended

	cancel  context.CancelFunc
	running sync.WaitGroup
}

// waitingBatches is how many batches of events are queued during a sync before the source
// blocks.
const waitingBatches = 2

// listen starts the inputs. They run until ctx ends or stop is called.
func (p *Proxy) listen(ctx context.Context) *inputs {
	ctx, cancel := context.WithCancel(ctx)
	in := &inputs{
		events:    make(chan []source.Event, waitingBatches),
		addresses: make(chan []netip.Addr),
		failed:    make(chan error, 2),
		cancel:    cancel,
	}
	forward(ctx, in, "source of objects", in.events, p.source.Run)
	if p.options.NodeAddresses != nil {
		forward(ctx, in, "addresses of this node", in.addresses, p.options.NodeAddresses)
	}
	return in
}

// forward starts run in a goroutine and sends the values that it delivers to c.
func forward[T any](ctx context.Context, in *inputs, name string, c chan<- T, run func(context.Context, func(T)) error) {
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

// stop ends the inputs and waits for their goroutines.
func (in *inputs) stop() {
	in.cancel()
	in.running.Wait()
}

// ApplyEvent applies an event of a source to a state. Events without an object have no
// effect. It reports whether the state may have changed, which is exact for
// EndpointSlices only.
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
			s.SetNode(o)
		}
	case *networkingv1.ServiceCIDR:
		if deleted {
			s.DeleteServiceCIDR(o.Name)
		} else {
			s.SetServiceCIDR(o)
		}
	}
	return true
}
