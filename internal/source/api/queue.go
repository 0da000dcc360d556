// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// queueLimit is how much may wait for the sink, by weight. It is some megabytes of
// objects.
const queueLimit = 4096

// queue is what waits for the sink. Of each object, only the last event waits.
type queue struct {
	// ready has something in it when the queue may have.
	ready chan struct{}

	ctx    context.Context
	mu     sync.Mutex
	space  sync.Cond
	events []source.Event
	at     map[ref]int // in events
	weight int
}

// ref says which object an event is about.
type ref struct{ kind, namespace, name string }

// newQueue makes a queue. When ctx ends, nobody waits for space any more.
func newQueue(ctx context.Context) *queue {
	q := &queue{ready: make(chan struct{}, 1), ctx: ctx, at: map[ref]int{}}
	q.space.L = &q.mu
	context.AfterFunc(ctx, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.space.Broadcast()
	})
	return q
}

// put adds an event, in the place of one that waits for the same object. It waits
// while the queue is full.
func (q *queue) put(e source.Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.weight >= queueLimit && q.ctx.Err() == nil {
		q.space.Wait()
	}
	q.weight += weight(e)
	if e.Object == nil {
		q.events = append(q.events, e)
	} else {
		r := ref{source.Kind(e.Object), e.Object.GetNamespace(), e.Object.GetName()}
		if i, waits := q.at[r]; waits {
			q.weight -= weight(q.events[i])
			q.events[i] = e
		} else {
			q.at[r] = len(q.events)
			q.events = append(q.events, e)
		}
	}
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// take returns all that waits.
func (q *queue) take() []source.Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	events := q.events
	q.events, q.weight = nil, 0
	clear(q.at)
	q.space.Broadcast()
	return events
}

// weight is how much of the queue an event takes: one, and one for each endpoint.
func weight(e source.Event) int {
	if s, ok := e.Object.(*discoveryv1.EndpointSlice); ok {
		return 1 + len(s.Endpoints)
	}
	return 1
}
