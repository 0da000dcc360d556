// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

// BenchmarkStart starts Slipstream, or each of the binaries in BINS=/path/one,/path/other, in turns with a client that only
// reads, with SERVICES=10000. It prints medians, and each start.
func BenchmarkStart(b *testing.B) {
	kerneltest.Require(b, kerneltest.Root, kerneltest.NFTables)
	check := func(err error) {
		if b.Helper(); err != nil {
			b.Fatal(err)
		}
	}
	check(build())
	binaries := strings.Split(cmp.Or(os.Getenv("BINS"), built+"/slipstream"), ",")
	o, err := parse(Scale, "--services", cmp.Or(os.Getenv("SERVICES"), "10000"), "--changes", "24", "--bursts", "1", "--budget", "20s")
	check(err)
	o.log, o.slipstream, o.dir = b.Logf, binaries[0], b.TempDir()
	e, err := newEnvironment(b.Context(), o, b.N*(len(binaries)+1))
	check(err)
	defer func() { check(e.close()) }()
	check(e.fill(b.Context(), o.most()))
	all := bench.NewSamples(len(binaries) + 1)
	for range b.N {
		for i, binary := range append(slices.Clone(binaries), "") {
			kind := proxies.Slipstream
			if binary == "" {
				kind = "client"
			}
			m, err := e.newMeasurement(b.Context(), subject{kind, binary})
			check(err)
			m.samples = all[i]
			bench.Quiet(b.Context())
			if binary == "" {
				m.reads(b, check)
			} else {
				others := m.Rand.Perm(len(m.Others))[:min(50, len(m.Others))]
				begin := time.Now()
				check(m.start())
				answered, err := m.awaitAll(b.Context(), slices.Concat(m.Single, collect.From(others, func(k int) int { return m.Others[k] })), begin)
				check(err)
				m.samples.Add(started.Name, float64(answered.Sub(begin)))
			}
			check(m.startUsage(b.Context()))
			check(m.proxy.Close())
			check(m.node.remove(b.Context()))
		}
	}
	for i, name := range append(binaries, "reader") {
		median := func(of string) float64 { return bench.Median(all[i][of]) / 1e6 }
		fmt.Printf("%-20s start %5.0f ms, processor time %5.0f ms, peak RSS %5.1f MB; starts %.0f\n", filepath.Base(name), median(started.Name),
			median(startCPU.Name), median(peakStart.Name), collect.From(all[i][started.Name], func(ns float64) float64 { return ns / 1e6 }))
	}
}
