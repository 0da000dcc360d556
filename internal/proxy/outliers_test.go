// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
)

func init() { announceWithin = time.Second }

// ward is a crossing with outlier detection whose endpoints have all answered a client.
type ward struct {
	*crossing
	t testing.TB
}

func newWard(t testing.TB, endpoints int, detection string) *ward {
	x := newCrossing(t, endpoints, annotated(desired.AnnotationOutliers, detection, corev1.ServiceSpec{}))
	return opened(t, x, endpoints)
}

func opened(t testing.TB, x *crossing, endpoints int) *ward {
	w := &ward{x, t}
	x.add(1, endpoints)
	w.run("add table inet f; add chain inet f in { type filter hook input priority 0; }")
	return w
}

// healthy connects until all endpoints have answered clients, and this node if it can reach them.
func (w *ward) healthy(n int, probed bool) {
	w.until("endpoints are known", func() bool {
		for range 20 {
			w.connect()
		}
		return w.count(func(x *outlier) bool { return x.answers == probed }) >= n
	})
}

// run runs nft in the server, with commands separated by semicolons.
func (w *ward) run(commands string) {
	w.t.Helper()
	if out, err := w.Server.Run(w.t.Context(), "nft", commands); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
}

// drop has the server drop SYNs that match, or answer them with a reset.
func (w *ward) drop(match string) { w.run("add rule inet f in tcp flags syn " + match) }

func (w *ward) heal() { w.run("flush chain inet f in") }

// connect makes a connection and returns the port that has answered; 0 for none.
func (w *ward) connect() uint16 {
	reply, err := w.Client.Connect(lab.TCP, web, lab.Timeout(200*time.Millisecond))
	if err != nil {
		return 0
	}
	return reply.Local.Port()
}

func (w *ward) until(what string, is func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: it does not come to that", what)
		}
	}
}

// count counts endpoints that the proxy knows.
func (w *ward) count(is func(*outlier) bool) (n int) {
	check(w.t, w.proxy.Inspect(w.t.Context(), func(*Inspection) {
		for _, t := range w.proxy.outliers.tenants {
			for _, x := range t.known {
				if is(x) {
					n++
				}
			}
		}
	}))
	return n
}

// ejected returns how many endpoints the view of the Service calls so.
func (w *ward) ejected() (n int) {
	check(w.t, w.proxy.Inspect(w.t.Context(), func(i *Inspection) {
		i.State.ViewServices(nil, true, func(v *desired.ServiceView) {
			for _, port := range v.Ports {
				for _, e := range port.Endpoints {
					if strings.HasPrefix(e.Uses(), "ejected") {
						n++
					}
				}
			}
		})
	}))
	return n
}

// served connects 60 times: all endpoints but those given answer, and no connection fails. With one of four endpoints
// beside, this happens by chance once in 30 million times.
func (w *ward) served(n int, without ...uint16) bool {
	seen := map[uint16]bool{}
	for range 60 {
		seen[w.connect()] = true
	}
	for _, port := range append(without, 0) {
		if seen[port] {
			return false
		}
	}
	return len(seen) == n
}

const second = dataplanetest.FirstPort + 1

// TestOutlierEjected: one of ten endpoints becomes a black hole, or refuses connections. It gets none while that lasts, the
// SYNs that wait for it come to others, and it is back after that.
func TestOutlierEjected(t *testing.T) {
	for name, verdict := range map[string]string{"black hole": "drop", "refused": "reject with tcp reset", "black hole, iptables": "drop", "black hole, ipvs": "drop", "refused, ipvs": "reject with tcp reset"} {
		t.Run(name, func(t *testing.T) {
			const n = 10
			var w *ward
			service := annotated(desired.AnnotationOutliers, "on", corev1.ServiceSpec{})
			switch _, mode, _ := strings.Cut(name, ", "); mode {
			case "iptables":
				w = opened(t, newCrossingIn(t, n, service, inIPTables(t)), n)
			case "ipvs":
				w = opened(t, newCrossingIn(t, n, service, inIPVS(t)), n)
			default:
				w = newWard(t, n, "on")
			}
			w.healthy(n, true)
			w.drop(fmt.Sprintf("tcp dport %d %s", second, verdict))
			var waiting sync.WaitGroup
			if verdict == "drop" {
				for range 12 {
					waiting.Go(func() {
						if _, err := w.Client.Connect(lab.TCP, web, lab.Timeout(time.Minute)); err != nil {
							t.Errorf("a connection that waited: %v", err)
						}
					})
				}
			}
			w.until("ejected", func() bool { return w.served(n-1, second) && w.ejected() == 1 })
			waiting.Wait()
			w.until("an Event", func() bool {
				return w.told.count("EndpointUnanswered on default/web: endpoint 10.244.1.3:8001/TCP does not answer connections of clients and of nodes (slipstream.io/outlier-detection: on)") == 1
			})
			w.heal()
			w.until("back", func() bool { return w.served(n) && w.ejected() == 0 })
		})
	}
}

