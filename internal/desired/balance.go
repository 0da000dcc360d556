// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Annotations that change how connections are spread over endpoints.
const (
	// AnnotationScheduler of a Service chooses the algorithm: one of [ParseScheduler], or
	// the IPVS scheduler where there are some (see [Config.Scheduler]).
	AnnotationScheduler = "slipstream.io/scheduler"

	// AnnotationWeight of an EndpointSlice is the weight of its endpoints, from 0 to
	// [DefaultWeight]. Endpoints with weight 0 get no new connections.
	AnnotationWeight = "slipstream.io/weight"

	// AnnotationLocalZone of a Service is the share, in percent, of connections that go to
	// endpoints in this node's zone.
	AnnotationLocalZone = "slipstream.io/local-zone-percent"
)

// DefaultWeight is the weight of an endpoint without [AnnotationWeight].
const DefaultWeight = 100

// Algorithm is how a backend is chosen for a new connection.
type Algorithm uint8

const (
	// Random chooses at random, in proportion to the weights.
	Random Algorithm = iota
	// RoundRobin takes the backends in turn, each as often as its weight says.
	RoundRobin
	// LeastConnections chooses at random, by weights that follow the connections of this node
	// that the backends have, and how long they take ([Config.Loads]).
	LeastConnections
	// Maglev looks up the client's address in a table that is the same on every node.
	Maglev
	// MaglevPort looks up the client's address and port.
	MaglevPort
)

// Hashes reports whether the algorithm has a table.
func (a Algorithm) Hashes() bool { return a >= Maglev }

// String is the algorithm as in [ParseScheduler].
func (a Algorithm) String() string {
	return [...]string{"random", "rr", "lc", "maglev", "maglev,maglev-port"}[a]
}

// Scheduler is how connections are spread over a Service's endpoints.
type Scheduler struct {
	Algorithm Algorithm
	Nearest   bool // among endpoints of this node if there are any, otherwise of its zone
}

// ParseScheduler parses the name of an algorithm, and flags after commas, with the names that
// IPVS has for them. "mh" without flags has mh-port, as in kube-proxy.
func ParseScheduler(text string) (s Scheduler, err error) {
	name, flags, _ := strings.Cut(text, ",")
	switch name {
	case "random":
	case "nearest":
		s.Nearest = true
	case "rr", "wrr":
		s.Algorithm = RoundRobin
	case "sh", "maglev":
		s.Algorithm = Maglev
	case "mh":
		if s.Algorithm = Maglev; flags == "" {
			s.Algorithm = MaglevPort
		}
	case "lc", "wlc":
		s.Algorithm = LeastConnections
	default:
		return s, fmt.Errorf("%q is none of random, rr, wrr, lc, wlc, sh, maglev, mh, nearest", name)
	}
	for flag := range strings.SplitSeq(flags, ",") {
		switch {
		case flags == "":
		case s.Algorithm.Hashes() && flag == name+"-port":
			s.Algorithm = MaglevPort
		case s.Algorithm.Hashes() && flag == name+"-fallback": // always so
		default:
			return Scheduler{}, fmt.Errorf("%q is not a flag of %s", flag, name)
		}
	}
	return s, nil
}

// schedule parses the annotations of a Service about its endpoints.
func (s *State) schedule(out *serviceSpec, in *corev1.Service) {
	out.Scheduler = s.config.Balancing
	if value := in.Annotations[AnnotationScheduler]; value != "" {
		var err error
		parsed, unknown := ParseScheduler(value)
		switch {
		case s.config.Scheduler != nil && !parsed.Nearest:
			out.scheduler, err = s.config.Scheduler(value, false)
		case unknown != nil:
			err = unknown
		case s.config.Supports != nil:
			err = s.config.Supports(parsed.Algorithm)
			fallthrough
		default:
			if err == nil {
				out.Scheduler = parsed
			}
		}
		if err != nil {
			s.serviceProblem(in, "metadata.annotations["+AnnotationScheduler+"]", err.Error())
		}
		s.lacksLoads(types.NamespacedName{Namespace: in.Namespace, Name: in.Name}, out)
	}
	if value := in.Annotations[AnnotationLocalZone]; value != "" {
		percent, err := parsePercent(value)
		if err != nil {
			s.serviceProblem(in, "metadata.annotations["+AnnotationLocalZone+"]", err.Error())
			return
		}
		out.policy.byZone, out.policy.localZone = !out.Nearest, percent
	}
}

// weightOf returns the weight of a slice's endpoints.
func (s *State) weightOf(in *discoveryv1.EndpointSlice) uint8 {
	value := in.Annotations[AnnotationWeight]
	if value == "" {
		return DefaultWeight
	}
	weight, err := parsePercent(value)
	if err != nil {
		s.addProblem(Problem{
			Object: "EndpointSlice " + in.Namespace + "/" + in.Name, Field: "metadata.annotations[" + AnnotationWeight + "]", Reason: err.Error(),
		})
		return DefaultWeight
	}
	return weight
}

