// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"time"

	"github.com/prometheus/procfs"
	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/cluster"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Slipstream is a desired state and a dataplane, driven as package proxy drives them. Its
// exported methods are steps of the measurement, called by the parent process.
type Slipstream struct {
	options  Options
	cluster  *cluster.Cluster
	state    *desired.State
	backend  dataplane.Dataplane
	profiles map[string]int // written so far, by step
}

// Open prepares everything.
func (s *Slipstream) Open(o *Options, _ *struct{}) error {
	if modes[o.Mode] == nil {
		return fmt.Errorf("no mode %q", o.Mode)
	}
	proxy.LimitGarbage() // as 'slipstream run' does
	s.options, s.cluster, s.profiles = *o, o.newCluster(), map[string]int{}
	return nil
}

func (s *Slipstream) close() error {
	if s.backend == nil {
		return nil
	}
	return s.backend.Close()
}

// Cold is a cold start, and the memory that it takes.
func (s *Slipstream) Cold(_ int, all *bench.Samples) error {
	return s.profiled("cold", func() error {
		// The kernel counts the peak (VmHWM) from here.
		if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
			return fmt.Errorf("reset of the peak of memory: %w", err)
		}
		if err := s.program(coldStart, *all); err != nil {
			return err
		}
		top, err := bench.Memory(os.Getpid())
		if err != nil {
			return err
		}
		m, heap, err := rest()
		all.Add(peakCold, float64(top.VmHWM))
		all.Add("rss_cold_start", float64(m.VmRSS))
		all.Add("rss_file_cold_start", float64(m.RssFile))
		all.Add("heap_cold_start", heap)
		return errors.Join(err, s.profileHeap())
	})
}

// Restart programs everything again, as a new process would. The memory of the old one is
// given back before.
func (s *Slipstream) Restart(_ int, all *bench.Samples) error {
	return s.profiled("restart", func() error {
		if err := s.close(); err != nil {
			return err
		}
		s.state, s.backend = nil, nil
		debug.FreeOSMemory()
		return s.program(restart, *all)
	})
}

// program takes the whole cluster from objects to the kernel.
func (s *Slipstream) program(name string, all bench.Samples) (err error) {
	var state time.Duration
	measured := func(took *time.Duration, f func()) {
		start := time.Now()
		f()
		*took += time.Since(start)
	}
	measured(&state, func() {
		s.backend, err = modes[s.options.Mode](context.Background())
		s.newState()
	})
	if err != nil {
		return err
	}
	for e := range s.cluster.Events() {
		measured(&state, func() { s.take(e) })
	}
	var full *desired.Update
	var fullTook, kernel time.Duration
	measured(&fullTook, func() { full = s.state.Full() })
	if err := problem(full); err != nil {
		return err
	}
	var stats dataplane.Stats
	measured(&kernel, func() { stats, err = s.backend.Reconcile(context.Background(), &full.Change) })
	all.Add(name, float64(state+fullTook+kernel))
	all.Add(name+"_state", float64(state))
	all.Add(name+"_full", float64(fullTook))
	all.Add(name+"_kernel", float64(kernel))
	all.Add(name+elementsSuffix, float64(stats.Elements))
	all.Add(name+"_bytes", float64(stats.Bytes))
	return err
}

// newState is the state on a node of a cluster with a known range of pods' addresses.
func (s *Slipstream) newState() {
	config := desired.Config{NodeName: cluster.LocalNode}
	config.DetectLocal.CIDRs = []netip.Prefix{cluster.IPv4.Pods, cluster.IPv6.Pods}
	s.state = desired.New(config)
	s.state.SetNodeAddresses([]netip.Addr{cluster.IPv4.Node, cluster.IPv6.Node})
}

