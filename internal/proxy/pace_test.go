// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/test/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/lab"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// stopwatch is a kernel that costs nothing and records the times of commits.
type stopwatch struct {
	free
	at []time.Time
}

func (s *stopwatch) Apply(context.Context, *desired.Change) (dataplane.Stats, error) {
	s.set(func() { s.at = append(s.at, time.Now()) })
	return dataplane.Stats{}, nil
}

// last returns the time of the last commit, and since the one before.
func (s *stopwatch) last() (at time.Time, gap time.Duration) {
	synctest.Wait()
	s.set(func() { at, gap = s.at[len(s.at)-1], s.at[len(s.at)-1].Sub(s.at[len(s.at)-2]) })
	return at, gap
}

// paced is a loop with a stopwatch in a bubble.
func paced(t *testing.T, o Options) (change func(i int), kernel *stopwatch) {
	kernel = &stopwatch{}
	events := make(script)
	o.CheckPeriod = time.Hour
	p := New(events, desired.New(desired.Config{}), kernel, metrics.New(), o)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go func() { _ = p.Run(ctx) }()
	events <- append(many(0, 3), synced)
	change = func(i int) {
		synctest.Wait()
		events <- moved(i)
		synctest.Wait()
	}
	time.Sleep(time.Minute)
	return change, kernel
}

// moved returns an endpoint with an address of its own for each i. (Changes that undo each
// other cause no commit.)
func moved(i int) []source.Event {
	e := many(0, 1)[1:]
	e[0].Object.(*discoveryv1.EndpointSlice).Endpoints[0].Addresses[0] = netip.AddrFrom4([4]byte{10, byte(200 + i>>16), byte(i >> 8), byte(i)}).String()
	return e
}

// reads returns a function for Options.ReadTime that takes some time.
func reads(took time.Duration, err error) func() (time.Duration, error) {
	return func() (time.Duration, error) {
		time.Sleep(took)
		return took, err
	}
}

func TestGapsWhileChangesContinue(t *testing.T) {
	const short, long = 10 * time.Millisecond, 2 * time.Second
	for _, c := range []struct {
		name     string
		min      time.Duration
		read     func() (time.Duration, error)
		period   time.Duration // of changes
		from, to time.Duration // of a gap
	}{
		{"for readers", short, reads(40*time.Millisecond, nil), 10 * time.Millisecond, readFactor * 40 * time.Millisecond, readFactor*40*time.Millisecond + short},
		{"slower changes", short, reads(40*time.Millisecond, nil), 90 * time.Millisecond, readFactor * 40 * time.Millisecond, readFactor*40*time.Millisecond + 90*time.Millisecond},
		{"few rules", short, reads(time.Millisecond, nil), 10 * time.Millisecond, short, 2 * short},
		{"bounded", short, reads(300*time.Millisecond, nil), 10 * time.Millisecond, maxGap, maxGap + short},
		{"not known", short, reads(time.Millisecond, errors.New("not permitted")), 10 * time.Millisecond, maxGap, maxGap + short},
		{"the configured period", long, reads(40*time.Millisecond, nil), 10 * time.Millisecond, long, long + short},
		{"the configured period alone", short, nil, 10 * time.Millisecond, short, 2 * short},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				change, kernel := paced(t, Options{MinSyncPeriod: c.min, ReadTime: c.read})
				for i := range int(10 * time.Second / c.period) {
					change(i)
					time.Sleep(c.period)
					if i == int(burst/2/c.period) && c.min == short {
						if _, gap := kernel.last(); gap > short+c.period {
							t.Errorf("a gap in a burst is %v", gap)
						}
					}
				}
				if _, gap := kernel.last(); gap < c.from || gap > c.to {
					t.Errorf("the last gap is %v, want %v to %v", gap, c.from, c.to)
				}

				// After a quiet time, a change is programmed at once.
				time.Sleep(5 * time.Second)
				begin := time.Now()
				change(10001)
				change(10002)
				change(10003)
				if at, _ := kernel.last(); !at.Equal(begin) {
					t.Errorf("the first change waits for %v", at.Sub(begin))
				}
				time.Sleep(c.from)
				if at, gap := kernel.last(); gap > c.min || at.Equal(begin) {
					t.Errorf("the second change waits for %v", gap)
				}
			})
		})
	}
}

