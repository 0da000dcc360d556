// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"golang.org/x/sys/unix"
)

// contentOf returns the kernel's content for some Services.
func contentOf(services ...int) *dataplane.Content {
	s := desired.New(desired.Config{})
	for _, i := range services {
		ApplyEvent(s, service(i))
	}
	return dataplane.ContentOf(&s.Full().Change)
}

// frontend is the key of a Service's frontend.
func frontend(i int) desired.FrontendKey {
	return desired.FrontendKey{
		AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), 80), Protocol: desired.TCP,
	}
}

// without takes Services' frontends out of a content.
func without(c *dataplane.Content, services ...int) *dataplane.Content {
	for _, i := range services {
		delete(c.Frontends, frontend(i))
	}
	return c
}

// healer records Events, and knows whether there were any.
type healer struct {
	notes
	healed atomic.Bool
}

func newHealer() *healer { return &healer{notes: make(notes, 10)} }

func (h *healer) Warning(reason, note string) {
	h.healed.Store(true) // it is repaired next
	h.notes.Warning(reason, note)
}

// eyes is a Reader with the results of a function of the test; looks count from 1.
type eyes struct {
	see func(look int) (*dataplane.Content, error)

	mu     sync.Mutex
	looks  int
	closed int
}

func (e *eyes) open(context.Context) (Reader, error) { return e, nil }

func (e *eyes) Read(context.Context) (*dataplane.Content, error) {
	e.mu.Lock()
	e.looks++
	look := e.looks
	e.mu.Unlock()
	return e.see(look)
}

func (e *eyes) Rules(context.Context, *desired.Change) (int, []string, error) { return 0, nil, nil }

func (e *eyes) ReadFrontend(ctx context.Context, want *desired.Change) (*dataplane.Content, error) {
	return dataplane.ReadOne(ctx, e.Read, want)
}

func (e *eyes) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed++
	return nil
}

func (e *eyes) counts() (looks, closed int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.looks, e.closed
}

// verified is how many runs there were with a result.
func (l *loop) verified(result string) int {
	l.t.Helper()
	n, err := strconv.Atoi(l.sample(`slipstream_verify_runs_total{result="` + result + `"}`))
	if err != nil {
		l.t.Fatal(err)
	}
	return n
}

func (l *loop) repairs() float64 { return testutil.ToFloat64(l.metrics.Repairs) }

// startVerifying starts a loop that has programmed some Services and looks at them again and
// again.
func startVerifying(t *testing.T, e *eyes, reported *healer, services ...int) *loop {
	t.Helper()
	o := Options{VerifyPeriod: 10 * time.Millisecond, OpenReader: e.open}
	if reported != nil {
		o.Events = reported
	}
	l := start(t, o)
	l.metrics.OnVerify()
	batch := []source.Event{synced}
	for _, i := range services {
		batch = append(batch, service(i))
	}
	l.events <- batch
	l.until("everything is programmed", func() bool { return !l.proxy.Updated().IsZero() })
	return l
}

// TestVerifySame checks that nothing is reported or repaired if the kernel has the desired
// content.
func TestVerifySame(t *testing.T) {
	e := &eyes{see: func(int) (*dataplane.Content, error) { return contentOf(1, 2), nil }}
	l := startVerifying(t, e, nil, 1, 2)
	l.until("three runs", func() bool { return l.verified("same") >= 3 })
	l.wait("full +s1 +s2")
	l.stop()
	<-l.done
	l.until("all is closed", func() bool { looks, closed := e.counts(); return looks == closed })
	if n := l.verified("different") + l.verified("failed"); n != 0 {
		t.Errorf("%d other results", n)
	}
}

// TestVerifyHeals checks that a difference is reported, counted and repaired.
func TestVerifyHeals(t *testing.T) {
	log := readLog(t)
	reported := newHealer()
	var bad atomic.Int32
	e := &eyes{see: func(look int) (*dataplane.Content, error) {
		if look < 2 || reported.healed.Load() {
			return contentOf(1, 2), nil
		}
		bad.Add(1)
		return without(contentOf(1, 2), 2), nil
	}}
	l := startVerifying(t, e, reported, 1, 2)
	l.wait("full +s1 +s2", "full +s1 +s2")
	if got := reported.next(t); !strings.HasPrefix(got, "Damaged ") || !strings.Contains(got, "1 differences, such as - Service default/s2: 10.96.0.2:80/TCP -> reject") {
		t.Errorf("reported %q", got)
	}
	l.until("a good run", func() bool { return l.verified("same") >= 3 })
	if n, repairs := l.verified("different"), l.repairs(); n != 1 || repairs != 1 {
		t.Errorf("%d runs found a difference, %v repairs", n, repairs)
	}
	if n := bad.Load(); n != 2 {
		t.Errorf("it was seen %d times before it counted, want 2", n)
	}
	if n := log.count("- Service default/s2: 10.96.0.2:80/TCP -> reject"); n < 2 { // by itself, and as the reason
		t.Errorf("the log has it %d times", n)
	}
}

