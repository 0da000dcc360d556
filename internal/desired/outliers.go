// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// AnnotationOutliers of a Service is [EjectOutliers] or [ReportOutliers]: endpoints that do not answer get no new
// connections, or are only reported.
const (
	AnnotationOutliers = "slipstream.io/outlier-detection"
	EjectOutliers      = "on"
	ReportOutliers     = "report"
)

// Target is a backend, and the protocol of its clients.
type Target struct {
	Protocol
	Backend
}

// Handshake says how a backend answers to clients of this node.
type Handshake struct {
	Namespace string      // of the Service
	Frontend  FrontendKey // the clients' destination
	Backend   Backend
	Failing   bool // the last ones were not answered; otherwise one was
}

// detection returns the value of AnnotationOutliers; "" without a valid one.
func (s *State) detection(in *corev1.Service) string {
	value, field := in.Annotations[AnnotationOutliers], "metadata.annotations["+AnnotationOutliers+"]"
	switch {
	case value == "":
	case value == EjectOutliers || value == ReportOutliers:
		return value
	default:
		s.serviceProblem(in, field, "not on or report: "+value)
	}
	return ""
}

func (e *endpoints) detection() string {
	if e.gone || e.port.service.spec == nil || e.port.protocol == SCTP {
		return ""
	}
	return e.port.service.spec.detection
}

// Detecting reports whether there are Services with [AnnotationOutliers].
func (s *State) Detecting() bool { return len(s.detecting) > 0 }

// DetectionOf returns the detection of a ready backend of a frontend, and the frontend's Service; nothing without.
func (s *State) DetectionOf(to FrontendKey, b Backend) (detection string, service types.NamespacedName) {
	if !s.Detecting() {
		return "", service
	}
	if e := s.endpointsAt(to); e != nil && e.detection() != "" {
		if i := e.find(b); i >= 0 && e.entries[i].listed > 0 && e.entries[i].cond.class() == usable {
			return e.detection(), e.port.service.name
		}
	}
	return "", service
}

// Silent says whether an endpoint does not answer clients of a namespace's Services. Pools of those with
// [EjectOutliers] leave it out, if they can.
func (s *State) Silent(namespace string, t Target, silent bool) {
	here := s.silent[namespace]
	if here == nil {
		here = map[Target]int{}
		s.silent[namespace] = here
	}
	if delete(here, t); silent {
		s.silences++
		here[t] = s.silences
	} else if len(here) == 0 {
		delete(s.silent, namespace)
	}
	for e := range s.detecting {
		if e.port.service.name.Namespace == namespace && e.port.protocol == t.Protocol && e.find(t.Backend) >= 0 {
			s.markDirty(e)
		}
	}
}

// anySilent reports whether entries may be silent. With few entries, eject looks at them itself.
func (e *endpoints) anySilent(s *State) bool {
	here := s.silent[e.port.service.name.Namespace]
	if len(here) >= len(e.entries) {
		return len(here) > 0
	}
	for t := range here {
		if e.port.protocol == t.Protocol && e.find(t.Backend) >= 0 {
			return true
		}
	}
	return false
}

// eject decides which silent endpoints a pool leaves out: at most half of those that it would take, the first ones.
func (p *pool) eject(s *State) (changed bool) {
	e, former := p.of, p.ejected
	since := func(b Backend) int { return s.silent[e.port.service.name.Namespace][Target{e.port.protocol, b}] }
	p.ejected = nil
	if e.detection() == EjectOutliers && e.anySilent(s) {
		n := 0
		var silent []Backend
		for i := range e.entries {
			if en := &e.entries[i]; p.takes(en) {
				if n++; since(en.backend) > 0 {
					silent = append(silent, en.backend)
				}
			}
		}
		slices.SortFunc(silent, func(a, b Backend) int { return cmp.Compare(since(a), since(b)) })
		p.ejected = map[Backend]bool{}
		for _, b := range silent[:min(len(silent), n/2)] {
			if p.ejected[b] = true; !former[b] {
				e.unanswered = append(e.unanswered, b)
			}
		}
	}
	return !maps.Equal(former, p.ejected)
}

// unansweredFlows appends the connections without an answer to endpoints that pools have just left out, and all flows of UDP to
// them. Their clients are to send their next packet to another endpoint.
func (s *State) unansweredFlows(all []StaleFlows, e *endpoints) []StaleFlows {
	stale := StaleFlows{Protocol: e.port.protocol, Backends: e.unanswered}
	if e.unanswered = nil; len(stale.Backends) > 0 {
		stale.Frontends = s.frontendsOf(e)
	}
	if len(stale.Frontends) == 0 { // all connections to Backends would be stale
		return all
	}
	return append(all, stale)
}
