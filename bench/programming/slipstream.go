// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/prometheus/procfs"
	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/bench/cluster"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"golang.org/x/sys/unix"
)

// RunChild is the work of the process that [Options.Measure] starts: it measures Slipstream in its
// network namespace. options is the JSON of [Options]; the samples are written as JSON.
func RunChild(options string, out io.Writer) error {
	var o Options
	if err := json.Unmarshal([]byte(options), &o); err != nil {
		return fmt.Errorf("options: %w", err)
	}
	if modes[o.Mode] == nil {
		return fmt.Errorf("no mode %q", o.Mode)
	}
	proxy.LimitGarbage() // as 'slipstream run' does
	s := newSlipstream(&o)
	if err := errors.Join(s.measure(), s.close()); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(s.samples)
}

// slipstream is a desired state and a dataplane, called as package proxy calls them.
type slipstream struct {
	*Options
	cluster *cluster.Cluster
	state   *desired.State
	backend dataplane.Dataplane
	samples bench.Samples
}

func newSlipstream(o *Options) *slipstream {
	c := cluster.Config{Services: o.Services, Endpoints: o.Endpoints, External: o.External, Seed: 1}
	return &slipstream{Options: o, cluster: cluster.New(c), samples: bench.Samples{}}
}

func (s *slipstream) close() error {
	if s.backend == nil {
		return nil
	}
	return s.backend.Close()
}

func (s *slipstream) measure() error {
	ctx := context.Background() // the parent process kills this one
	bench.Quiet(ctx)
	if err := s.cold(); err != nil {
		return fmt.Errorf("cold start: %w", err)
	}
	bench.Quiet(ctx)
	if err := s.restart(); err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	for round := range rounds {
		bench.Quiet(ctx)
		n := s.Repetitions
		if err := s.changes(n*(round+1)/rounds - n*round/rounds); err != nil {
			return err
		}
	}
	top, err1 := bench.Memory(os.Getpid())
	m, _, err2 := rest()
	s.samples.Add("peak_rss", float64(top.VmHWM))
	s.samples.Add("rss", float64(m.VmRSS))
	return errors.Join(err1, err2)
}

func (s *slipstream) cold() error {
	// The kernel counts the peak (VmHWM) from here.
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		return fmt.Errorf("reset of the peak of memory: %w", err)
	}
	if err := s.program(coldStart); err != nil {
		return err
	}
	top, err1 := bench.Memory(os.Getpid())
	m, heap, err2 := rest()
	s.samples.Add(peakCold, float64(top.VmHWM))
	s.samples.Add("rss_cold_start", float64(m.VmRSS))
	s.samples.Add("rss_file_cold_start", float64(m.RssFile))
	s.samples.Add("heap_cold_start", heap)
	return errors.Join(err1, err2)
}

// restart programs everything again, as a new process would, after the memory of the old
// state has been freed.
func (s *slipstream) restart() error {
	if err := s.close(); err != nil {
		return err
	}
	s.state, s.backend = nil, nil
	debug.FreeOSMemory()
	return s.program(restart)
}

// program takes the whole cluster from objects to the kernel. Making the objects is not
// measured.
func (s *slipstream) program(name string) (err error) {
	ctx, begin := context.Background(), time.Now()
	if s.backend, err = modes[s.Mode](ctx); err != nil {
		return err
	}
	config := desired.Config{NodeName: cluster.LocalNode, IPVS: s.Mode == "ipvs"}
	config.DetectLocal.CIDRs = []netip.Prefix{cluster.Pods}
	s.state = desired.New(config)
	s.state.SetNodeAddresses([]netip.Addr{cluster.Node})
	state := time.Since(begin)
	for e := range s.cluster.Events() {
		begin = time.Now()
		proxy.ApplyEvent(s.state, e)
		state += time.Since(begin)
	}
	begin = time.Now()
	full := s.state.Full()
	fullTook := time.Since(begin)
	if err := problem(full); err != nil {
		return err
	}
	begin = time.Now()
	stats, err := s.backend.Reconcile(ctx, &full.Change)
	kernel := time.Since(begin)
	s.samples.Add(name, float64(state+fullTook+kernel))
	s.samples.Add(name+"_state", float64(state))
	s.samples.Add(name+"_full", float64(fullTook))
	s.samples.Add(name+"_kernel", float64(kernel))
	s.samples.Add(name+elementsSuffix, float64(stats.Elements))
	s.samples.Add(name+"_bytes", float64(stats.Bytes))
	return err
}

