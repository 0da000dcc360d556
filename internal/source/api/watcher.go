// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"math/rand/v2"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Tests shorten these.
var (
	// backoff is how long to wait before a kind is listed again, and between
	// attempts to connect. It is what client-go does by default: from 0.8 s, twice as
	// long each time up to 30 s, and each up to twice as long at random, so
	// that nodes do not all come back at the same moment.
	backoff = wait.Backoff{Duration: 800 * time.Millisecond, Cap: 30 * time.Second, Steps: 38, Factor: 2, Jitter: 1}

	// askAgain is after how long an API server is asked again for a kind that it
	// did not have: half of that at least, one and a half times at most.
	askAgain = 10 * time.Minute
)

// backoffReset is after how long without a failure the back-off starts from its
// beginning.
const backoffReset = 2 * time.Minute

// watcher watches one kind.
type watcher struct {
	*run
	kind   *kind
	store  *store
	rest   rest.Interface
	client *cache.ListWatch

	protobuf bool               // lists may be asked for in that encoding
	absent   error              // why the kind cannot be had
	giveUp   context.CancelFunc // ends the attempts to
}

func newWatcher(r *run, c *Client, k *kind) (*watcher, error) {
	client, err := c.For(k.version, k.object("", ""), k.list)
	if err != nil {
		return nil, err
	}
	w := &watcher{run: r, kind: k, rest: client, protobuf: c.takesProtobuf()}
	w.client = cache.NewFilteredListWatchFromClient(client, k.resource, metav1.NamespaceAll, k.selectFrom)
	w.store = &store{
		kind:  k,
		put:   r.queue.put,
		full:  w.full,
		known: map[string]known{},
	}
	return w, nil
}

// watch watches until ctx ends.
func (w *watcher) watch(ctx context.Context) {
	for {
		w.attempt(ctx)
		if ctx.Err() != nil {
			return
		}
		w.log.V(2).Info("The API server does not let a kind be listed", "kind", w.kind.name, "err", w.absent)
		w.listed(w.kind)
		select {
		case <-ctx.Done():
			return
		case <-time.After(askAgain/2 + rand.N(askAgain)):
		}
	}
}

// attempt watches until ctx ends or the kind turns out not to be there.
func (w *watcher) attempt(ctx context.Context) {
	ctx, w.giveUp = context.WithCancel(ctx)
	defer w.giveUp()
	again := backoff
	r := cache.NewReflectorWithOptions(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := w.list(ctx, o)
			w.asked(ctx, &o, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			stream, err := w.client.WatchWithContext(ctx, o)
			if err == nil && reflect.TypeOf(stream) == reflect.TypeOf(watch.NewEmptyWatch()) {
				stream, err = nil, errNoAnswer
			}
			w.asked(ctx, &o, err)
			return stream, err
		},
	}, w.kind.object("", ""), w.store, cache.ReflectorOptions{Logger: &w.log, Name: w.kind.name, Backoff: &again, Clock: endingClock{ctx: ctx}})

	// The Reflector's own loop would log each error once more.
	mine := backoff
	_ = mine.DelayWithReset(clock.RealClock{}, backoffReset).Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		if err := r.ListAndWatchWithContext(klog.NewContext(ctx, w.log)); err != nil && ctx.Err() == nil {
			w.log.V(2).Info("Watch ended", "kind", w.kind.name, "err", err)
		}
		return false, nil
	})
}

// asked looks at what became of a request.
func (w *watcher) asked(ctx context.Context, o *metav1.ListOptions, err error) {
	switch {
	case err == nil:
		w.trouble.over(w.kind.name)
		return
	case ctx.Err() != nil:
		return
	case o.SendInitialEvents != nil && apierrors.IsInvalid(err):
		w.log.V(2).Info("The API server does not stream lists", "kind", w.kind.name, "err", err)
		return // the Reflector lists instead
	}
	switch {
	case apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge):
		w.log.V(2).Info("Listing again", "kind", w.kind.name, "err", err)
	case w.kind.optional && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err)):
		w.doWithout(err)
	default:
		w.trouble.is(w.kind.name, err)
	}
}

// doWithout gives up a kind for a while.
func (w *watcher) doWithout(err error) {
	if w.absent == nil {
		w.tell(without(w.kind, err))
	}
	w.absent = err
	w.giveUp()
}

// full takes note that all there is of the kind has been passed on.
func (w *watcher) full() {
	if w.absent != nil {
		w.log.Info("The API server lets a kind be listed now", "kind", w.kind.name)
		w.absent = nil
	}
	w.listed(w.kind)
}
