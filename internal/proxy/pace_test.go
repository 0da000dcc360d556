// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
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
	s.set(func() { at, gap = s.at[len(s.at)-1], s.at[len(s.at)-1].Sub(s.at[max(0, len(s.at)-2)]) })
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

// programs are sockets of other programs, which a test opens, uses and closes.
type programs struct {
	mu   sync.Mutex
	all  map[uint64]bool // whether a dump runs
	fail error
}

func (p *programs) look() (all []nfnl.Reader, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for socket, dumping := range p.all {
		all = append(all, nfnl.Reader{Socket: socket, Dumping: dumping})
	}
	return all, p.fail
}

// dump begins or ends a dump; close ends the program.
func (p *programs) dump(socket uint64, running bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all[socket] = running
}

func (p *programs) close(socket uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, socket)
}

// TestWaitsForReaders changes endpoints every 10 ms beside other programs.
func TestWaitsForReaders(t *testing.T) {
	const period = 10 * time.Millisecond
	for _, c := range []struct {
		name string
		min  time.Duration // Options.MinSyncPeriod
		use  func(p *programs)
		// longest is the longest gap between commits in ten seconds, after burst, and last is the last one's.
		longest, last time.Duration
	}{
		{"no reader", period, func(*programs) {}, period, period},
		{"one dump", period, func(p *programs) {
			p.dump(1, true)
			time.Sleep(400 * time.Millisecond)
			p.dump(1, false)
		}, 400 * time.Millisecond, period},
		{"a series of dumps", period, func(p *programs) {
			for range 50 {
				p.dump(1, true)
				time.Sleep(3 * time.Millisecond)
				p.dump(1, false)
				time.Sleep(4 * time.Millisecond)
			}
			p.close(1)
		}, 350 * time.Millisecond, period},
		{"one that opens its socket", period, func(p *programs) {
			for range 10 {
				p.dump(1, false)
				time.Sleep(4 * time.Millisecond)
				p.dump(1, true)
				time.Sleep(100 * time.Millisecond)
				p.close(1)
				time.Sleep(300 * time.Millisecond)
			}
		}, 104 * time.Millisecond, period},
		{"stopped during a dump", period, func(p *programs) { p.dump(1, true) }, maxGap, period},
		{"reads all the time", period, func(p *programs) {
			for range 120 {
				p.dump(1, true)
				time.Sleep(50 * time.Millisecond)
				p.dump(1, false)
				time.Sleep(4 * time.Millisecond)
			}
			p.close(1)
		}, maxGap, period},
		{"listens", period, func(p *programs) { p.dump(1, false) }, period, period},
		{"always another", period, func(p *programs) {
			for i := range uint64(240) {
				p.dump(i, true)
				time.Sleep(50 * time.Millisecond)
				p.close(i)
			}
		}, maxGap, maxGap},
		{"not known", period, func(p *programs) { p.fail = errors.New("not permitted") }, maxGap, maxGap},
		{"the configured period", 2 * time.Second, func(*programs) {}, 2 * time.Second, 2 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				others := &programs{all: map[uint64]bool{}}
				change, kernel := paced(t, Options{MinSyncPeriod: c.min, Readers: others.look})
				gaps := func(n int, of time.Duration) (longest, last time.Duration) {
					for i := range int(of / period) {
						change(n + i)
						time.Sleep(period)
						_, last = kernel.last()
						if i > 0 {
							longest = max(longest, last)
						}
					}
					return longest, last
				}
				others.dump(99, true) // a burst does not wait for readers
				if longest, _ := gaps(1, burst-2*period); longest > max(c.min, 2*period) && c.min == period {
					t.Errorf("a gap in a burst is %v", longest)
				}
				others.close(99)
				gaps(10001, maxGap)
				go c.use(others)
				const slack = 2 * period
				longest, last := gaps(20001, 10*time.Second)
				if longest < max(c.longest-idlePeriod, period) || longest > c.longest+slack { // a dump may be seen so late
					t.Errorf("the longest gap is %v, want %v", longest, c.longest)
				}
				if last < c.last || last > c.last+slack {
					t.Errorf("the last gap is %v, want %v", last, c.last)
				}

				// After a quiet time, a change is programmed at once.
				time.Sleep(5 * time.Second)
				others.dump(98, true)
				begin := time.Now()
				change(30001)
				if at, _ := kernel.last(); !at.Equal(begin) {
					t.Errorf("the first change waits for %v", at.Sub(begin))
				}
			})
		})
	}
}

