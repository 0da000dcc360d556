// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const patience = 20 * time.Second

func service(name string) Object {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
}

func slice(name string, endpoints ...discoveryv1.Endpoint) Object {
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Endpoints: endpoints}
}

func put(q *Queue, t Type, objects ...Object) {
	for _, o := range objects {
		q.Put([]Event{{t, o}})
	}
}

func TestQueueKeepsTheLast(t *testing.T) {
	q := NewQueue(t.Context())
	put(q, Set, service("a"), service("b"), slice("a"))
	q.Put([]Event{{Type: Synced}})
	put(q, Delete, service("a"))
	put(q, Set, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	want := []string{"Delete Service default/a", "Set Service default/b", "Set EndpointSlice default/a", "Synced", "Set Node a"}
	for _, want := range [][]string{want, nil} {
		var got []string
		for _, e := range q.Take() {
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
	q := NewQueue(t.Context())
	q.Put([]Event{{Type: Synced}})
	done := make(chan int)
	go func() {
		for i := range 3 * queueLimit {
			put(q, Set, slice(fmt.Sprint(i%queueLimit), discoveryv1.Endpoint{}))
		}
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("put waits")
	}
	if n := len(q.Take()); n != queueLimit+1 {
		t.Errorf("%d events wait, want %d", n, queueLimit+1)
	}
}

// TestQueueIsBounded: before it is synced, put waits while the queue is full, until
// something is taken or the source ends.
func TestQueueIsBounded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	q := NewQueue(ctx)
	done := make(chan int)
	filler := func() {
		for i := range queueLimit { // each counts twice
			put(q, Set, slice(fmt.Sprint(i), discoveryv1.Endpoint{}))
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
	if n := len(q.Take()); n != queueLimit/2 {
		t.Errorf("took %d events, want %d", n, queueLimit/2)
	}
	<-done
	go filler()
	waits()
	cancel()
	<-done
}
