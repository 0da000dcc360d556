// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/source"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// script is a source that delivers the test's events.
type script chan []source.Event

func (s script) Run(ctx context.Context, sink func([]source.Event)) error {
	for {
		select {
		case batch, open := <-s:
			if !open {
				return errors.New("the script is over")
			}
			sink(batch)
		case <-ctx.Done():
			return nil
		}
	}
}

// recorder is a dataplane that records its calls and fails on demand. Other tests use real
// kernels; those with a recorder are about the loop.
type recorder struct {
	mu      sync.Mutex
	calls   []string          // "full" or "change", with the Services of new frontends
	fail    []error           // what the next calls return
	refused []desired.Problem // what the next call returns
	check   error             // of the next check
	blind   error             // of all other checks
	busy    chan struct{}     // when set, calls wait for it
}

// addressesOf are the changes of the addresses that serve NodePorts.
func addressesOf(c *desired.Change) (words []string) {
	for m, added := range c.Sets[desired.NodeAddresses].All() {
		words = append(words, map[bool]string{true: "+", false: "-"}[added]+m.String())
	}
	return words
}

func (r *recorder) call(kind string, c *desired.Change) (dataplane.Stats, error) {
	r.mu.Lock()
	busy := r.busy
	words := []string{kind}
	for _, f := range c.Frontends {
		if f.New != nil {
			words = append(words, "+"+f.New.Service.Name)
		} else {
			words = append(words, "-"+f.Old.Service.Name)
		}
	}
	words = append(words, addressesOf(c)...)
	slices.Sort(words[1:]) // a change's frontends are in no order
	r.calls = append(r.calls, strings.Join(words, " "))
	var err error
	if len(r.fail) > 0 {
		err, r.fail = r.fail[0], r.fail[1:]
	}
	stats := dataplane.Stats{Refused: r.refused}
	r.refused = nil
	r.mu.Unlock()
	if busy != nil {
		<-busy
	}
	return stats, err
}

func (r *recorder) Reconcile(_ context.Context, c *desired.Change) (dataplane.Stats, error) {
	return r.call("full", c)
}
func (r *recorder) Apply(_ context.Context, c *desired.Change) (dataplane.Stats, error) {
	return r.call("change", c)
}
func (r *recorder) Cleanup(context.Context) error { return nil }
func (r *recorder) Close() error                  { return nil }

func (r *recorder) Check(context.Context) (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	err, r.check = cmp.Or(r.check, r.blind), nil
	return err
}

func (r *recorder) set(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	do()
}

// loop is a running Proxy.
type loop struct {
	*recorder
	t       *testing.T
	proxy   *Proxy
	events  script
	metrics *metrics.Metrics
	done    chan error
	stop    context.CancelFunc
}

func start(t *testing.T, o Options) *loop {
	return startWith(t, &recorder{}, desired.New(desired.Config{}), o)
}

func startWith(t *testing.T, r *recorder, s *desired.State, o Options) *loop {
	l := &loop{recorder: r, t: t, events: make(script), metrics: metrics.New(), done: make(chan error, 1)}
	if o.CheckPeriod == 0 {
		o.CheckPeriod = time.Hour
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.stop = cancel
	l.proxy = New(l.events, s, l.recorder, l.metrics, o)
	go func() { l.done <- l.proxy.Run(ctx) }()
	t.Cleanup(cancel)
	return l
}

// patience bounds what takes milliseconds, except on a very busy machine.
const patience = time.Minute

// until waits until a condition holds.
func (l *loop) until(what string, ok func() bool) {
	l.t.Helper()
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	l.t.Fatalf("waited in vain: %s", what)
}

// waitFor waits until there has been a call like this.
func (l *loop) waitFor(call string) {
	l.t.Helper()
	l.until(call, func() (found bool) {
		l.set(func() { found = slices.Contains(l.calls, call) })
		return found
	})
}

// failures is how many syncs of a kind have failed.
func failures(l *loop, kind string) float64 {
	return testutil.ToFloat64(l.metrics.SyncFailures.WithLabelValues(kind))
}

// wait waits until the recorder has exactly these calls.
func (l *loop) wait(calls ...string) {
	l.t.Helper()
	want := strings.Join(calls, "\n")
	var got string
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(5 * time.Millisecond) {
		l.set(func() { got = strings.Join(l.calls, "\n") })
		if got == want {
			return
		}
	}
	l.t.Fatalf("the backend was called\n%s\nwant\n%s", got, want)
}

func service(i int) source.Event {
	return source.Event{Type: source.Set, Object: &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("s", i)},
		Spec:       corev1.ServiceSpec{ClusterIP: fmt.Sprintf("10.96.0.%d", i), Ports: []corev1.ServicePort{{Port: 80}}},
	}}
}

