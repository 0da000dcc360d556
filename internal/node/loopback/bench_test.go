// SPDX-License-Identifier: Apache-2.0

package loopback

import (
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// BenchmarkListeners measures the time, this process's memory and the file descriptors of the
// listeners for 2,000 NodePorts of TCP in both families, at the start.
func BenchmarkListeners(b *testing.B) {
	const nodePorts = 2000
	ns, err := lab.NewNamespace()
	if err != nil {
		b.Fatal(err)
	}
	defer ns.Close()
	var relays []desired.Relay
	for i := range nodePorts {
		for _, ip := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()} {
			r := relay(v4, desired.TCP, desired.NewBackend(netip.MustParseAddrPort("10.0.0.1:80")))
			r.AddrPort = netip.AddrPortFrom(ip, uint16(30000+i))
			relays = append(relays, r)
		}
	}
	usage := func() (memory, descriptors int) {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		open, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			b.Fatal(err)
		}
		return int(m.HeapInuse + m.StackInuse + m.OtherSys), len(open)
	}
	err = ns.Do(func() error {
		for b.Loop() {
			b.StopTimer()
			memory, descriptors := usage()
			s := New(b.Context(), Options{})
			b.StartTimer()
			s.Set(relays)
			b.StopTimer()
			if s.listening != [2]int{nodePorts, nodePorts} {
				b.Fatalf("%v listeners", s.listening)
			}
			memory2, descriptors2 := usage()
			b.ReportMetric(float64(memory2-memory)/1e6, "MB")
			b.ReportMetric(float64(descriptors2-descriptors), "descriptors")
			s.Close()
			b.StartTimer()
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}
