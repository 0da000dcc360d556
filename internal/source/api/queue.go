// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// queueLimit is the weight above which a queue that is not synced makes put wait: some
// megabytes of objects.
const queueLimit = 4096

// queue holds the events that wait for the sink, at most one for each object.
//
// Until Synced it is bounded, so that initial objects, which arrive faster than they are
// applied, do not all wait at once. Afterwards put does not wait: the API server closes
// watches that are not read, and the newest version of each object replaces the one that
// waits.
type queue struct {
	ready chan struct{} // has an element when there may be events

	ctx    context.Context
	mu     sync.Mutex
	space  sync.Cond
	synced bool
	events []source.Event
	at     map[ref]int // index in events
	weight int
}

type ref struct{ kind, namespace, name string }

// newQueue makes a queue. When ctx ends, put no longer waits.
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

// put adds an event, which replaces a waiting one of the same object.
func (q *queue) put(e source.Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.synced && q.weight >= queueLimit && q.ctx.Err() == nil {
		q.space.Wait()
	}
	q.weight += weight(e)
	if e.Type == source.Synced {
		q.synced = true
		q.space.Broadcast()
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

func (q *queue) drain() []source.Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	events := q.events
	q.events, q.weight = nil, 0
	clear(q.at)
	q.space.Broadcast()
	return events
}

// weight is 1, and 1 for each endpoint.
func weight(e source.Event) int {
	if s, ok := e.Object.(*discoveryv1.EndpointSlice); ok {
		return 1 + len(s.Endpoints)
	}
	return 1
}
