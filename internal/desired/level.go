// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Loads counts the connections of this node, as implemented by load.Counter.
type Loads interface {
	// Of returns the load of a backend.
	Of(Protocol, Backend) Load

	// Changed returns the destinations of clients to which connections have begun or ended since the last call.
	Changed() []FrontendKey
}

// Load describes the connections of a backend. In its sums, what was some time ago counts less, by
// a factor of e for each [LoadMemory].
type Load struct {
	Open   int     // connections now
	Begun  float64 // number of connections
	Ended  float64 // number of connections that were served
	Failed float64 // number of connections that were refused, reset or not answered
	Held   float64 // time for which connections were open, in seconds of one connection
}

// LoadMemory is the time for which loads are remembered. LoadPeriod is the time between two calls
// of [State.LoadsChanged].
const (
	LoadMemory = 10 * time.Second
	LoadPeriod = 250 * time.Millisecond
)

// FollowsLoads reports whether there are Services with LeastConnections.
func (s *State) FollowsLoads() bool { return len(s.following) > 0 }

// LoadsKnown says whether connections are counted: err is why they are not. Until they are, backends of
// Services with LeastConnections are chosen at random. It reports whether that differs from before.
func (s *State) LoadsKnown(err error) (changed bool) {
	if (err == nil) == (s.uncounted == nil) {
		return false
	}
	s.uncounted = err
	told := map[*service]bool{}
	for e := range s.following {
		s.markDirty(e)
		if svc := e.port.service; svc.spec != nil && !told[svc] {
			told[svc] = true
			s.lacksLoads(svc.name, svc.spec)
		}
	}
	return true
}

// lacksLoads reports a Problem of a Service that asks for LeastConnections by itself while connections are not counted.
func (s *State) lacksLoads(name types.NamespacedName, spec *serviceSpec) {
	if s.uncounted != nil && spec.Algorithm == LeastConnections && s.config.Balancing.Algorithm != LeastConnections {
		s.problems = append(s.problems, ProblemOf(name, "metadata.annotations["+AnnotationScheduler+"]",
			"endpoints are chosen at random, as connections cannot be counted: "+s.uncounted.Error()))
	}
}

// LoadsChanged has the next Change follow the loads ([Config.Loads]) of such Services whose connections have begun or
// ended since the last call. It reports whether there are any. Other Services cost nothing.
func (s *State) LoadsChanged() (changed bool) {
	for _, key := range s.config.Loads.Changed() {
		if e := s.endpointsAt(key); e != nil && s.following[e] {
			s.markDirty(e)
			changed = true
		}
	}
	return changed
}

// endpointsAt returns the endpoints that answer at an address; nil if there are none.
func (s *State) endpointsAt(key FrontendKey) *endpoints {
	f := s.frontendAt(key)
	if f == nil {
		return nil
	}
	return f.claims[0].port.endpoints[FamilyOf(key.Addr())]
}

func (e *endpoints) followsLoads() bool {
	spec := e.port.service.spec
	return spec != nil && spec.Scheduler.Algorithm == LeastConnections
}

// levelWeights replaces the weights of backends by those that level their loads. former are the
// weights that were reported, except [DefaultWeight]. No backend gets more than twice its
// configured share of connections, or less than a step.
func levelWeights(l Loads, p Protocol, weights, former map[Backend]uint64) {
	backends := slices.SortedFunc(maps.Keys(weights), Backend.Compare)
	loads := make([]Load, len(backends))
	var sum Load
	total := 0.0
	unit := uint64(levelSteps) // such that the greatest step does not change a weight, if possible
	for i, b := range backends {
		loads[i] = l.Of(p, b)
		sum.Begun += loads[i].Begun
		sum.Ended += loads[i].Ended
		sum.Held += loads[i].Held
		sum.Open += loads[i].Open
		total += float64(weights[b])
		if weights[b]%levelSteps != 0 {
			unit = 1
		}
	}
	var durations, perWeight []float64
	for i, b := range backends {
		if w := float64(weights[b]); w > 0 {
			durations, perWeight = append(durations, loads[i].duration(&sum)), append(perWeight, float64(loads[i].Open)/w)
		}
	}
	usual, usualOpen := median(durations), median(perWeight)
	all := make([]candidate, len(backends))
	for i, b := range backends {
		l, w := &loads[i], float64(weights[b])
		// One that is quicker than most may be answering with errors. It gets no more for that: its connections are taken to
		// be as long and, the quicker it is the more, as many as those of most.
		duration, open := l.duration(&sum), float64(l.Open)
		if duration < usual {
			open += max(0, usualOpen*w-open) * (1 - duration/usual)
			duration = usual
		}
		c := candidateOf(w, open, duration)
		// One whose connections fail has few that are open. It is taken to be as loaded as all together,
		// for its weight, so that failures that all have alike change nothing.
		failing := l.Failed / (l.Failed + l.Ended + float64(l.Open) + 1)
		c.open += failing * float64(sum.Open*len(backends)) * w / max(total, 1)
		c.weight *= max(1-failing, 1.0/levelSteps)
		all[i] = c
	}
	steps := level(all, sum.Begun*LoadPeriod.Seconds()/LoadMemory.Seconds())
	for i, b := range backends {
		was, other := former[b]
		if !other {
			was = DefaultWeight
		}
		// A step up or down is mostly noise.
		if w := weights[b]; w > 0 {
			if was = was * unit / w; was > 0 && was <= levelSteps && steps[i] <= was+1 && was <= steps[i]+1 {
				steps[i] = was
			}
		}
	}
	limitSteps(steps, all)
	for i, b := range backends {
		weights[b] = weights[b] * steps[i] / unit
	}
}