// TestVerifyLogIsBounded names some of many differences.
func TestVerifyLogIsBounded(t *testing.T) {
	log := readLog(t)
	reported := newHealer()
	e := &eyes{see: func(int) (*dataplane.Content, error) {
		if reported.healed.Load() {
			return contentOf(1), nil
		}
		c := contentOf(1)
		for i := range logDifferences + 5 {
			c.Frontends[frontend(100+i)] = dataplane.Target{}
		}
		return c, nil
	}}
	l := startVerifying(t, e, reported, 1)
	l.until("it is reported", reported.healed.Load)
	l.until("it is repaired", func() bool { return l.verified("same") > 0 })
	if n := log.count("The kernel differs"); n != logDifferences {
		t.Errorf("%d differences are logged", n)
	}
	if log.count(`number=5`) != 1 {
		t.Error("nothing says that there are more")
	}
}

// TestVerifyLooksTwice checks that differences that do not last are not reported.
func TestVerifyLooksTwice(t *testing.T) {
	e := &eyes{see: func(look int) (*dataplane.Content, error) {
		if look >= 8 {
			return contentOf(1, 2, 3), nil
		}
		return without(contentOf(1, 2, 3), 1+look%3), nil
	}}
	l := startVerifying(t, e, nil, 1, 2, 3)
	l.until("some runs", func() bool { return l.verified("same") >= 5 })
	l.wait("full +s1 +s2 +s3")
	if looks, _ := e.counts(); looks < 4+4 {
		t.Errorf("only %d looks", looks)
	}
}

// TestVerifyMeanwhile programs changes during all looks, in such a way that every look sees the
// same: added Services, removed Services, and Services with other endpoints. They are not
// reported as differences. A real difference is found all the same, after some more looks.
func TestVerifyMeanwhile(t *testing.T) {
	look, seen := make(chan bool), make(chan bool)
	var healed atomic.Bool
	e := &eyes{see: func(int) (*dataplane.Content, error) {
		if healed.Load() {
			return contentOf(1, 2, 3), nil
		}
		look <- true
		<-seen
		c := without(contentOf(1, 2, 4), 2) // this one is damaged
		s1 := c.Frontends[frontend(1)]
		s1.Backends = append(s1.Backends, desired.NewBackend(netip.MustParseAddrPort("10.244.0.1:8080")))
		c.Frontends[frontend(1)] = s1
		c.Sets[desired.HairpinIPs][desired.Address(netip.MustParseAddr("10.244.0.1"))] = true
		c.Faults = append(c.Faults, "a commit came between")
		return c, nil
	}}
	reported := newHealer()
	l := startVerifying(t, e, reported, 1, 2, 3)
	gone := func(e source.Event) source.Event { e.Type = source.Delete; return e }
	calls := []string{"full +s1 +s2 +s3"}
	for n := range busyLooks {
		<-look
		l.events <- []source.Event{gone(service(3)), service(4), slice("s1", 1, "")}
		calls = append(calls, "change +s4 -s3")
		l.wait(calls...)
		l.events <- []source.Event{service(3), gone(service(4)), gone(slice("s1", 1, ""))}
		calls = append(calls, "change +s3 -s4")
		l.wait(calls...)
		if n == busyLooks-1 {
			healed.Store(true)
		}
		seen <- true
	}
	if got := reported.next(t); !strings.Contains(got, "1 differences, such as - Service default/s2: ") {
		t.Errorf("reported %q", got)
	}
	l.wait(append(calls, "full +s1 +s2 +s3")...)
}

// TestVerifyWaits checks that nothing is compared until the kernel has accepted the last
// change.
func TestVerifyWaits(t *testing.T) {
	e := &eyes{see: func(int) (*dataplane.Content, error) { return contentOf(1), nil }}
	l := startVerifying(t, e, nil, 1)
	l.until("a good run", func() bool { return l.verified("same") > 0 })
	l.set(func() { l.fail = slices.Repeat([]error{errors.New("no")}, 10) })
	l.events <- []source.Event{service(2)}
	l.waitFor("full +s1 +s2")
	time.Sleep(30 * time.Millisecond) // for a look that has begun before
	before, _ := e.counts()
	time.Sleep(50 * time.Millisecond)
	if after, _ := e.counts(); after > before+1 { // one may have been late
		t.Errorf("%d looks while the kernel refuses", after-before)
	}
	l.stop()
}

