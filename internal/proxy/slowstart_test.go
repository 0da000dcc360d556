// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
)

// modes are those in which endpoints have weights. Each skips a test where the kernel lacks it.
var modes = map[string]func(testing.TB) func(dataplane.Config) (dataplane.Dataplane, error){"nftables": inNFTables, "iptables": inIPTables, "ipvs": inIPVS}

// TestSlowStart adds two endpoints to one that the proxy has found at its start, which then gets most of the clients.
// When the new ones are warm, it gets its share. A client with session affinity keeps its endpoint all the time.
func TestSlowStart(t *testing.T) {
	for mode, in := range modes {
		t.Run(mode, func(t *testing.T) { testSlowStart(t, in(t)) })
	}
}

func testSlowStart(t *testing.T, mode func(dataplane.Config) (dataplane.Dataplane, error)) {
	spec := corev1.ServiceSpec{SessionAffinity: corev1.ServiceAffinityClientIP}
	x := newCrossingIn(t, 3, annotated(desired.AnnotationSlowStart, "1h", spec), mode)
	check(t, x.Node.AddLocalRange(netip.MustParsePrefix("172.30.0.0/16")))
	stays := func() {
		t.Helper()
		reply, err := x.Client.Connect(lab.TCP, web)
		check(t, err)
		if reply.Local.Port() != dataplanetest.FirstPort {
			t.Fatalf("a client with session affinity came to %s", reply.Local)
		}
	}
	n := 0
	next := func() (lab.Reply, error) { // a connection of another client each time
		if n++; n%25 == 0 {
			stays() // in iptables mode, the kernel remembers the last 100 clients of an endpoint
		}
		return x.Node.Connect(lab.TCP, web, lab.Source(netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 30, byte(n >> 8), byte(n)}), 0)))
	}
	x.add(1, 3)
	// 10 of 12 clients are 83 of 100, and a third is 33.
	x.awaitFrom(t, "warming", next, func(n int) bool { return n > 60 && n < 100 })
	x.events <- []source.Event{{Type: source.Set, Object: annotated(desired.AnnotationSlowStart, "1s", spec)}}
	x.awaitFrom(t, "warm", next, func(n int) bool { return n < 50 })
	for range 10 {
		stays()
	}
}

// BenchmarkSlowStart adds an endpoint that is slow for 30 seconds to four that are not, and reports the 99th percentile of the
// time that requests take meanwhile, without and with slow start. An endpoint answers one request at a time.
func BenchmarkSlowStart(b *testing.B) {
	const (
		rate       = 100 // requests a second
		takes      = 10 * time.Millisecond
		cold       = 10 // times as long
		coldFor    = 30 * time.Second
		cool, warm = "without", "60s"
	)
	for mode, in := range modes {
		for _, slow := range []string{cool, warm} {
			b.Run(mode+"/"+slow, func(b *testing.B) {
				x := newCrossingIn(b, 1, dataplanetest.Service(corev1.ServiceSpec{}), in(b))
				var began time.Time
				for i := range 5 {
					check(b, x.Server.Do(func() error {
						l, err := net.Listen("tcp4", fmt.Sprint(":", dataplanetest.FirstPort+1+i))
						b.Cleanup(func() { l.Close() })
						go func() {
							for {
								c, err := l.Accept()
								if err != nil {
									return
								}
								d := takes
								if i == 4 && time.Since(began) < coldFor {
									d *= cold
								}
								time.Sleep(d)
								c.Write([]byte("x"))
								c.Close()
							}
						}()
						return err
					}))
				}
				for i := range 4 {
					x.events <- []source.Event{{Type: source.Set, Object: dataplanetest.Slice(1 + i)}}
				}
				x.events <- []source.Event{{Type: source.Delete, Object: dataplanetest.Slice(0)}}
				time.Sleep(2 * time.Second)
				if slow == warm { // endpoints that are there when the annotation comes are warm
					x.events <- []source.Event{{Type: source.Set, Object: annotated(desired.AnnotationSlowStart, slow, corev1.ServiceSpec{})}}
					time.Sleep(2 * time.Second)
				}
				for b.Loop() {
					var mu sync.Mutex
					var all []float64
					var requests sync.WaitGroup
					began = time.Now()
					x.events <- []source.Event{{Type: source.Set, Object: dataplanetest.Slice(5)}}
					for due := began; time.Since(began) < coldFor; due = due.Add(time.Second / rate) {
						time.Sleep(time.Until(due))
						requests.Go(func() {
							err := x.Client.Do(func() error {
								c, err := net.DialTimeout("tcp4", web.String(), time.Minute)
								if err == nil {
									_, err = io.ReadAll(c)
									c.Close()
								}
								return err
							})
							mu.Lock()
							defer mu.Unlock()
							if all = append(all, time.Since(due).Seconds()*1000); err != nil {
								b.Error(err)
							}
						})
					}
					requests.Wait()
					slices.Sort(all)
					b.ReportMetric(all[len(all)/2], "ms-median")
					b.ReportMetric(all[len(all)*99/100], "ms-p99")
				}
			})
		}
	}
}
