// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// BenchmarkClean cleans up after one removed backend, which has a hundred entries,
// in tables of different sizes, of which half are UDP: with the kernel's filter
// and without, in turns. "ratio" is how many times longer it takes without, by
// medians. Run it with
//
//	go test ./conntrack -run '^$' -bench Clean -benchtime 20x
func BenchmarkClean(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			tab := crowd(b, n/200)
			frontend, gone := "10.96.0.10:53", crowdBackend(1000)
			took := map[bool][]time.Duration{}
			entries := map[bool]int{}
			for b.Loop() {
				for _, unfiltered := range []bool{false, true} {
					b.StopTimer()
					for i := range 100 {
						tab.add(flow{
							protocol:   desired.UDP,
							from:       netip.AddrPortFrom(netip.MustParseAddr("10.255.0.1"), uint16(1000+i)),
							to:         netip.MustParseAddrPort(frontend),
							answeredBy: gone,
						})
					}
					tab.unfiltered = unfiltered
					b.StartTimer()
					start := time.Now()
					stats := tab.clean(stale(frontend, gone.String()))
					took[unfiltered] = append(took[unfiltered], time.Since(start))
					if stats.Deleted != 100 {
						b.Fatalf("%+v", stats)
					}
					entries[unfiltered] = stats.Entries
				}
			}
			filtered, all := median(took[false]), median(took[true])
			b.ReportMetric(0, "ns/op") // of both together, which is of no interest
			b.ReportMetric(float64(filtered.Microseconds()), "filtered-µs")
			b.ReportMetric(float64(all.Microseconds()), "unfiltered-µs")
			b.ReportMetric(float64(entries[false]), "filtered-entries")
			b.ReportMetric(float64(entries[true]), "unfiltered-entries")
			b.ReportMetric(float64(all)/float64(filtered), "ratio")
		})
	}
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}
