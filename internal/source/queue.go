// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// queueLimit is the weight above which a queue that is not synced makes Put wait: some
// megabytes of objects.
const queueLimit = 4096

// Queue holds the events of a source until they are taken, at most one for each object. It is safe for concurrent use.
//
// Until Synced it is bounded, so that initial objects, which arrive faster than they are
// applied, do not all wait at once. Afterwards Put does not wait: the API server closes
// watches that are not read, and the newest version of each object replaces the one that
// waits.
type Queue struct {
	Ready chan struct{} // has an element while there are events

	ctx    context.Context
	mu     sync.Mutex
	space  sync.Cond
	synced bool
	events []Event
	at     map[ref]int // index in events
	weight int
}

type ref struct{ kind, namespace, name string }

// NewQueue makes a queue. When ctx ends, Put no longer waits.
func NewQueue(ctx context.Context) *Queue {
	q := &Queue{Ready: make(chan struct{}, 1), ctx: ctx, at: map[ref]int{}}
	q.space.L = &q.mu
	context.AfterFunc(ctx, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.space.Broadcast()
	})
	return q
}

// Put adds events, which are taken together. Each replaces one of the same object that waits.
func (q *Queue) Put(batch []Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.synced && q.weight >= queueLimit && q.ctx.Err() == nil {
		q.space.Wait()
	}
	for _, e := range batch {
		q.weight += weight(e)
		if e.Type == Synced {
			q.synced = true
			q.space.Broadcast()
			q.events = append(q.events, e)
			continue
		}
		r := ref{Kind(e.Object), e.Object.GetNamespace(), e.Object.GetName()}
		if i, waits := q.at[r]; waits {
			q.weight -= weight(q.events[i])
			q.events[i] = e
		} else {
			q.at[r] = len(q.events)
			q.events = append(q.events, e)
		}
	}
	select {
	case q.Ready <- struct{}{}:
	default:
	}
}

// Take returns the events that wait, and removes them.
func (q *Queue) Take() []Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-q.Ready:
	default:
	}
	events := q.events
	q.events, q.weight = nil, 0
	clear(q.at)
	q.space.Broadcast()
	return events
}

// weight is 1, and 1 for each endpoint.
func weight(e Event) int {
	if s, ok := e.Object.(*discoveryv1.EndpointSlice); ok {
		return 1 + len(s.Endpoints)
	}
	return 1
}