var synced = source.Event{Type: source.Synced}

func TestNothingBeforeSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := start(t, Options{})
		l.events <- []source.Event{service(1)}
		l.events <- []source.Event{service(2)}
		time.Sleep(100 * time.Millisecond) // enough for a sync that must not be
		l.wait()
		l.events <- []source.Event{synced}
		l.wait("full +s1 +s2")
	})
}

func TestFirstChangeIsImmediateBurstsAreOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := start(t, Options{MinSyncPeriod: time.Second})
		l.events <- []source.Event{synced}
		l.wait("full")
		time.Sleep(1100 * time.Millisecond) // quiet
		begin := time.Now()
		l.events <- []source.Event{service(1)}
		l.wait("full", "change +s1")
		if took := time.Since(begin); took >= time.Second {
			t.Errorf("the first change after a quiet time waited %v", took)
		}
		for i := 2; i <= 9; i++ {
			l.events <- []source.Event{service(i)}
		}
		l.wait("full", "change +s1", "change +s2 +s3 +s4 +s5 +s6 +s7 +s8 +s9")
	})
}

func TestEventsDuringASyncAreOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := start(t, Options{MinSyncPeriod: time.Nanosecond})
		l.events <- []source.Event{synced}
		l.wait("full")
		busy := make(chan struct{})
		l.set(func() { l.busy = busy })
		l.events <- []source.Event{service(1)}
		l.wait("full", "change +s1")
		for i := 2; i < 10; i += 4 {
			l.events <- []source.Event{service(i), service(i + 1), service(i + 2), service(i + 3)}
		}
		l.set(func() { l.busy = nil })
		synctest.Wait() // until all wait
		close(busy)
		l.wait("full", "change +s1", "change +s2 +s3 +s4 +s5 +s6 +s7 +s8 +s9")
	})
}

func TestNothingToDoIsNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := start(t, Options{})
		l.events <- []source.Event{service(1), synced}
		l.wait("full +s1")
		l.events <- []source.Event{service(1)}
		l.events <- []source.Event{{Type: source.Set, Object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}}}
		l.events <- []source.Event{service(2)}
		l.wait("full +s1", "change +s2")
	})
}

func TestRefusedChangeIsProgrammedInFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := start(t, Options{})
		l.events <- []source.Event{synced}
		l.wait("full")
		l.set(func() { l.fail = []error{errors.New("no")} })
		l.events <- []source.Event{service(1)}
		l.wait("full", "change +s1", "full +s1")
		if n := failures(l, metrics.Change); n != 1 {
			t.Errorf("%v failures counted", n)
		}
		l.events <- []source.Event{service(2)}
		l.wait("full", "change +s1", "full +s1", "change +s2")
	})
}

func TestFailureIsTriedAgainWithWhatCameMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := start(t, Options{})
		no := errors.New("no")
		l.events <- []source.Event{synced}
		l.wait("full")
		l.set(func() { l.fail = []error{no, no} })
		l.events <- []source.Event{service(1)}
		l.wait("full", "change +s1", "full +s1")
		l.events <- []source.Event{{Type: source.Delete, Object: service(1).Object}, service(2)}
		l.wait("full", "change +s1", "full +s1", "full +s2")
		if n := failures(l, metrics.Full); n != 1 {
			t.Errorf("%v failures counted", n)
		}
	})
}

