// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// Options are how a Source works.
type Options struct {
	// NodeName is the name of the Node that is watched. Required.
	NodeName string

	// OnError is told what an operator must see, instead of the log: that the API
	// server cannot be reached or refuses, and what of an object cannot be acted
	// on. Each is told once while it lasts. Calls are not concurrent.
	OnError func(error)

	// OnRelist is told that a kind has been listed as a whole, for metrics. The
	// first time is at the start; later ones follow a lost watch. Kinds are
	// those of package source, e.g. "EndpointSlice". Calls may be concurrent.
	OnRelist func(kind string)

	// OnWatchError is told each time a request for a kind fails, for metrics.
	// Calls may be concurrent.
	OnWatchError func(kind string, err error)
}

// Source watches an API server. It implements source.Source.
type Source struct {
	client  *Client
	options Options
}

var _ source.Source = (*Source)(nil)

// New returns a source that watches the API server of a client. Nothing is asked
// before Run.
func New(client *Client, o Options) *Source {
	return &Source{client: client, options: o}
}

// Run implements source.Source. It returns an error only when it cannot start: that
// the API server cannot be reached is none. Logs go to the logger of ctx
// (klog.FromContext).
func (s *Source) Run(ctx context.Context, sink func([]source.Event)) error {
	if s.options.NodeName == "" {
		return errors.New("the Kubernetes API as a source needs the name of this node")
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()

	q := newQueue(ctx)
	r := &run{
		queue:   q,
		options: s.options,
		log:     klog.FromContext(ctx),
		missing: map[string]bool{},
	}
	r.trouble = trouble{tell: r.tell, log: r.log, server: s.client.config.Host, kinds: map[string]bool{}, told: map[string]time.Time{}}
	kinds := kindsFor(s.options.NodeName)
	for _, k := range kinds {
		r.missing[k.name] = true
	}
	for _, k := range kinds {
		w, err := newWatcher(r, s.client, k)
		if err != nil {
			return err
		}
		running.Go(func() { w.watch(ctx) })
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-q.ready:
			if batch := q.take(); len(batch) > 0 {
				sink(batch)
			}
		}
	}
}

// run is what the watchers of one Run share.
type run struct {
	queue   *queue
	options Options
	log     klog.Logger
	trouble trouble

	mu      sync.Mutex
	missing map[string]bool // kinds that have not been listed yet
	telling sync.Mutex
}

// listed takes note that all there was of a kind has been delivered. The last one
// makes the source synced.
func (r *run) listed(k *kind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.missing[k.name] {
		return
	}
	delete(r.missing, k.name)
	if len(r.missing) == 0 {
		r.queue.put(source.Event{Type: source.Synced})
	}
}

// tell passes on what an operator must see.
func (r *run) tell(err error) {
	r.telling.Lock()
	defer r.telling.Unlock()
	if r.options.OnError != nil {
		r.options.OnError(err)
		return
	}
	r.log.Error(nil, err.Error())
}