// TestOutlierNotEjected: clients get no answer from one of four endpoints, which is not ejected, as it is not known
// to be dead.
func TestOutlierNotEjected(t *testing.T) {
	const client = "ip saddr 10.244.1.2 tcp dport 8001 drop"
	suspected := func(x *outlier) bool { return x.failing || x.answers && !x.due.IsZero() }
	for _, c := range []struct {
		name, before string
		known        int // endpoints that have or have not answered this node before
		probed       bool
	}{
		{"a policy drops the client", "", 4, true},
		{"a policy drops the node", "ip saddr != 10.244.1.2 drop", 3, false}, // but not before it has probed the first
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWard(t, 4, "on")
			if c.before != "" {
				w.drop(c.before)
			}
			w.healthy(c.known, c.probed)
			w.drop(client)
			for range 3 {
				w.until("suspected", func() bool { w.connect(); return w.count(suspected) == 1 })
				for range 40 {
					w.connect()
				}
			}
			if n := w.ejected() + w.count(func(x *outlier) bool { return !x.out.IsZero() || !x.back.IsZero() }); n > 0 {
				t.Error("it is, or was, ejected")
			}
		})
	}
}

// TestOutlierFullTable: conntrack's table is full, so that neither clients nor this node reach an endpoint to which a policy has
// dropped a client's connections before. It is not ejected.
func TestOutlierFullTable(t *testing.T) {
	if !kerneltest.UML() {
		t.Skip("NOT RUN: the size of conntrack's table is that of all network namespaces")
	}
	w := newWard(t, 4, "on")
	w.healthy(4, true)
	const held = 20
	for range held {
		c, err := w.Client.Stream(lab.TCP, web, time.Hour)
		check(t, err)
		defer c.Close()
	}
	const limit = "/proc/sys/net/netfilter/nf_conntrack_max"
	former, err := os.ReadFile(limit)
	check(t, err)
	defer func() { check(t, os.WriteFile(limit, former, 0)) }()
	probed := func(x *outlier) bool { return x.failing && x.due.After(time.Now()) }
	w.until("a probe with a full table", func() bool {
		check(t, os.WriteFile(limit, former, 0))
		w.until("trusted no more", func() bool {
			w.connect()
			return w.count(func(x *outlier) bool { return time.Now().Before(x.due) }) == 0
		})
		w.heal()
		w.drop("ip saddr 10.244.1.2 tcp dport 8001 drop")
		var clients sync.WaitGroup
		for range 40 {
			clients.Go(func() { w.connect() })
		}
		clients.Wait() // before these count as unanswered
		check(t, os.WriteFile(limit, fmt.Append(nil, held/2), 0))
		for range 20 {
			w.connect()
			if w.count(probed) > 0 {
				return true
			}
		}
		return false
	})
	time.Sleep(2 * time.Second)
	if n := w.ejected() + w.count(func(x *outlier) bool { return !x.out.IsZero() || !x.back.IsZero() }); n > 0 {
		t.Error("an endpoint is, or was, ejected")
	}
	check(t, os.WriteFile(limit, former, 0))
	w.heal()
	w.until("all answer", func() bool { return w.served(4) })
}

// TestOutlierAffinity: a client with session affinity gets another endpoint while its own does not answer.
func TestOutlierAffinity(t *testing.T) {
	spec := corev1.ServiceSpec{SessionAffinity: corev1.ServiceAffinityClientIP}
	w := opened(t, newCrossing(t, 2, annotated(desired.AnnotationOutliers, "on", spec)), 2)
	w.until("a client's endpoint is known", func() bool { w.connect(); return w.count(func(x *outlier) bool { return x.answers }) == 1 })
	first := w.connect()
	w.drop(fmt.Sprintf("tcp dport %d drop", first))
	w.until("another endpoint", func() bool { to := w.connect(); return to != 0 && to != first && w.ejected() == 1 })
}