// take hands an event to the state, as proxy.Proxy does.
func (s *Slipstream) take(e source.Event) {
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

// problem makes an error of a contradiction among made-up objects.
func problem(c *desired.Update) error {
	if len(c.Problems) > 0 {
		return fmt.Errorf("made-up objects: %w", c.Problems[0])
	}
	return nil
}

const (
	// chunkObjects is about how many objects are made before changes are measured with
	// them, so that making them is not measured, and takes little memory.
	chunkObjects = 50

	// seriesLimit bounds each kind of change in each round.
	seriesLimit = 4 * time.Second
)

// Changes makes n changes of each kind, and a burst.
func (s *Slipstream) Changes(n int, all *bench.Samples) error {
	c := s.cluster
	for _, kind := range []struct {
		name string
		do   func() error
	}{
		{"replace", func() error {
			_, err := s.series(endpointReplaced, c.ReplaceEndpoint, n, time.Now().Add(seriesLimit), *all)
			return err
		}},
		{"endpoints", func() error {
			return s.pairs(endpointRemoved, c.RemoveEndpoint, endpointAdded, c.AddEndpoint, n, *all)
		}},
		{"services", func() error {
			return s.pairs(serviceRemoved, c.RemoveService, serviceAdded, c.AddService, n, *all)
		}},
		{"burst", func() error { return s.burst(*all) }},
	} {
		if n == 0 && kind.name != "burst" {
			continue
		}
		if err := s.profiled(kind.name, kind.do); err != nil {
			return err
		}
	}
	return nil
}

// series measures one kind of change n times, fewer if the deadline passes, but once at
// least. It returns how often.
func (s *Slipstream) series(name string, next func() []source.Event, n int, deadline time.Time, all bench.Samples) (done int, err error) {
	var cpu time.Duration
	for done < n && (done == 0 || time.Now().Before(deadline)) {
		var chunk [][]source.Event
		for objects := 0; objects < chunkObjects && done+len(chunk) < n; {
			events := next()
			chunk = append(chunk, events)
			objects += len(events)
		}
		before := cpuTime()
		for _, events := range chunk {
			if err := s.change(name, events, all); err != nil {
				return done, err
			}
		}
		cpu += cpuTime() - before
		done += len(chunk)
	}
	all.Add(name+cpuSuffix, float64(cpu)/float64(done))
	return done, nil
}

// pairs measures two kinds of changes of which the second makes up for the first, in
// turns, so that the cluster keeps its size.
func (s *Slipstream) pairs(first string, do func() []source.Event, second string, undo func() []source.Event, n int, all bench.Samples) error {
	deadline := time.Now().Add(seriesLimit)
	for done := 0; done < n && (done == 0 || time.Now().Before(deadline)); {
		k, err := s.series(first, do, min(n-done, max(1, s.cluster.Live()/2), chunkObjects), deadline, all)
		if err != nil {
			return err
		}
		if _, err := s.series(second, undo, k, time.Now().Add(time.Hour), all); err != nil {
			return err
		}
		done += k
	}
	return nil
}

// change takes one change from its objects to the kernel.
func (s *Slipstream) change(name string, events []source.Event, all bench.Samples) error {
	start := time.Now()
	for _, e := range events {
		s.take(e)
	}
	change := s.state.Change()
	stats, err := s.backend.Apply(context.Background(), &change.Change)
	all.Add(name, float64(time.Since(start)))
	all.Add(name+elementsSuffix, float64(stats.Elements))
	return errors.Join(err, problem(change))
}

// burst measures many changes that are programmed as one. Making the objects is not
// measured.
func (s *Slipstream) burst(all bench.Samples) error {
	var took time.Duration
	for range burstChanges {
		events := s.cluster.ReplaceEndpoint()
		start := time.Now()
		for _, e := range events {
			s.take(e)
		}
		took += time.Since(start)
	}
	start := time.Now()
	change := s.state.Change()
	stats, err := s.backend.Apply(context.Background(), &change.Change)
	all.Add(burst, float64(took+time.Since(start)))
	all.Add(burst+elementsSuffix, float64(stats.Elements))
	return errors.Join(err, problem(change))
}

// Memory is the peak of everything, and what is left at rest.
func (s *Slipstream) Memory(_ int, all *bench.Samples) error {
	top, err := bench.Memory(os.Getpid())
	if err != nil {
		return err
	}
	m, _, err := rest()
	all.Add("peak_rss", float64(top.VmHWM))
	all.Add("rss", float64(m.VmRSS))
	return err
}

// Verify compares what the kernel has with what it should have.
func (s *Slipstream) Verify(_ int, _ *bench.Samples) error {
	r, ok := s.backend.(dataplane.Reader)
	if !ok {
		return errors.New("this dataplane cannot read the kernel's rules")
	}
	d, err := dataplane.Compare(context.Background(), r, s.cluster.Content())
	if err == nil && d != "" {
		err = fmt.Errorf("the kernel does not have what was meant: %.300s", d)
	}
	return err
}

// rest gives back free memory, and measures the memory and the reachable objects, in bytes.
func rest() (m procfs.ProcStatus, heap float64, err error) {
	debug.FreeOSMemory()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	m, err = bench.Memory(os.Getpid())
	return m, float64(stats.HeapAlloc), err
}

// cpuTime is the processor time, user and system, that this process has used, and commands
// that it has run. The kernel's later work on its own threads is not included.
func cpuTime() (sum time.Duration) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err == nil {
			sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return sum
}

// profiled does a step, with a CPU profile of it if there is a directory for profiles.
// Repeated steps have files of their own, which "go tool pprof" adds up.
func (s *Slipstream) profiled(step string, do func() error) error {
	if s.options.ProfileDir == "" {
		return do()
	}
	s.profiles[step]++
	f, err := os.Create(filepath.Join(s.options.ProfileDir, fmt.Sprintf("%s-%d.cpu.pprof", step, s.profiles[step])))
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return errors.Join(err, f.Close())
	}
	err = do()
	pprof.StopCPUProfile()
	return errors.Join(err, f.Close())
}

// profileHeap writes a profile of the reachable objects.
func (s *Slipstream) profileHeap() error {
	if s.options.ProfileDir == "" {
		return nil
	}
	f, err := os.Create(filepath.Join(s.options.ProfileDir, "heap.pprof"))
	if err != nil {
		return err
	}
	return errors.Join(pprof.Lookup("heap").WriteTo(f, 0), f.Close())
}