func parsePercent(text string) (uint8, error) {
	n, err := strconv.ParseUint(text, 10, 8)
	if err != nil || n > 100 {
		return 0, errors.New("not a number from 0 to 100: " + text)
	}
	return uint8(n), nil
}

// Weight is a backend's share of a pool's new connections, relative to the other backends.
type Weight struct {
	Backend Backend
	Weight  uint64 // positive for one of the pool's backends at least
}

// weights returns the weights that differ from DefaultWeight, of all reported backends.
func (p *pool) weights(a Algorithm, over bool, loads Loads) map[Backend]uint64 {
	e := p.of
	spec := e.port.service.spec
	byZone := spec != nil && spec.policy.byZone && p.kind.scope() == Cluster
	level := loads != nil && a == LeastConnections
	if p.gone || over || e.tally.weighted == 0 && !byZone && !level && len(e.warming) == 0 {
		return nil
	}
	here := func(en *entry) int { return int(en.cond & inZone / inZone) }
	var sums [2]uint64 // of weights elsewhere, and in this zone
	for i := range e.entries {
		if en := &e.entries[i]; en.flags&p.kind.flag() != 0 {
			sums[here(en)] += uint64(en.weight)
		}
	}
	factors := [2]uint64{1, 1}
	if byZone && sums[0] > 0 && sums[1] > 0 {
		local := uint64(spec.policy.localZone)
		factors = [2]uint64{(100 - local) * sums[1], local * sums[0]}
	}
	all := map[Backend]uint64{}
	for i := range e.entries {
		if en := &e.entries[i]; en.flags&p.kind.flag() != 0 {
			all[en.backend] = cmp.Or(uint64(en.weight)*factors[here(en)], DefaultWeight) // 0 if the next Change removes the entry
		}
	}
	if len(e.warming) > 0 && e.port.service.slowStart() > 0 {
		e.lowerWarming(all)
	}
	if level {
		levelWeights(loads, e.port.protocol, all, p.weighted)
	}
	maps.DeleteFunc(all, func(_ Backend, w uint64) bool { return w == DefaultWeight })
	return all
}

// schedulesByWeight updates whether the scheduler of the frontends has to look at weights.
func (s *State) schedulesByWeight(e *endpoints) {
	spec := e.port.service.spec
	if e.gone || spec == nil || s.config.Scheduler == nil || e.weighted == (e.tally.weighted > 0 || spec.policy.byZone || spec.slowStart > 0) {
		return
	}
	e.weighted = !e.weighted
	s.dirtyClaimsOf(e)
}

// weigh adds the weights that differ from those of the last report, once the backends are reported.
func (p *pool) weigh(c *PoolChange, over bool, loads Loads) {
	now := p.weights(c.Algorithm, over, loads)
	for b, w := range now {
		if former, had := p.weighted[b]; !had || former != w {
			c.Weights = append(c.Weights, Weight{b, w})
		}
	}
	for b := range p.weighted {
		if _, still := now[b]; still {
			continue
		}
		if i := p.of.find(b); i >= 0 && p.of.entries[i].flags&p.kind.flag() != 0 {
			c.Weights = append(c.Weights, Weight{b, DefaultWeight})
		}
	}
	p.weighted = now
	if len(now) == 0 {
		p.weighted = nil
	}
}

// tables are the sizes of Maglev's tables, and up to how many backends each has; one backend needs
// none. With so few backends, a change of one moves at most 2 % of the clients needlessly. When the size changes,
// most clients move, so there are few sizes. The first two are only for [Config.MaxTable].
var tables = []struct{ slots, backends int }{{251, 0}, {1021, 0}, {4093, 10}, {16381, 100}, {65521, 1 << 31}}

// MaxTable is the largest size of a table by default, unless there are very many backends.
const MaxTable = 16381

// TableSizes are the possible values of [Config.MaxTable].
func TableSizes() (all []int) {
	for _, t := range tables {
		all = append(all, t.slots)
	}
	return all
}

// tableSize returns the number of slots of a table for a number of backends.
func (c *Config) tableSize(backends int) int {
	if backends <= 1 {
		return 1
	}
	for _, t := range tables {
		if backends <= t.backends || t.slots == cmp.Or(c.MaxTable, MaxTable) && 2*backends <= t.slots {
			return t.slots
		}
	}
	return 0
}

// backends returns the number of reported backends.
func (p *pool) backends() (n int) {
	for i := range p.of.entries {
		if p.of.entries[i].flags&p.kind.flag() != 0 {
			n++
		}
	}
	return n
}