// BenchmarkOutlier has endpoints become black holes: one of ten, for a client that connects one connection after the other, and
// those of one of three nodes, for ten clients at once. It reports the share of connections that have no answer in 200 ms,
// until all of these are ejected and after that, and the time until then.
func BenchmarkOutlier(b *testing.B) {
	for _, c := range []struct {
		name                     string
		endpoints, dead, clients int
	}{{"endpoint", 10, 1, 1}, {"node", 9, 3, 10}} {
		b.Run(c.name, func(b *testing.B) {
			w := newWard(b, c.endpoints, "on")
			w.healthy(c.endpoints, true)
			var before, after, seconds []float64
			fails := func(while func(n int) bool) float64 {
				var all, failed atomic.Int32
				var clients sync.WaitGroup
				for range c.clients {
					clients.Go(func() {
						for while(int(all.Add(1))) {
							if w.connect() == 0 {
								failed.Add(1)
							}
						}
					})
				}
				clients.Wait()
				return 100 * float64(failed.Load()) / float64(int(all.Load())-c.clients) // each has counted one that it did not make
			}
			for b.Loop() {
				w.until("trusted no more", func() bool {
					return w.count(func(x *outlier) bool { return time.Now().Before(x.due) }) == 0
				})
				w.drop(fmt.Sprintf("tcp dport %d-%d drop", second, second+c.dead-1))
				began := time.Now()
				before = append(before, fails(func(int) bool { return w.ejected() < c.dead }))
				seconds = append(seconds, time.Since(began).Seconds())
				after = append(after, fails(func(n int) bool { return n <= 300 }))
				w.heal()
				w.until("back", func() bool { return w.ejected() == 0 && w.served(c.endpoints) })
			}
			for unit, all := range map[string][]float64{"%-before": before, "%-after": after, "s": seconds} {
				slices.Sort(all)
				b.ReportMetric(all[len(all)/2], unit)
			}
		})
	}
}

// TestOutlierReported: detection that only reports ejects nothing.
func TestOutlierReported(t *testing.T) {
	w := newWard(t, 2, "report")
	w.healthy(2, true)
	w.drop("tcp dport 8001 drop")
	w.until("an Event", func() bool {
		w.connect()
		return w.told.count("EndpointUnanswered on default/web: endpoint 10.244.1.3:8001/TCP does not answer connections of clients and of nodes (slipstream.io/outlier-detection: report)") == 1
	})
	if w.ejected() > 0 {
		t.Error("it is ejected")
	}
	w.until("a connection comes to the dead endpoint", func() bool { return w.connect() == 0 })
}

// TestOutlierLimits: at most half of the endpoints are ejected, and never the last.
func TestOutlierLimits(t *testing.T) {
	for endpoints, most := range map[int]int{1: 0, 3: 1, 4: 2} {
		t.Run(fmt.Sprint(endpoints), func(t *testing.T) {
			t.Parallel()
			w := newWard(t, endpoints, "on")
			w.healthy(endpoints, true)
			w.drop("tcp dport 8000-8100 drop")
			w.until("as many as may be", func() bool {
				w.connect()
				return w.count(func(x *outlier) bool { return !x.out.IsZero() }) > 0 && w.ejected() == most
			})
			for range 50 {
				w.connect()
			}
			if n := w.ejected(); n != most {
				t.Errorf("%d are ejected", n)
			}
			w.heal()
			w.until("all are back", func() bool { return w.served(endpoints) })
		})
	}
}

// TestOutlierUncounted: where the kernel reports no connections, nothing is ejected.
func TestOutlierUncounted(t *testing.T) {
	w := newWard(t, 2, "on")
	w.healthy(2, true)
	w.drop("tcp dport 8001 drop")
	w.until("ejected", func() bool { w.connect(); return w.ejected() == 1 })
	out, err := w.Node.Run(t.Context(), "sysctl", "-w", "net.netfilter.nf_conntrack_events=0")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.until("it is back", func() bool { return w.ejected() == 0 && w.connect() == 0 })
	w.until("an Event on the node", func() bool { return w.told.count("FeatureMissing") == 1 })
}
