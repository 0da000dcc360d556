// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

func put(q *queue, t source.Type, objects ...source.Object) {
	for _, o := range objects {
		q.put(source.Event{Type: t, Object: o})
	}
}

func TestQueueKeepsTheLast(t *testing.T) {
	q := newQueue(t.Context())
	put(q, source.Set, service("a", ""), service("b", ""), slice("a"))
	q.put(source.Event{Type: source.Synced})
	put(q, source.Delete, service("a", ""))
	put(q, source.Set, node("a", ""))
	want := []string{"Delete Service default/a", "Set Service default/b", "Set EndpointSlice default/a", "Synced", "Set Node a"}
	for _, want := range [][]string{want, nil} {
		var got []string
		for _, e := range q.drain() {
			got = append(got, e.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
	}
}

// TestQueueKeepsReading: once it is synced, put does not wait, and the queue holds one
// version of each object.
func TestQueueKeepsReading(t *testing.T) {
	q := newQueue(t.Context())
	q.put(source.Event{Type: source.Synced})
	done := make(chan int)
	go func() {
		for i := range 3 * queueLimit {
			put(q, source.Set, slice(fmt.Sprint(i%queueLimit), "10.0.0.1"))
		}
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("put waits")
	}
	if n := len(q.drain()); n != queueLimit+1 {
		t.Errorf("%d events wait, want %d", n, queueLimit+1)
	}
}

// TestQueueIsBounded: before it is synced, put waits while the queue is full, until
// something is taken or the source ends.
func TestQueueIsBounded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	q := newQueue(ctx)
	done := make(chan int)
	filler := func() {
		for i := range queueLimit { // each counts twice
			put(q, source.Set, slice(fmt.Sprint(i), "10.0.0.1"))
		}
		done <- 0
	}
	go filler()
	waits := func() {
		t.Helper()
		for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			q.mu.Lock()
			n := q.weight
			q.mu.Unlock()
			if n == queueLimit {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("weight %d, want %d", n, queueLimit)
			}
		}
		select {
		case <-done:
			t.Fatal("nothing waits")
		default:
		}
	}
	waits()
	if n := len(q.drain()); n != queueLimit/2 {
		t.Errorf("took %d events, want %d", n, queueLimit/2)
	}
	<-done
	go filler()
	waits()
	cancel()
	<-done
}