// Until a backend has had more connections, and for longer, its connections are taken to be as long
// as the average of its pool. Of fewer connections that ended, even the pool knows nothing.
const (
	usualConnections = 2
	usualSeconds     = 0.1
	leastConnections = 0.01
)

// duration returns how long the connections of a backend are open on average, in seconds; 0 if even its pool knows nothing.
func (l *Load) duration(pool *Load) float64 {
	if pool.Ended < leastConnections || pool.Held == 0 {
		return 0
	}
	average := pool.Held / pool.Ended
	t := (l.Held + usualSeconds + usualConnections*average) / (l.Ended + usualSeconds/average + usualConnections)
	return min(max(t, 1e-3), 1e5)
}

// median returns the lower median, and sorts; 0 of nothing.
func median(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[(len(all)-1)/2]
}

// candidateOf returns a backend with a weight for [level]. If its connections take a time t (duration) on average, a
// share of exp(-period/t) of those that are open is still open after a period. Of those that begin during the period,
// the share that is open at its end follows. So a backend gets its weight divided by that share.
func candidateOf(weight, open, duration float64) candidate {
	if duration == 0 {
		return candidate{open, weight, weight}
	}
	periods := LoadPeriod.Seconds() / duration
	stay := -math.Expm1(-periods) / periods
	return candidate{open * math.Exp(-periods) / stay, weight / stay, weight}
}

// levelSteps is the greatest result of level, less with many backends (mostSteps). There are few
// steps, so that few slots change with an update. mostShare is how many times its configured share a candidate may get: all nodes find
// a new endpoint without connections at the same moment, and one that fails at once never has any.
const (
	levelSteps = 10
	mostShare  = 2
)

func mostSteps(backends int) int { return max(2, min(levelSteps, 1000/max(backends, 1))) }

// candidate is a backend of a pool whose choice follows loads.
type candidate struct {
	open   float64 // connections that it has now
	weight float64 // by which open ones are levelled; 0 without a share
	share  float64 // configured weight
}

// level returns the steps, from 1 to levelSteps, by which the shares of candidates are multiplied
// until the next update, when so many connections are expected to be open. New connections go to
// the least loaded candidates first, until all have the same load per weight.
func level(all []candidate, expected float64) []uint64 {
	var order []int
	total := 0.0
	for i, c := range all {
		if c.share > 0 {
			order = append(order, i)
			total += c.share
		}
	}
	slices.SortStableFunc(order, func(i, j int) int {
		return cmp.Compare(all[i].open*all[j].weight, all[j].open*all[i].weight)
	})
	expected = max(expected, float64(len(order)))
	gets := make([]float64, len(all))
	for left, full := expected, false; len(order) > 0 && !full; {
		load := leastLoad(all, order, left)
		before := len(order)
		order = slices.DeleteFunc(order, func(i int) bool {
			limit := mostShare * expected * all[i].share / total
			gets[i] = max(0, load*all[i].weight-all[i].open)
			if gets[i] <= limit {
				return false
			}
			gets[i], left = limit, left-limit
			return true
		})
		full = len(order) == before
	}
	highest := 0.0 // of a share of 1
	for i, c := range all {
		if c.share > 0 {
			gets[i] /= c.share
			highest = max(highest, gets[i])
		}
	}
	steps := make([]uint64, len(all))
	for i, n := range gets {
		steps[i] = 1
		if highest > 0 {
			steps[i] = max(1, uint64(n/highest*float64(mostSteps(len(all)))+0.5))
		}
	}
	return steps
}

// limitSteps lowers the highest steps to those at which no candidate gets more than mostShare times
// its share. Steps of 1 are.
func limitSteps(steps []uint64, all []candidate) {
	total := 0.0
	for _, c := range all {
		total += c.share
	}
	for most := uint64(mostSteps(len(all))); most > 1; most-- {
		sum := 0.0
		for i, c := range all {
			steps[i] = min(steps[i], most)
			sum += float64(steps[i]) * c.share
		}
		if float64(most)*total <= mostShare*sum {
			return
		}
	}
	for i := range steps {
		steps[i] = 1
	}
}

// leastLoad returns the load, in connections for a weight of 1, of the least loaded candidates after a
// number of connections has been added to them. order lists the candidates by their load.
func leastLoad(all []candidate, order []int, added float64) (load float64) {
	weight := 0.0
	for _, i := range order {
		c := all[i]
		if weight > 0 && c.open/c.weight >= added/weight {
			break
		}
		added, weight = added+c.open, weight+c.weight
	}
	return added / weight
}
