// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
)

const (
	busyStart     = "the machine's processors during a start, %"
	receivedStart = "bytes received for a start"
)

// idleTimes records the time in which processors have nothing to do, until what it returns is called after something that
// has taken the last of some nanoseconds: that returns for how much of it all processors were busy, in percent.
func idleTimes() (busy func(took []float64) float64) {
	var at []time.Time
	var idle []float64 // seconds
	end, ended := make(chan bool), make(chan bool)
	go func() {
		defer close(ended)
		fs, err := procfs.NewDefaultFS()
		for err == nil {
			var s procfs.Stat
			if s, err = fs.Stat(); err == nil {
				at, idle = append(at, time.Now()), append(idle, s.CPUTotal.Idle+s.CPUTotal.Iowait)
			}
			select {
			case <-end:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	return func(took []float64) float64 {
		now := time.Now()
		close(end)
		<-ended
		window := time.Duration(took[len(took)-1])
		first := slices.IndexFunc(at, func(t time.Time) bool { return now.Sub(t) <= window })
		return 100 * (1 - (idle[len(idle)-1]-idle[first])/float64(runtime.NumCPU())/window.Seconds())
	}
}

// BenchmarkStart starts Slipstream, or each of the binaries in BINS=/path/one,/path/other, in turns with a client that only
// reads (PLAIN=1: without gzip), with SERVICES=10000. It prints medians, and each start.
func BenchmarkStart(b *testing.B) {
	check := failing(b)
	binaries := strings.FieldsFunc(os.Getenv("BINS"), func(r rune) bool { return r == ',' })
	e := filled(b, check, max(len(binaries), 1)+1)
	if len(binaries) == 0 {
		binaries = []string{e.slipstream}
	}
	all := bench.NewSamples(len(binaries) + 1)
	measure := func(subject subject, samples bench.Samples, start func(*measurement)) {
		m, err := e.newMeasurement(b.Context(), subject)
		check(err)
		m.samples = samples
		idle := idleTimes()
		start(m)
		samples.Add(busyStart, idle(samples[started.Name]))
		link, err := m.node.Netlink().LinkByName("eth0")
		check(err)
		samples.Add(receivedStart, float64(link.Attrs().Statistics.RxBytes))
		check(m.startUsage(b.Context()))
		check(m.proxy.Close())
		check(m.node.remove(b.Context()))
	}
	for range b.N {
		for i, binary := range binaries {
			measure(subject{proxies.Slipstream, binary}, all[i], func(m *measurement) {
				_, err := m.startProxy(b.Context())
				check(err)
			})
		}
		measure(subject{"client", ""}, all[len(binaries)], func(m *measurement) { m.reads(b, check) })
	}
	for i, name := range append(binaries, "reader") {
		median := func(of string) float64 { return bench.Median(all[i][of]) / 1e6 }
		fmt.Printf("%-20s start %5.0f ms, processors busy %3.0f %%, processor time %5.0f ms, peak RSS %5.1f MB, received %5.1f MB; starts %.0f\n", filepath.Base(name), median(started.Name),
			bench.Median(all[i][busyStart]), median(startCPU.Name), median(peakStart.Name), median(receivedStart), collect.From(all[i][started.Name], func(ns float64) float64 { return ns / 1e6 }))
	}
}