// TestVerifyBeginsAnew checks that verification starts again when the full content was
// programmed in between.
func TestVerifyBeginsAnew(t *testing.T) {
	look, seen := make(chan bool), make(chan bool)
	e := &eyes{see: func(n int) (*dataplane.Content, error) {
		if n > 2 {
			return contentOf(1), nil
		}
		look <- true
		<-seen
		return contentOf(), nil
	}}
	l := startVerifying(t, e, nil, 1)
	for n := range 2 {
		<-look
		if n == 1 {
			l.set(func() { l.fail = []error{errors.New("no")} })
			l.events <- []source.Event{service(2)}
			l.wait("full +s1", "change +s2", "full +s1 +s2")
			gone := service(2)
			gone.Type = source.Delete
			l.events <- []source.Event{gone}
			l.wait("full +s1", "change +s2", "full +s1 +s2", "change -s2")
		}
		seen <- true
	}
	l.until("a good run", func() bool { return l.verified("same") >= 1 })
	if l.verified("different") != 0 || l.repairs() != 0 {
		t.Error("it found a difference")
	}
}

// TestVerifyFails checks that failed reads are counted and tried again.
func TestVerifyFails(t *testing.T) {
	e := &eyes{see: func(look int) (*dataplane.Content, error) {
		if look <= 2 {
			return nil, errors.New("no")
		}
		return contentOf(1), nil
	}}
	l := startVerifying(t, e, nil, 1)
	l.until("a good run", func() bool { return l.verified("same") > 0 })
	if n := l.verified("failed"); n != 2 {
		t.Errorf("%d have failed", n)
	}
	l.wait("full +s1")
}

// TestVerifyInterrupted checks that a look that changes interrupted is repeated, and that too many in a row
// count as a failure.
func TestVerifyInterrupted(t *testing.T) {
	const failures, n = 2, interruptedLooks
	e := &eyes{see: func(look int) (*dataplane.Content, error) {
		if look <= failures*n || look < (failures+2)*n && look%n != 1 {
			return nil, fmt.Errorf("table: %w", dataplane.ErrInterrupted)
		}
		return contentOf(1), nil
	}}
	l := startVerifying(t, e, nil, 1)
	l.until("good runs", func() bool { return l.verified("same") >= 3 })
	if got := l.verified("failed"); got != failures {
		t.Errorf("%d have failed, want %d", got, failures)
	}
	l.wait("full +s1")
}

// TestVerifyOff checks that nothing is compared without a period.
func TestVerifyOff(t *testing.T) {
	e := &eyes{see: func(int) (*dataplane.Content, error) { return contentOf(), nil }}
	l := start(t, Options{OpenReader: e.open, CheckPeriod: time.Millisecond})
	l.events <- []source.Event{service(1), synced}
	l.wait("full +s1")
	time.Sleep(50 * time.Millisecond)
	if looks, _ := e.counts(); looks != 0 {
		t.Errorf("%d looks", looks)
	}
}

// TestVerifyPriority looks with low priority, and leaves that of the process.
func TestVerifyPriority(t *testing.T) {
	usual, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	check(t, err)
	low := min(20-usual+lowPriority, 19)
	if 20-usual == low {
		t.Skip("all of this process has the lowest priority")
	}
	prio := make(chan int, 1)
	e := &eyes{see: func(int) (*dataplane.Content, error) {
		p, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
		if err != nil {
			p = -1
		}
		select {
		case prio <- 20 - p: // as the system call has it
		default:
		}
		return contentOf(1), nil
	}}
	l := startVerifying(t, e, nil, 1)
	if got := <-prio; got != low {
		t.Errorf("nice value %d", got)
	}
	l.until("some runs", func() bool { return l.verified("same") >= 3 })
	l.stop()
	<-l.done
	l.until("no thread has it any more", func() bool {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(tasks, func(e os.DirEntry) bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%s/stat", e.Name()))
			_, after, _ := strings.Cut(string(stat), ") ")
			fields := strings.Fields(after)
			return err == nil && len(fields) > 16 && fields[16] == fmt.Sprint(low)
		})
	})
}
