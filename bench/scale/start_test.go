// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
)

// BenchmarkStart starts Slipstream, or each of the binaries in BINS=/path/one,/path/other, in turns with a client that only
// reads, with SERVICES=10000. It prints medians, and each start.
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
		start(m)
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
		fmt.Printf("%-20s start %5.0f ms, processor time %5.0f ms, peak RSS %5.1f MB; starts %.0f\n", filepath.Base(name), median(started.Name),
			median(startCPU.Name), median(peakStart.Name), collect.From(all[i][started.Name], func(ns float64) float64 { return ns / 1e6 }))
	}
}
