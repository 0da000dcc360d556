// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime/debug"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"github.com/slipstream-proxy/slipstream/internal/source"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// slipstream is Slipstream, measured: a desired state and a backend, driven as
// package proxy drives them.
type slipstream struct {
	mode     mode
	cluster  *cluster
	profiler profiler

	state    *desired.State
	backend  dataplane.Dataplane
	peakCold int64
	restCold Rest
}

func newSlipstream(o *SyncOptions) (*slipstream, error) {
	m, ok := modes[o.Mode]
	if !ok {
		return nil, fmt.Errorf("no mode %q", o.Mode)
	}
	if err := m.probe(); err != nil {
		return nil, err
	}
	proxy.LimitGarbage() // as 'slipstream run' does
	return &slipstream{mode: m, cluster: newCluster(o), profiler: profiler{dir: o.ProfileDir}}, nil
}

func (s *slipstream) close() error {
	if s.backend == nil {
		return nil
	}
	return s.backend.Close()
}

func (s *slipstream) do(q request) (r reply, err error) {
	stop, err := s.profiler.cpu(q.Step)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	one := map[string]*samples{}
	switch q.Step {
	case stepCold:
		r.Program, err = s.cold()
	case stepRestart:
		r.Program, err = s.restart()
	case stepReplace:
		one[endpointReplaced], err = s.series(q, s.cluster.replaceEndpoint)
	case stepEndpoints:
		one[endpointRemoved], one[endpointAdded], err = s.pairs(q, s.cluster.removeEndpoint, s.cluster.addEndpoint)
	case stepServices:
		one[serviceRemoved], one[serviceAdded], err = s.pairs(q, s.cluster.removeService, s.cluster.addService)
	case stepBurst:
		one[burst], err = s.burst()
	case stepMemory:
		r.Memory, err = s.memory()
	case stepVerify:
		err = s.verify()
	default:
		err = fmt.Errorf("no step %q", q.Step)
	}
	r.Series = one
	return r, err
}

// cold is a cold start, and the memory that it takes.
func (s *slipstream) cold() (p *Programming, err error) {
	if err := resetPeak(); err != nil {
		return nil, err
	}
	if p, err = s.program(); err != nil {
		return nil, err
	}
	if s.peakCold, err = peak(); err != nil {
		return nil, err
	}
	if s.restCold, err = rest(); err != nil {
		return nil, err
	}
	return p, s.profiler.heap()
}

// restart is what a new process would do. What the old one held is given back
// before, as it would be by its end.
func (s *slipstream) restart() (*Programming, error) {
	if err := s.close(); err != nil {
		return nil, err
	}
	s.state, s.backend = nil, nil
	debug.FreeOSMemory()
	return s.program()
}

// program takes the whole cluster from objects to the kernel.
func (s *slipstream) program() (*Programming, error) {
	start := time.Now()
	b, err := s.mode.open(backendConfig())
	if err != nil {
		return nil, err
	}
	s.backend = b
	s.state = desired.New(s.cluster.stateConfig())
	s.state.SetNodeAddresses([]netip.Addr{ipv4.node, ipv6.node})
	stateTook := time.Since(start)
	for e := range s.cluster.events() {
		start := time.Now()
		s.take(e)
		stateTook += time.Since(start)
	}

	start = time.Now()
	full := s.state.Full()
	fullTook := time.Since(start)
	if err := problem(full); err != nil {
		return nil, err
	}

	start = time.Now()
	stats, err := s.backend.Reconcile(context.Background(), full)
	if err != nil {
		return nil, err
	}
	kernelTook := time.Since(start)
	return &Programming{
		TotalMS:  millis(stateTook + fullTook + kernelTook),
		StateMS:  millis(stateTook),
		FullMS:   millis(fullTook),
		KernelMS: millis(kernelTook),
		Elements: stats.Elements,
		Bytes:    stats.Bytes,
	}, nil
}

// take hands an event to the state, as proxy.Proxy does.
func (s *slipstream) take(e source.Event) {
	switch o := e.Object.(type) {
	case *corev1.Service:
		if e.Type == source.Delete {
			s.state.DeleteService(o.Namespace, o.Name)
		} else {
			s.state.SetService(o)
		}
	case *discoveryv1.EndpointSlice:
		if e.Type == source.Delete {
			s.state.DeleteEndpointSlice(o.Namespace, o.Name)
		} else {
			s.state.SetEndpointSlice(o)
		}
	}
}