// otherPrograms list many rules, and begin again whenever the ruleset changes while they read. Some write
// afterwards, and begin again, or fail, if it has changed in between.
var otherPrograms = map[string]struct{ prepare, cycle string }{
	"iptables-nft-save": {cycle: `[ "$(iptables-nft-save -t nat | grep -c '^-A ')" = RULES ]`},
	"iptables-nft": {cycle: `
		iptables-nft-save -t nat >/dev/null
		iptables-nft -t nat -A PREROUTING -d 192.0.2.1 -p tcp -j DNAT --to-destination 192.0.2.2
		iptables-nft -t nat -D PREROUTING -d 192.0.2.1 -p tcp -j DNAT --to-destination 192.0.2.2`},
	"nft": {
		prepare: `nft "add table inet firewall; add chain inet firewall input { type filter hook input priority 0; }"`,
		cycle: `
			nft list ruleset >/dev/null
			nft "flush chain inet firewall input; add rule inet firewall input ip saddr 192.0.2.1 counter drop"`,
	},
}

// TestOthersFinish runs such programs while endpoints change 100 times a second. Where none reads, no change waits.
func TestOthersFinish(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPTablesNFT)
	if kerneltest.OwnClock.Probe() == nil {
		t.Skip("runs on the host: the programs and the proxy would share the one processor of User Mode Linux")
	}
	for name, other := range otherPrograms {
		t.Run(name, func(t *testing.T) {
			node, err := kerneltest.NewLab(t).Node("n1", lab.NodeOptions{Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24")}})
			check(t, err)
			rules := 64000 // as many that a list of them takes much longer than from one change to the next
			run := func(script string) (took time.Duration, err error) {
				begin := time.Now()
				_, err = node.Namespace.Run(t.Context(), "sh", "-ec", strings.ReplaceAll(script, "RULES", fmt.Sprint(rules)))
				took = time.Since(begin)
				t.Logf("took %v with %d rules", took, rules)
				return took, err
			}
			_, err = run(other.prepare)
			check(t, err)
			for took := giveUp; took > giveUp/4; { // beside changes it takes longer, and must not be given up
				rules /= 2
				restore := exec.CommandContext(t.Context(), "iptables-nft-restore")
				restore.Stdin = strings.NewReader(manyRules(rules))
				p, err := node.Namespace.Start(restore)
				check(t, err)
				check(t, p.Wait())
				took, err = run(other.cycle)
				check(t, err)
			}
			besideChanges(t, node, func() error {
				for range 5 {
					if _, err := run(other.cycle); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

// besideChanges calls use in the third second of changes that do not stop. Afterwards, it has changes wait for nothing.
func besideChanges(t *testing.T, node *lab.Node, use func() error) {
	var readers *nfnl.Readers
	check(t, node.Do(func() error { readers = nfnl.OpenReaders(); return nil }))
	defer readers.Close()
	kernel, err := nftables.New(dataplane.Config{NetNS: node.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit})
	check(t, err)
	defer kernel.Close()
	l := &loop{t: t, events: make(script), metrics: metrics.New(), done: make(chan error, 1)}
	l.proxy = New(l.events, desired.New(desired.Config{}), kernel, l.metrics, Options{
		MinSyncPeriod: 10 * time.Millisecond, CheckPeriod: time.Second,
		Readers: readers.Look,
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { l.done <- l.proxy.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-l.done; err != nil {
			t.Error(err)
		}
	}()
	l.events <- append(many(0, 3), synced)

	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(5 * time.Minute)
	changes := 0
	until := func(done func() bool) {
		for ; !done(); changes++ {
			select {
			case <-tick.C:
				l.events <- moved(changes)
			case <-timeout:
				t.Fatal("the other program does not finish")
			}
		}
	}
	const most = 3000 // with commits that wait, five cycles took 160 to 340 changes; without, one took 1,300 and more
	used := make(chan error, 1)
	begin := time.Now()
	until(func() bool { return time.Since(begin) > 2*burst })
	go func() { used <- use() }()
	first := changes
	until(func() bool { return len(used) > 0 || changes == first+most })
	if len(used) == 0 {
		t.Fatalf("the other program does not finish during %d changes", most)
	}
	check(t, <-used)
	last := time.Now()
	for range 2 { // the first commit may have waited
		until(func() bool { return l.proxy.Updated().After(last) })
		last = time.Now()
	}
	t.Logf("%d changes; they waited %.2f s for others", changes, testutil.ToFloat64(l.metrics.ReaderWait))
	longest, shortest := time.Duration(0), maxGap
	for range 20 { // each after the one before
		former, n := l.proxy.Updated(), changes
		until(func() bool { return changes > n && l.proxy.Updated().After(former) })
		gap := l.proxy.Updated().Sub(former)
		longest, shortest = max(longest, gap), min(shortest, gap)
	}
	if t.Logf("gaps of %v to %v", shortest, longest); shortest > maxGap/2 {
		t.Error("while none reads, all changes wait")
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