func problem(u *desired.Update) error {
	if len(u.Problems) > 0 {
		return fmt.Errorf("made-up objects: %w", u.Problems[0])
	}
	return nil
}

// chunkObjects is about how many objects are made before changes are measured with
// them, so that making them is not measured, and takes little memory.
const chunkObjects = 50

// kind is a kind of changes, by the name of its series.
type kind struct {
	name string
	next func() []source.Event
}

func (s *slipstream) changes(n int) error {
	c := s.cluster
	for _, kinds := range [][]kind{
		{{endpointReplaced, c.ReplaceEndpoint}},
		{{endpointRemoved, c.RemoveEndpoint}, {endpointAdded, c.AddEndpoint}},
		{{serviceRemoved, c.RemoveService}, {serviceAdded, c.AddService}},
	} {
		if err := s.repeat(n, kinds...); err != nil {
			return fmt.Errorf("%s: %w", kinds[0].name, err)
		}
	}
	return s.burst()
}

// repeat makes n changes of each kind, in turns, fewer if that takes too long. The kinds
// together leave the cluster's size as it is.
func (s *slipstream) repeat(n int, kinds ...kind) error {
	objects := 1 + (s.cluster.Endpoints+cluster.SliceSize-1)/cluster.SliceSize // a Service, and its EndpointSlices
	chunk := max(1, min(chunkObjects/objects, s.cluster.Live()/2))
	const changesLimit = 4 * time.Second // of each kind of change in each round
	deadline := time.Now().Add(changesLimit)
	for done := 0; done < n && (done == 0 || time.Now().Before(deadline)); done += chunk {
		for _, k := range kinds {
			all := make([][]source.Event, min(chunk, n-done))
			for i := range all {
				all[i] = k.next()
			}
			before := cpuTime()
			for _, events := range all {
				start := time.Now()
				s.write(events)
				if err := s.apply(k.name, start); err != nil {
					return err
				}
			}
			s.samples.Add(k.name+cpuSuffix, float64(cpuTime()-before)/float64(len(all)))
		}
	}
	return nil
}

// write writes events to the desired state.
func (s *slipstream) write(events []source.Event) {
	for _, e := range events {
		proxy.ApplyEvent(s.state, e)
	}
}

// apply programs the pending changes, and adds the time since start.
func (s *slipstream) apply(name string, start time.Time) error {
	u := s.state.Change()
	stats, err := s.backend.Apply(context.Background(), &u.Change)
	s.samples.Add(name, float64(time.Since(start)))
	s.samples.Add(name+elementsSuffix, float64(stats.Elements))
	return errors.Join(err, problem(u))
}

// burst measures many changes that are programmed as one. Making the objects is not
// measured.
func (s *slipstream) burst() error {
	var took time.Duration
	for range burstChanges {
		events := s.cluster.ReplaceEndpoint()
		start := time.Now()
		s.write(events)
		took += time.Since(start)
	}
	return s.apply(burst, time.Now().Add(-took))
}

// rest frees unused memory, and measures the memory and the reachable objects, in bytes.
func rest() (m procfs.ProcStatus, heap float64, err error) {
	debug.FreeOSMemory()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	m, err = bench.Memory(os.Getpid())
	return m, float64(stats.HeapAlloc), err
}

// cpuTime is the processor time, user and system, of this process and of the commands that
// it has run. The kernel's later work on its own threads is not included.
func cpuTime() (sum time.Duration) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err == nil {
			sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return sum
}
