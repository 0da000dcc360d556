// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// Periods of a sender.
const (
	// retryPeriod is how long after a failure an Event is tried again, and
	// retries how often, as client-go has it.
	retryPeriod = 10 * time.Second
	retries     = 12

	// countPeriod is how often at most an Event is told to have happened again.
	countPeriod = time.Minute

	// seriesEnd is after how long without it what happens again is another
	// Event (KEP-383).
	seriesEnd = 6 * time.Minute
)

// sender sends Events to an API server, one at a time. Of those that are alike it
// makes one, and counts.
type sender struct {
	client   rest.Interface
	instance string
	news     chan struct{} // has an element when there is something to send

	mu     sync.Mutex
	series map[alike]*series
}

// alike is what Events have in common that are counted as one.
type alike struct {
	about        corev1.ObjectReference
	kind, reason string
}

// series is an Event and how often it has happened again.
type series struct {
	event    *eventsv1.Event // not changed once it is being sent
	created  bool            // the API server has it
	tries    int             // that failed
	again    int             // times that it happened again
	counted  int             // of which the API server knows
	last     time.Time       // when it happened last
	notUntil time.Time       // nothing is sent of it until then
}

func newSender(client rest.Interface, instance string) *sender {
	return &sender{client: client, instance: instance, news: make(chan struct{}, 1), series: map[alike]*series{}}
}

// tell takes down what is to be sent.
func (s *sender) tell(about corev1.ObjectReference, kind, reason, note string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	key := alike{about, kind, reason}
	if old := s.series[key]; old != nil {
		old.again++
		old.last = now
	} else {
		s.series[key] = &series{event: s.event(key, note, now), last: now}
	}
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// event is the object.
func (s *sender) event(of alike, note string, now time.Time) *eventsv1.Event {
	namespace := of.about.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: eventName(of.about.Name, now)},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: reporter,
		ReportingInstance:   s.instance[:min(len(s.instance), 128)],
		Action:              actionOf(of.reason),
		Reason:              of.reason,
		Regarding:           of.about,
		Note:                note,
		Type:                of.kind,
	}
}

// eventName is a name that no other Event has, no longer than the API lets it be: 253
// bytes, of which 17 are the time's.
func eventName(about string, now time.Time) string {
	about = strings.TrimRight(about[:min(len(about), 253-17)], "-.")
	return fmt.Sprintf("%s.%x", about, now.UnixNano())
}

// run sends until ctx ends.
func (s *sender) run(ctx context.Context) {
	timer := time.NewTicker(retryPeriod / 2)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.news:
		case <-timer.C:
		}
		for key, one := range s.due(time.Now()) {
			s.send(ctx, key, one)
		}
	}
}

// due are those of which there is something to send now. It forgets those that have
// ended.
func (s *sender) due(now time.Time) map[alike]*series {
	s.mu.Lock()
	defer s.mu.Unlock()
	due := map[alike]*series{}
	for key, one := range s.series {
		switch unsent := !one.created || one.again > one.counted; {
		case one.tries > retries, !unsent && now.Sub(one.last) > seriesEnd:
			delete(s.series, key)
		case unsent && !now.Before(one.notUntil):
			due[key] = one
		}
	}
	return due
}

// send has the API server create an Event, or count that it has happened again.
func (s *sender) send(ctx context.Context, key alike, one *series) {
	s.mu.Lock()
	event, created, again, last := one.event, one.created, one.again, one.last
	s.mu.Unlock()
	var err error
	if created {
		err = s.count(ctx, event, again, last)
	} else {
		err = s.client.Post().Namespace(event.Namespace).Resource("events").Body(event).Do(ctx).Error()
	}
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	switch {
	case err == nil:
		if created {
			one.counted = again
		}
		one.created, one.tries = true, 0
		one.notUntil = now.Add(countPeriod)
	case created || refused(err): // it will be another Event when it happens again
		klog.V(2).ErrorS(err, "An Event was not taken", "reason", key.reason)
		delete(s.series, key)
	default:
		klog.V(2).ErrorS(err, "An Event could not be sent, will try again", "reason", key.reason)
		one.tries++
		one.notUntil = now.Add(retryPeriod)
	}
}

// refused says whether an API server has understood a request and does not want it.
func refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err)
}

// count tells that an Event has happened again.
func (s *sender) count(ctx context.Context, event *eventsv1.Event, again int, last time.Time) error {
	patch, err := json.Marshal(map[string]any{
		"series": eventsv1.EventSeries{Count: int32(again + 1), LastObservedTime: metav1.NewMicroTime(last)},
	})
	if err != nil {
		return err
	}
	return s.client.Patch(types.MergePatchType).Namespace(event.Namespace).Resource("events").Name(event.Name).Body(patch).Do(ctx).Error()
}

// wait returns when all Events have been sent or tried, or the time is over.
func (s *sender) wait(most time.Duration) {
	for end := time.Now().Add(most); s.waiting() && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
}

func (s *sender) waiting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.series {
		if !one.created && one.tries == 0 {
			return true
		}
	}
	return false
}
