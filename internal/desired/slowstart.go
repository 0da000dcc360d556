// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// AnnotationSlowStart of a Service is a time, such as 60s. While an endpoint has been ready for less, its
// weight is lower.
const AnnotationSlowStart = "slipstream.io/slow-start"

// warmSteps are the weights, in tenths, of an endpoint that became ready a short time ago, each for an equal part of
// the time. They are few, as a Maglev table is written again with each.
var warmSteps = [...]uint8{1, 3, 5, 8}

// maxSlowStart is the longest time that AnnotationSlowStart may have, and stepPeriod how often endpoints are looked at.
const (
	maxSlowStart = time.Hour
	stepPeriod   = time.Second
)

// warming is an endpoint that became ready a short time ago.
type warming struct {
	since  time.Time
	tenths uint8 // of its weight
}

// slowStart parses AnnotationSlowStart.
func (s *State) slowStart(in *corev1.Service) time.Duration {
	value := in.Annotations[AnnotationSlowStart]
	if value == "" {
		return 0
	}
	d, err := time.ParseDuration(value)
	if err == nil && (d < stepPeriod || d > maxSlowStart) {
		err = errors.New("not a time from 1s to 1h: " + value)
	}
	if err != nil {
		s.serviceProblem(in, "metadata.annotations["+AnnotationSlowStart+"]", err.Error())
		return 0
	}
	return d
}

// Advance says what time it is. Endpoints that are ready before the first call have their full weight. It reports
// whether weights change, for which it looks once in a second.
func (s *State) Advance(now time.Time) (changed bool) {
	s.now = now
	if len(s.warming) == 0 || now.Sub(s.stepped) < stepPeriod {
		return false
	}
	s.stepped = now
	for e := range s.warming {
		differ := false
		for b, w := range e.warming {
			part := e.port.service.slowStart() / time.Duration(len(warmSteps))
			switch step := int(now.Sub(w.since) / max(part, 1)); {
			case step >= len(warmSteps):
				delete(e.warming, b)
				differ = true
			case step > 0 && warmSteps[step] != w.tenths:
				e.warming[b] = warming{w.since, warmSteps[step]}
				differ = true
			}
		}
		if differ {
			s.markDirty(e)
			changed = true
		}
	}
	return changed
}

// Warming reports whether there are endpoints that became ready a short time ago.
func (s *State) Warming() bool { return len(s.warming) > 0 }

func (svc *service) slowStart() time.Duration {
	if svc.spec == nil {
		return 0
	}
	return svc.spec.slowStart
}

// warm notes whether an entry is ready, when it is reported.
func (e *endpoints) warm(en *entry, now time.Time) {
	usable := en.listed > 0 && !e.gone && en.cond.class() == usable
	if !en.flags.set(wasUsable, usable) {
		return
	}
	delete(e.warming, en.backend)
	if usable && e.port.service.slowStart() > 0 && !now.IsZero() {
		if e.warming == nil {
			e.warming = map[Backend]warming{}
		}
		e.warming[en.backend] = warming{now, warmSteps[0]}
	}
}

// followWarming records whether there are entries that became ready a short time ago.
func (s *State) followWarming(e *endpoints) {
	warming := len(e.warming) > 0 && !e.gone && e.port.service.slowStart() > 0
	if put(s.warming, e, warming); !warming {
		e.warming = nil
	}
}

// lowerWarming lowers the weights of backends that became ready a short time ago. It multiplies all weights if that
// is necessary for whole numbers.
func (e *endpoints) lowerWarming(weights map[Backend]uint64) {
	unit := uint64(1)
	for b, w := range e.warming {
		if weights[b]*uint64(w.tenths)%10 != 0 {
			unit = 10
		}
	}
	for b, weight := range weights {
		tenths := uint64(10)
		if w, ok := e.warming[b]; ok {
			tenths = uint64(w.tenths)
		}
		weights[b] = weight * unit * tenths / 10
	}
}
