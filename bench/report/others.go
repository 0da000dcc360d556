// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/procfs"
	"github.com/slipstream-proxy/slipstream/bench/bench"
)

// watchOthers begins to watch the processor time of other work on the machine. elsewhere ends that
// and returns how many seconds of it there were since then: of processes that do not descend from
// this one, and of the host, if it is a virtual machine whose host reports stolen time.
func watchOthers() (elsewhere func() float64) {
	used, stolen := othersUsed()
	sum, last := rises{last: used}, time.Now()
	look := func() (stolen float64) {
		used, stolen := othersUsed()
		now := time.Now()
		sum.add(used, now.Sub(last).Seconds()*float64(runtime.NumCPU()))
		last = now
		return stolen
	}
	ctx, cancel := context.WithCancel(context.Background())
	var looking sync.WaitGroup
	looking.Go(func() {
		for bench.Sleep(ctx, 2*time.Second) == nil {
			look()
		}
	})
	return func() float64 {
		cancel()
		looking.Wait()
		stolenAfter := look()
		return sum.sum + stolenAfter - stolen
	}
}

// rises sums up how far a value rises. It falls when a process ends that nothing waits for, with
// all that it and its children have used, and it rises by that when a process of this run loses
// its parent; hence the limit of a rise, what all processors can do in that time.
type rises struct{ last, sum float64 }

func (r *rises) add(value, most float64) {
	r.sum += min(max(value-r.last, 0), most)
	r.last = value
}

// othersUsed sums up the processor time, in seconds, of all processes that do not descend from
// this one, with that of their children that have ended: when a child ends, its time passes to
// its parent, so that the sum stays. Kernel threads do not count, as they work for this run too.
func othersUsed() (used, stolen float64) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, 0
	}
	if s, err := bench.ProcessorSeconds(); err == nil {
		stolen = s.Stolen
	}
	all, err := fs.AllProcs()
	if err != nil {
		return 0, stolen
	}
	stats := map[int]procfs.ProcStat{}
	for _, p := range all {
		if s, err := p.Stat(); err == nil { // it may have ended
			stats[p.PID] = s
		}
	}
	return sumOthers(stats, os.Getpid()), stolen
}

// sumOthers sums up the time of processes that neither are pid, nor one of its ancestors, nor
// descend from it. An ancestor, as make or a shell, waits meanwhile; what it is charged with when
// it ends is this run.
func sumOthers(stats map[int]procfs.ProcStat, pid int) float64 {
	const kthreadd = 2
	ancestors := map[int]bool{}
	for p := stats[pid].PPID; p > 0 && !ancestors[p]; p = stats[p].PPID {
		ancestors[p] = true
	}
	sum := 0.0
	for p, s := range stats {
		ours := false
		for q, steps := p, 0; q > 0 && steps < 1000; q, steps = stats[q].PPID, steps+1 {
			ours = ours || q == pid || q == kthreadd
		}
		if !ours && !ancestors[p] {
			sum += float64(s.UTime) + float64(s.STime) + float64(s.CUTime) + float64(s.CSTime)
		}
	}
	const ticks = 100 // in a second of /proc/PID/stat, on all kernels
	return sum / ticks
}