// TestReadTimeGrows adds rules of other programs after a measurement that was too short for
// gaps.
func TestReadTimeGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took atomic.Int64
		took.Store(int64(time.Millisecond))
		const period, later = 90 * time.Millisecond, 100 * time.Millisecond
		change, kernel := paced(t, Options{MinSyncPeriod: 10 * time.Millisecond, ReadTime: func() (time.Duration, error) {
			return time.Duration(took.Load()), nil
		}})
		n := 0
		goOn := func(d time.Duration) (gap time.Duration) {
			for range d / period {
				n++
				change(n)
				time.Sleep(period)
			}
			_, gap = kernel.last()
			return gap
		}
		if gap := goOn(10 * time.Second); gap > 2*period {
			t.Errorf("a gap with few rules is %v", gap)
		}
		took.Store(int64(later))
		if gap := goOn(forgetAfter + 10*time.Second); gap < readFactor*later {
			t.Errorf("a gap with many rules is %v, want %v", gap, readFactor*later)
		}
	})
}

// TestReaderFinishes saves many rules with iptables-nft, which starts again whenever the ruleset
// changes, while endpoints change 100 times a second.
func TestReaderFinishes(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPTablesNFT)
	const rules = 4000
	node, err := kerneltest.NewLab(t).Node("n1", lab.NodeOptions{Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24")}})
	check(t, err)
	fd := node.FD()
	restore := exec.CommandContext(t.Context(), "iptables-nft-restore")
	restore.Stdin = strings.NewReader(manyRules(rules))
	p, err := node.Namespace.Start(restore)
	check(t, err)
	check(t, p.Wait())

	kernel, err := nftables.New(dataplane.Config{NetNS: fd, MasqueradeBit: dataplane.DefaultMasqueradeBit})
	check(t, err)
	defer kernel.Close()
	l := &loop{t: t, events: make(script), metrics: metrics.New(), done: make(chan error, 1)}
	l.proxy = New(l.events, desired.New(desired.Config{}), kernel, l.metrics, Options{
		MinSyncPeriod: 10 * time.Millisecond, CheckPeriod: time.Second,
		ReadTime: func() (time.Duration, error) { return nfnl.ReadTime(fd) },
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { l.done <- l.proxy.Run(ctx) }()
	l.events <- append(many(0, 3), synced)

	save := func() error {
		begin := time.Now()
		out, err := node.Namespace.Run(ctx, "iptables-nft-save", "-t", "nat")
		if n := strings.Count(string(out), "-A "); err == nil && n != rules {
			err = fmt.Errorf("%d rules were saved, want %d", n, rules)
		}
		t.Logf("iptables-nft-save took %v", time.Since(begin))
		return err
	}
	check(t, save()) // quiet
	saved := make(chan error, 1)
	go func() {
		time.Sleep(2 * burst) // while changes continue
		saved <- save()
	}()
	defer func() {
		cancel()
		if err := <-l.done; err != nil {
			t.Error(err)
		}
	}()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(5 * time.Minute)
	for i := 0; ; i++ {
		select {
		case <-tick.C:
			l.events <- moved(i)
		case err := <-saved:
			check(t, err)
			t.Logf("%d changes", i)
			return
		case <-timeout:
			t.Fatal("iptables-nft-save does not finish")
		}
	}
}

// manyRules returns a table with n rules of DNAT.
func manyRules(n int) string {
	var b strings.Builder
	b.WriteString("*nat\n")
	for i := range n {
		fmt.Fprintf(&b, "-A PREROUTING -d 10.1.%d.%d/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.2.%d.%d:8080\n", i>>8, i&255, i>>8, i&255)
	}
	b.WriteString("COMMIT\n")
	return b.String()
}