// problem makes an error of a contradiction among generated objects.
func problem(c *desired.Change) error {
	if len(c.Problems) > 0 {
		return fmt.Errorf("generated objects: %w", c.Problems[0])
	}
	return nil
}

// chunkObjects is about how many objects are made before changes are measured
// with them, so that making them is not measured and they take little memory.
const chunkObjects = 50

// series measures one kind of change until there are enough repetitions or the
// time is up.
func (s *slipstream) series(q request, next func() []source.Event) (*samples, error) {
	all, deadline := &samples{}, time.Now().Add(q.Limit)
	for len(all.Took) < q.Repetitions && (len(all.Took) == 0 || time.Now().Before(deadline)) {
		var changes [][]source.Event
		for objects := 0; objects < chunkObjects && len(all.Took)+len(changes) < q.Repetitions; {
			events := next()
			changes = append(changes, events)
			objects += len(events)
		}
		if err := s.measure(all, changes); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// pairs measures two kinds of changes of which the second makes up for the
// first, turn by turn, so that the cluster keeps its size.
func (s *slipstream) pairs(q request, first, second func() []source.Event) (a, b *samples, err error) {
	a, b = &samples{}, &samples{}
	deadline := time.Now().Add(q.Limit)
	for len(a.Took) < q.Repetitions && (len(a.Took) == 0 || time.Now().Before(deadline)) {
		turn := q
		turn.Limit = time.Until(deadline)
		turn.Repetitions = min(q.Repetitions-len(a.Took), max(1, s.cluster.live()/2), chunkObjects)
		one, err := s.series(turn, first)
		if err != nil {
			return nil, nil, err
		}
		turn.Repetitions, turn.Limit = len(one.Took), time.Hour
		other, err := s.series(turn, second)
		if err != nil {
			return nil, nil, err
		}
		a.append(one)
		b.append(other)
	}
	return a, b, nil
}

// measure takes each change from its objects to the kernel.
func (s *slipstream) measure(all *samples, changes [][]source.Event) error {
	before := cpuTime()
	for _, events := range changes {
		start := time.Now()
		for _, e := range events {
			s.take(e)
		}
		change := s.state.Change()
		stats, err := s.backend.Apply(context.Background(), change)
		took := time.Since(start)
		if err := errors.Join(err, problem(change)); err != nil {
			return err
		}
		all.Took = append(all.Took, took)
		all.Elements = append(all.Elements, stats.Elements)
		all.Bytes = append(all.Bytes, stats.Bytes)
	}
	all.CPU += cpuTime() - before
	return nil
}

// burst measures many changes that are programmed as one. Objects are made one
// by one, outside of what is measured.
func (s *slipstream) burst() (*samples, error) {
	var took time.Duration
	for range burstChanges {
		events := s.cluster.replaceEndpoint()
		start := time.Now()
		for _, e := range events {
			s.take(e)
		}
		took += time.Since(start)
	}
	start := time.Now()
	change := s.state.Change()
	stats, err := s.backend.Apply(context.Background(), change)
	took += time.Since(start)
	return &samples{Took: []time.Duration{took}, Elements: []int{stats.Elements}, Bytes: []int{stats.Bytes}}, errors.Join(err, problem(change))
}

func (s *slipstream) memory() (*Memory, error) {
	top, err := peak()
	if err != nil {
		return nil, err
	}
	end, err := rest()
	return &Memory{PeakColdBytes: s.peakCold, PeakBytes: top, RestCold: s.restCold, Rest: end}, err
}

// verify compares what the kernel has with what was meant.
func (s *slipstream) verify() error {
	r, ok := s.backend.(dataplane.Reader)
	if !ok {
		return errors.New("this backend cannot read the kernel back")
	}
	d, err := dataplane.Compare(context.Background(), r, s.cluster.content())
	if err == nil && d != "" {
		err = fmt.Errorf("the kernel does not have what was meant: %.300s", d)
	}
	return err
}
