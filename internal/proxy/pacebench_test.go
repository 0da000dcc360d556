// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// timed is a dataplane that measures changes from their time of sending.
type timed struct {
	*nftables.Dataplane
	mu      sync.Mutex
	sent    []time.Time
	lags    []time.Duration
	commits int
}

func (d *timed) Apply(ctx context.Context, c *desired.Change) (dataplane.Stats, error) {
	s, err := d.Dataplane.Apply(ctx, c)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.commits++
	for range c.Pools { // each change replaces another Service's endpoint
		d.lags = append(d.lags, time.Since(d.sent[0]))
		d.sent = d.sent[1:]
	}
	return s, err
}

// BenchmarkSteadyChanges measures 100 changes a second at 10,000 Services x 10 endpoints, beside
// 4,000 rules of iptables-nft, with and without a program that saves them again and again. The first
// four seconds do not count.
func BenchmarkSteadyChanges(b *testing.B) {
	const services, endpoints, rules = 10000, 10, 4000
	kerneltest.Require(b, kerneltest.IPTablesNFT)
	node, err := kerneltest.NewLab(b).Node("n1", lab.NodeOptions{Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24")}})
	check(b, err)
	restore := exec.CommandContext(b.Context(), "iptables-nft-restore")
	restore.Stdin = strings.NewReader(manyRules(rules))
	p, err := node.Namespace.Start(restore)
	check(b, err)
	check(b, p.Wait())
	var readers, sampled *nfnl.Readers
	check(b, node.Do(func() error { readers, sampled = nfnl.OpenReaders(), nfnl.OpenReaders(); return nil }))
	defer func() { check(b, errors.Join(readers.Close(), sampled.Close())) }()
	backend, err := nftables.New(dataplane.Config{NetNS: node.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit})
	check(b, err)
	defer func() { check(b, backend.Close()) }()
	kernel := &timed{Dataplane: backend}
	events, done := make(script), make(chan error, 1)
	ready := make(chan bool)
	loop := New(events, desired.New(desired.Config{}), kernel, metrics.New(), Options{
		MinSyncPeriod: time.Millisecond, CheckPeriod: time.Second, Readers: readers.Look,
		Ready: func(context.Context) { close(ready) },
	})
	ctx, cancel := context.WithCancel(b.Context())
	go func() { done <- loop.Run(ctx) }()
	defer func() {
		cancel()
		check(b, <-done)
	}()
	var all []source.Event
	for i := range services {
		all = append(all, many(i, endpoints)...)
	}
	events <- append(all, synced)
	<-ready
	// save returns how long the command takes, and how long it reads: from its first dump to the end of its last.
	save := func() (took, reads time.Duration) {
		ended, looked := make(chan bool), make(chan bool)
		var first, last time.Time
		go func() {
			defer close(looked)
			for {
				select {
				case <-ended:
					return
				case <-time.After(200 * time.Microsecond):
				}
				found, err := sampled.Look()
				if err != nil {
					b.Error(err)
				}
				if slices.ContainsFunc(found, func(r nfnl.Reader) bool { return r.Dumping }) {
					if last = time.Now(); first.IsZero() {
						first = last
					}
				}
			}
		}()
		begin := time.Now()
		_, err := node.Namespace.Run(ctx, "iptables-nft-save", "-t", "nat")
		took = time.Since(begin)
		if err != nil && ctx.Err() == nil {
			b.Error(err)
		}
		close(ended)
		<-looked
		return took, last.Sub(first)
	}
	var quiet, reads []time.Duration
	for range 9 {
		took, read := save()
		quiet, reads = append(quiet, took), append(reads, read)
	}
	n := 0
	for _, c := range []struct {
		name  string
		reads bool
	}{{"quiet", false}, {"reader", true}} {
		b.Run(c.name, func(b *testing.B) {
			var saves, reading []time.Duration
			stop, stopped := make(chan bool), make(chan bool)
			run := func(changes int) {
				for range changes {
					kernel.mu.Lock()
					kernel.sent = append(kernel.sent, time.Now())
					kernel.mu.Unlock()
					e := many(n%services, endpoints)[1:]
					e[0].Object.(*discoveryv1.EndpointSlice).Endpoints[0].Addresses[0] = netip.AddrFrom4([4]byte{10, byte(120 - n/services), byte(n >> 8), byte(n)}).String()
					events <- e
					n++
					time.Sleep(10 * time.Millisecond)
				}
			}
			run(300)
			go func() {
				defer close(stopped)
				for c.reads {
					select {
					case <-stop:
						return
					default:
						took, read := save()
						saves, reading = append(saves, took), append(reading, read)
					}
				}
			}()
			run(100)
			kernel.mu.Lock()
			kernel.lags, kernel.commits = nil, 0
			kernel.mu.Unlock()
			begin := time.Now()
			for b.Loop() {
				run(1)
			}
			took := time.Since(begin)
			close(stop)
			<-stopped
			kernel.mu.Lock()
			defer kernel.mu.Unlock()
			slices.Sort(kernel.lags)
			at := func(all []time.Duration, q float64) float64 {
				if len(all) == 0 {
					return 0
				}
				return all[min(int(q*float64(len(all))), len(all)-1)].Seconds() * 1e3
			}
			b.ReportMetric(at(kernel.lags, 0.5), "p50-ms")
			b.ReportMetric(at(kernel.lags, 0.99), "p99-ms")
			b.ReportMetric(float64(len(kernel.lags))/took.Seconds(), "changes/s")
			b.ReportMetric(float64(kernel.commits)/took.Seconds(), "commits/s")
			slices.Sort(quiet)
			slices.Sort(saves)
			if c.reads {
				b.ReportMetric(at(saves, 0.5), "save-ms")
				b.ReportMetric(at(quiet, 0.5), "quiet-save-ms")
				slices.Sort(reads)
				b.ReportMetric(at(reads, 0.5), "quiet-read-ms")
				slices.Sort(reading)
				b.ReportMetric(at(reading, 0.5), "read-ms")
			}
		})
	}
}