// TestCheckFails checks that a failure that persists is logged once, and again after a success.
func TestCheckFails(t *testing.T) {
	log := readLog(t)
	synctest.Test(t, func(t *testing.T) {
		l := start(t, Options{CheckPeriod: time.Millisecond})
		l.events <- []source.Event{service(1), synced}
		l.wait("full +s1")
		for range 2 {
			l.set(func() { l.blind = errors.New("cannot say") })
			time.Sleep(20 * time.Millisecond)
			l.set(func() { l.blind = nil })
			time.Sleep(20 * time.Millisecond)
		}
		if n := log.count("Could not check the programmed content"); n != 2 {
			t.Errorf("logged %d times, want 2", n)
		}
		l.stop()
	})
}

func TestDamageIsRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := start(t, Options{CheckPeriod: 5 * time.Millisecond, MinSyncPeriod: time.Hour})
		l.events <- []source.Event{service(1), synced}
		l.wait("full +s1")
		l.set(func() { l.check = errors.New("cannot say") })
		time.Sleep(50 * time.Millisecond)
		l.wait("full +s1")
		l.set(func() { l.check = fmt.Errorf("%w: gone", dataplane.ErrDamaged) })
		l.wait("full +s1", "full +s1")
		if n := testutil.ToFloat64(l.metrics.Repairs); n != 1 {
			t.Errorf("%v repairs counted", n)
		}
	})
}

func TestProblemsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := start(t, Options{})
		thief := service(1)
		thief.Object = thief.Object.(*corev1.Service).DeepCopy()
		thief.Object.SetName("thief")
		l.events <- []source.Event{service(1), thief, synced}
		l.wait("full +s1")
		if n := testutil.ToFloat64(l.metrics.ObjectProblems); n != 1 {
			t.Errorf("%v problems counted", n)
		}
	})
}

func TestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := start(t, Options{})
		l.events <- []source.Event{synced}
		l.wait("full")
		l.stop()
		if err := <-l.done; err != nil {
			t.Errorf("stopped: %v", err)
		}
		l = start(t, Options{})
		close(l.events)
		if err := <-l.done; err == nil || !strings.Contains(err.Error(), "the script is over") {
			t.Errorf("the source failed: %v", err)
		}
	})
}

// TestEndIsNoDamage ends the loop during a change while a check is due. The dataplane has
// not finished the change, which is not an external modification.
func TestEndIsNoDamage(t *testing.T) {
	for range 20 { // select chooses among the ready cases at random
		synctest.Test(t, func(t *testing.T) {
			events := make(notes, 10)
			l := start(t, Options{CheckPeriod: 5 * time.Millisecond, Events: events})
			l.events <- []source.Event{synced}
			l.wait("full")
			busy := make(chan struct{})
			l.set(func() { l.busy, l.fail = busy, []error{context.Canceled} })
			l.events <- []source.Event{service(1)}
			l.wait("full", "change +s1")
			l.set(func() { l.check = dataplane.ErrDamaged })
			time.Sleep(20 * time.Millisecond)
			l.stop()
			close(busy)
			if err := <-l.done; err != nil {
				t.Error(err)
			}
			for len(events) > 0 {
				t.Errorf("Event %q", <-events)
			}
		})
	}
}

// lingering is a source that takes a while to end.
type lingering chan struct{}

func (l lingering) Run(ctx context.Context, _ func([]source.Event)) error {
	<-ctx.Done()
	time.Sleep(50 * time.Millisecond)
	close(l)
	return nil
}

func TestRunOutlivesItsSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := make(lingering)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		p := New(l, desired.New(desired.Config{}), &recorder{}, metrics.New(), Options{CheckPeriod: time.Hour})
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
		select {
		case <-l:
		default:
			t.Error("Run has returned, but its source still runs")
		}
	})
}

func TestRepairsBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := start(t, Options{CheckPeriod: time.Millisecond})
		l.events <- []source.Event{synced}
		l.wait("full")
		begin := time.Now()
		for n := 2; n <= 5; n++ { // the first at once, then after 0.1, 0.2 and 0.4 s
			l.set(func() { l.check = dataplane.ErrDamaged })
			l.wait(slices.Repeat([]string{"full"}, n)...)
		}
		if took := time.Since(begin); took < 500*time.Millisecond {
			t.Errorf("four repairs in %v", took)
		}
	})
}
