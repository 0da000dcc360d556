// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Tests shorten these.
var (
	// backoff is the time before a kind is listed again, and between attempts to
	// connect. It is client-go's default: from 0.8 s to 30 s, doubled each time, with
	// jitter of up to the same time, so that nodes do not reconnect at the same moment.
	backoff = wait.Backoff{Duration: 800 * time.Millisecond, Cap: 30 * time.Second, Steps: 38, Factor: 2, Jitter: 1}

	// askAgain is the mean time between attempts to list a kind that the API server
	// does not have. The time varies by half.
	askAgain = 10 * time.Minute
)

// backoffReset is the time without a failure after which backoff starts again.
const backoffReset = 2 * time.Minute

type watcher struct {
	*run
	kind  *kind
	store *store
	rest  rest.Interface

	accept  string             // for lists; "" for the client's own
	listing sync.Mutex         // held during a list, for which the Reflector does not wait when its context ends
	absent  error              // why an optional kind cannot be listed
	giveUp  context.CancelFunc // ends the current attempt
}

func newWatcher(r *run, c *Client, k *kind) (*watcher, error) {
	if k.metadata {
		c = c.metadata()
	}
	client, err := c.For(k.version, k.object("", ""), k.list)
	if err != nil {
		return nil, err
	}
	w := &watcher{run: r, kind: k, rest: client, accept: strings.ReplaceAll(c.config.AcceptContentTypes, "Metadata;", "MetadataList;")}
	w.store = &store{kind: k, put: r.put, full: w.full, known: map[string]known{}}
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

// attempt watches until ctx ends or an optional kind cannot be listed.
func (w *watcher) attempt(ctx context.Context) {
	ctx, w.giveUp = context.WithCancel(ctx)
	defer func() {
		w.giveUp()
		w.listing.Lock()
		defer w.listing.Unlock()
	}()
	again := backoff
	r := cache.NewReflectorWithOptions(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			w.listing.Lock()
			defer w.listing.Unlock()
			if err := ctx.Err(); err != nil {
				return nil, err // the next attempt may run
			}
			list, err := w.list(ctx, o)
			w.requested(ctx, &o, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			stream, err := w.open(ctx, o)
			w.requested(ctx, &o, err)
			if o.SendInitialEvents == nil && (utilnet.IsProbableEOF(err) || utilnet.IsTimeout(err)) {
				err = errors.Join(unix.ECONNREFUSED, err) // after which the Reflector watches again, and does not list
			}
			return stream, err
		},
	}, w.kind.object("", ""), reflected{}, cache.ReflectorOptions{Logger: &w.log, Name: w.kind.name, Backoff: &again, Clock: endingClock{ctx: ctx}})

	// The Reflector's own loop would log each error again.
	relist := backoff
	_ = relist.DelayWithReset(clock.RealClock{}, backoffReset).Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		if err := r.ListAndWatchWithContext(klog.NewContext(ctx, w.log)); err != nil && ctx.Err() == nil {
			w.log.V(2).Info("Watch ended", "kind", w.kind.name, "err", err)
		}
		return false, nil
	})
}

// requested evaluates the result of a request.
func (w *watcher) requested(ctx context.Context, o *metav1.ListOptions, err error) {
	switch {
	case err == nil:
		w.succeeded(w.kind.name)
	case ctx.Err() != nil:
	case o.SendInitialEvents != nil && apierrors.IsInvalid(err): // the Reflector lists instead
		w.log.V(2).Info("The API server does not stream lists", "kind", w.kind.name, "err", err)
	case apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge):
		w.log.V(2).Info("Listing again", "kind", w.kind.name, "err", err)
	case w.kind.optional && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err)):
		if w.absent == nil && w.kind.consequence != "" {
			w.log.Info("The API server does not have a kind, or does not let this node list it", "kind", w.kind.name, "consequence", w.kind.consequence, "cause", causeOf(err))
		} else if w.absent == nil {
			w.report(fmt.Errorf("going on without %ss, which the API server does not have or does not let this node list: %s", w.kind.name, causeOf(err)))
		}
		w.absent = err
		w.succeeded(w.kind.name) // what failed before, as when the API server started again, is over
		w.giveUp()
	default:
		w.failed(w.kind.name, err)
	}
}

// full is called when all objects of the kind have been delivered.
func (w *watcher) full() {
	if w.absent != nil {
		w.log.Info("The API server lets a kind be listed now", "kind", w.kind.name)
		w.absent = nil
	}
	w.listed(w.kind)
}

// endingClock is a real clock whose After also fires when a context ends. The Reflector
// waits for up to a minute between attempts to connect and ignores its context meanwhile.
type endingClock struct {
	clock.RealClock
	ctx context.Context
}

// After implements clock.Clock.
func (c endingClock) After(d time.Duration) <-chan time.Time {
	fired := make(chan time.Time, 1)
	timer := time.NewTimer(d)
	go func() {
		defer timer.Stop()
		select {
		case now := <-timer.C:
			fired <- now
		case <-c.ctx.Done():
			fired <- time.Now()
		}
	}()
	return fired
}
