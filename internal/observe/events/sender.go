// SPDX-License-Identifier: Apache-2.0

package events

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
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
	// retryPeriod is the pause after a failure, and retries the number of further
	// attempts, as in client-go.
	retryPeriod = 10 * time.Second
	retries     = 12

	// countPeriod is the least time between two requests about one series.
	countPeriod = time.Minute
)

// The maximum numbers of series: on all Services, on those of one namespace, and on one. Who may write
// Services can cause any number of them. Further Events are in the log only. Those on the Node are
// as few as their reasons.
const (
	maxSeries    = 1000
	perNamespace = 100
	perService   = 5
)

// sender sends Events to an API server, one at a time. Events that are alike become one
// Event with a count.
type sender struct {
	client   rest.Interface
	instance string
	wake     chan struct{} // has an element when there is something to send

	mu     sync.Mutex
	series map[seriesKey]*series
}

// seriesKey is what Events of one series have in common.
type seriesKey struct {
	about        corev1.ObjectReference
	kind, reason string
	note         string // only on Services, where each problem is a series of its own
}

type series struct {
	event    *eventsv1.Event // immutable, as it may be being sent
	note     string          // of the last repetition
	created  bool            // the API server has the Event
	failures int             // in a row
	repeats  int
	reported int // repeats that the API server knows of
	last     time.Time
	nextTry  time.Time
}

func newSender(client rest.Interface, instance string) *sender {
	return &sender{client: client, instance: instance, wake: make(chan struct{}, 1), series: map[seriesKey]*series{}}
}

func (s *sender) record(about corev1.ObjectReference, kind, reason, note string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	key := seriesKey{about: about, kind: kind, reason: reason}
	if about.Kind == "Service" {
		key.note = note
	}
	if known := s.series[key]; known != nil {
		known.repeats++
		known.note, known.last = note, now
	} else if s.hasRoom(about) {
		s.series[key] = &series{event: s.event(key, note, now), note: note, last: now}
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// hasRoom reports whether there may be another series.
func (s *sender) hasRoom(about corev1.ObjectReference) bool {
	if about.Kind != "Service" {
		return true
	}
	all, near, same := 0, 0, 0
	for key := range s.series {
		if key.about.Kind != about.Kind {
			continue
		}
		all++
		if key.about.Namespace == about.Namespace {
			near++
		}
		if key.about == about {
			same++
		}
	}
	return all < maxSeries && near < perNamespace && same < perService
}

func (s *sender) event(key seriesKey, note string, now time.Time) *eventsv1.Event {
	unique := uint64(now.UnixNano())
	// All nodes record these. With one name, the API server accepts the Event of one of them.
	if key.reason == InvalidService || key.reason == FrontendContested || key.reason == EndpointUnanswered {
		hash := fnv.New64a()
		fmt.Fprintf(hash, "%s %s", key.reason, note)
		unique = hash.Sum64()
	}
	// The API allows names of 253 bytes, 17 of which are for the number.
	name := strings.TrimRight(key.about.Name[:min(len(key.about.Name), 253-17)], "-.")
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: cmp.Or(key.about.Namespace, metav1.NamespaceDefault), Name: fmt.Sprintf("%s.%x", name, unique)},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: reporter,
		ReportingInstance:   s.instance[:min(len(s.instance), 128)],
		Action:              actionOf(key.reason),
		Reason:              key.reason,
		Regarding:           key.about,
		Note:                note,
		Type:                key.kind,
	}
}

// run sends Events until stop is closed, and then once more those that are pending.
func (s *sender) run(ctx context.Context, stop <-chan struct{}) {
	timer := time.NewTicker(retryPeriod / 2)
	defer timer.Stop()
	for stopped := false; !stopped; {
		select {
		case <-stop:
			stopped = true
		case <-s.wake:
		case <-timer.C:
		}
		for key, due := range s.due(time.Now()) {
			s.send(ctx, key, due)
		}
	}
}

// due returns the series that have something to send now, and removes those that have
// ended. The note of an Event is immutable, so a repetition with another note becomes a
// new Event.
func (s *sender) due(now time.Time) map[seriesKey]*series {
	s.mu.Lock()
	defer s.mu.Unlock()
	due := map[seriesKey]*series{}
	for key, one := range s.series {
		const seriesEnd = 6 * time.Minute // the quiet time that ends a series (KEP-383)
		switch unsent := !one.created || one.repeats > one.reported; {
		case one.failures > retries, !unsent && now.Sub(one.last) > seriesEnd:
			delete(s.series, key)
		case unsent && !now.Before(one.nextTry):
			if one.note != one.event.Note {
				one.event = s.event(key, one.note, one.last)
				one.created, one.repeats, one.reported = false, 0, 0
			}
			due[key] = one
		}
	}
	return due
}

func (s *sender) send(ctx context.Context, key seriesKey, one *series) {
	s.mu.Lock()
	event, created, repeats, last := one.event, one.created, one.repeats, one.last
	s.mu.Unlock()
	var err error
	if created {
		err = s.count(ctx, event, repeats, last)
	} else {
		err = s.client.Post().Namespace(event.Namespace).Resource("events").Body(event).Do(ctx).Error()
	}
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	log, now := klog.FromContext(ctx), time.Now()
	switch {
	case err == nil:
		if created {
			one.reported = repeats
		}
		one.created, one.failures = true, 0
		one.nextTry = now.Add(countPeriod)
	case created || rejected(err): // a repetition will be a new Event
		log.V(2).Info("API server rejected an Event", "event", key.reason, "reason", err.Error())
		delete(s.series, key)
	default:
		log.V(2).Info("Could not send an Event, will try again", "event", key.reason, "reason", err.Error())
		one.failures++
		one.nextTry = now.Add(retryPeriod)
	}
}

func rejected(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err)
}

func (s *sender) count(ctx context.Context, event *eventsv1.Event, repeats int, last time.Time) error {
	patch, err := json.Marshal(map[string]any{
		"series": eventsv1.EventSeries{Count: int32(repeats + 1), LastObservedTime: metav1.NewMicroTime(last)},
	})
	if err != nil {
		return err
	}
	return s.client.Patch(types.MergePatchType).Namespace(event.Namespace).Resource("events").Name(event.Name).Body(patch).Do(ctx).Error()
}
