// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/slipstream-proxy/slipstream/internal/source"
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
