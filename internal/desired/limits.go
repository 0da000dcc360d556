// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Annotations that limit the new connections of a Service. Each node limits those that it gets.
const (
	// AnnotationMaxConnections is how many connections a Service may have at once,
	// AnnotationMaxPerClient how many a client's address may have.
	AnnotationMaxConnections = "slipstream.io/max-connections"
	AnnotationMaxPerClient   = "slipstream.io/max-connections-per-client"

	// AnnotationRatePerClient is how many new ones a client's address may have: 50/s or 50/m.
	AnnotationRatePerClient = "slipstream.io/connection-rate-per-client"

	// AnnotationLimitAction is what happens to others: refuse (the default) or drop.
	AnnotationLimitAction = "slipstream.io/limit-action"
)

// MostConnections and MostRate are the largest limits. For a new connection, the kernel walks the list of
// those that count (docs/services.md has measurements).
const (
	MostConnections = 10000
	MostRate        = 10000
)

// MaxLimits is how many different limits there may be, and maxLimitsOf how many of them a namespace may have.
// Those of two namespaces differ.
const MaxLimits, maxLimitsOf = 32, 8

// Limits are those of a Service. It is comparable.
type Limits struct {
	Connections, PerClient uint32 // at once; 0 without a limit
	Rate                   uint32 // of a client, for each Unit; 0 without a limit
	Unit                   byte   // s or m
	Drop                   bool   // what is beyond; else it is refused
}

// String describes the limits in words.
func (l Limits) String() string {
	var all []string
	if l.Connections > 0 {
		all = append(all, fmt.Sprintf("%d connections", l.Connections))
	}
	if l.PerClient > 0 {
		all = append(all, fmt.Sprintf("%d of a client", l.PerClient))
	}
	if l.Rate > 0 {
		all = append(all, fmt.Sprintf("%d/%c new ones of a client", l.Rate, l.Unit))
	}
	if len(all) == 0 {
		return ""
	}
	beyond := map[bool]string{true: "dropped", false: "refused"}[l.Drop]
	return strings.Join(all, ", ") + " at most on this node; others are " + beyond
}

// limits parses the annotations of a Service.
func (s *State) limits(in *corev1.Service) (l Limits) {
	problem := func(annotation, reason string) {
		s.serviceProblem(in, "metadata.annotations["+annotation+"]", reason)
	}
	number := func(annotation, value string, most uint64) uint32 {
		n, err := strconv.ParseUint(value, 10, 32)
		if err != nil || n < 1 || n > most {
			problem(annotation, fmt.Sprintf("not a number from 1 to %d: %s", most, in.Annotations[annotation]))
			return 0
		}
		return uint32(n)
	}
	if value := in.Annotations[AnnotationMaxConnections]; value != "" {
		l.Connections = number(AnnotationMaxConnections, value, MostConnections)
	}
	if value := in.Annotations[AnnotationMaxPerClient]; value != "" {
		l.PerClient = number(AnnotationMaxPerClient, value, MostConnections)
	}
	if value := in.Annotations[AnnotationRatePerClient]; value != "" {
		rate, unit, _ := strings.Cut(value, "/")
		if len(unit) != 1 || !strings.Contains("sm", unit) {
			problem(AnnotationRatePerClient, "not a rate such as 50/s or 50/m: "+value)
		} else if l.Rate = number(AnnotationRatePerClient, rate, MostRate); l.Rate > 0 {
			l.Unit = unit[0]
		}
	}
	switch value := in.Annotations[AnnotationLimitAction]; value {
	case "", "refuse":
	case "drop":
		l.Drop = l != Limits{}
	default:
		problem(AnnotationLimitAction, "neither refuse nor drop: "+value)
	}
	if s.config.NoLimits && l != (Limits{}) {
		for _, annotation := range []string{AnnotationMaxConnections, AnnotationMaxPerClient, AnnotationRatePerClient} {
			if in.Annotations[annotation] != "" {
				problem(annotation, "this proxy mode does not limit connections; nftables mode does")
			}
		}
		return Limits{}
	}
	return l
}

// setLimits notes that a Service has another spec.
func (s *State) setLimits(svc *service, old *serviceSpec) {
	had, has := old != nil && old.limits != Limits{}, svc.spec != nil && svc.spec.limits != Limits{}
	if !had && !has || had && has && old.limits == svc.spec.limits && old.created == svc.spec.created {
		return
	}
	svc.unlimited, s.limitsDiffer = false, true
	put(s.limited, svc, has)
}

// placeLimits decides, before a change, which Services have their limits: the oldest, if there is no room for all.
func (s *State) placeLimits() {
	if !s.limitsDiffer {
		return
	}
	s.limitsDiffer = false
	type place struct {
		namespace string
		Limits
	}
	places, of := map[place]bool{}, map[string]int{}
	for _, svc := range slices.SortedFunc(maps.Keys(s.limited), func(a, b *service) int {
		return cmp.Or(cmp.Compare(a.spec.created, b.spec.created), cmp.Compare(a.name.String(), b.name.String()))
	}) {
		p := place{svc.name.Namespace, svc.spec.limits}
		if !places[p] && len(places) < MaxLimits && of[p.namespace] < maxLimitsOf {
			places[p] = true
			of[p.namespace]++
		}
		if svc.unlimited != places[p] {
			continue
		}
		if svc.unlimited = !places[p]; svc.unlimited {
			s.problems = append(s.problems, ProblemOf(svc.name, "metadata.annotations", fmt.Sprintf(
				"connections are not limited: older Services have %d other limits, %d of them in this namespace", len(places), of[p.namespace])))
		}
		s.dirtyClaims(svc)
	}
}

// limits are those that the Service has in fact.
func (svc *service) limits() Limits {
	if svc.unlimited {
		return Limits{}
	}
	return svc.spec.limits
}
