// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	componentbase "k8s.io/component-base/config/v1alpha1"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// patience bounds how long a test waits for an event that is usually immediate.
const patience = time.Minute

func TestMain(m *testing.M) {
	backoff.Duration, backoff.Cap = 20*time.Millisecond, 50*time.Millisecond
	askAgain = 50 * time.Millisecond
	m.Run()
}

// world is a running source, and the events and errors that it delivered.
type world struct {
	*server
	t       *testing.T
	client  *Client
	options Options
	source  *Source
	cancel  context.CancelFunc
	closed  atomic.Bool // connections are refused
	done    chan error

	seeing  sync.Mutex // guards the fields below
	events  []source.Event
	news    int // how many events the test has seen
	errors  []string
	block   chan struct{} // while not nil, the sink waits for it
	blocked bool
}

// newWorld makes a server, and a source that is not running yet.
func newWorld(t *testing.T, media string, objects ...source.Object) *world {
	w := &world{server: newServer(t, media), t: t, done: make(chan error, 1)}
	w.set(objects...)
	w.options = Options{
		NodeName: "n1",
		OnError: func(err error) {
			w.seeing.Lock()
			defer w.seeing.Unlock()
			w.errors = append(w.errors, strings.ReplaceAll(err.Error(), w.URL, "URL"))
		},
	}
	w.client = w.newClient(componentbase.ClientConnectionConfiguration{QPS: 10000, Burst: 10000}, w.URL)
	return w
}

func (w *world) newClient(connection componentbase.ClientConnectionConfiguration, master string) *Client {
	w.t.Helper()
	config, err := ClientConfig(connection, master, "test")
	if err != nil {
		w.t.Fatal(err)
	}
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if w.closed.Load() {
			return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", unix.ECONNREFUSED)}
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	c, err := NewClient(config)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// start runs the source until the test ends.
func (w *world) start() *world {
	ctx, cancel := context.WithCancel(w.t.Context())
	w.cancel = cancel
	w.source = New(w.client, w.options)
	q := source.NewQueue(ctx)
	go func() { w.done <- w.source.Run(ctx, q.Put) }()
	go func() {
		for {
			select {
			case <-q.Ready:
				w.sink(q.Take())
			case <-ctx.Done():
				return
			}
		}
	}()
	w.t.Cleanup(w.stop)
	return w
}

func (w *world) stop() {
	if w.cancel == nil {
		return
	}
	w.cancel()
	w.cancel = nil
	select {
	case err := <-w.done:
		if err != nil {
			w.t.Errorf("Run: %v", err)
		}
	case <-time.After(patience):
		w.t.Error("Run does not end")
	}
}

func (w *world) sink(batch []source.Event) {
	w.seeing.Lock()
	block := w.block
	w.blocked = block != nil
	w.seeing.Unlock()
	if block != nil {
		<-block
	}
	w.seeing.Lock()
	defer w.seeing.Unlock()
	w.blocked = false
	seen := map[string]bool{}
	for _, e := range batch {
		if e.Object == nil {
			continue
		}
		r := source.Name(e.Object)
		if seen[r] {
			w.t.Errorf("two events for %v in a batch", r)
		}
		seen[r] = true
	}
	if len(batch) == 0 {
		w.t.Error("empty batch")
	}
	w.events = append(w.events, batch...)
}

// eventually waits until f returns true.
func (w *world) eventually(what string, f func() bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.seeing.Lock()
			defer w.seeing.Unlock()
			w.t.Fatalf("waited for %s in vain; events %v, errors %q", what, w.events[w.news:], w.errors)
		}
	}
}

// seen returns the events since its last call.
func (w *world) seen() []source.Event {
	w.seeing.Lock()
	defer w.seeing.Unlock()
	e := slices.Clone(w.events[w.news:])
	w.news = len(w.events)
	return e
}

// expect waits for as many events as are named, and takes them if they are the ones
// named, in any order.
func (w *world) expect(want ...string) []source.Event {
	w.t.Helper()
	w.eventually(strings.Join(want, ", "), func() bool {
		w.seeing.Lock()
		defer w.seeing.Unlock()
		return len(w.events)-w.news >= len(want)
	})
	events := w.seen()
	var got []string
	for _, e := range events {
		got = append(got, e.String())
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		w.t.Fatalf("events %q, want %q", got, want)
	}
	return events
}

// settled waits until everything that the server has sent was processed: another object of each
// kind, the last in its stream, was set and deleted.
func (w *world) settled() {
	w.t.Helper()
	marks := []source.Object{service("zz-mark", "10.9.9.9"), slice("zz-mark")}
	w.set(marks...)
	w.eventually("a mark", func() bool { return w.has("Set Service default/zz-mark") && w.has("Set EndpointSlice default/zz-mark") })
	for _, m := range marks {
		w.remove(m)
	}
	w.eventually("the end of a mark", func() bool {
		return w.has("Delete Service default/zz-mark") && w.has("Delete EndpointSlice default/zz-mark")
	})
	w.seeing.Lock()
	defer w.seeing.Unlock()
	w.events = slices.DeleteFunc(w.events, func(e source.Event) bool { return e.Object != nil && e.Object.GetName() == "zz-mark" })
}

// has reports whether an event was delivered since the last call of seen.
func (w *world) has(event string) bool {
	w.seeing.Lock()
	defer w.seeing.Unlock()
	return slices.ContainsFunc(w.events[w.news:], func(e source.Event) bool { return e.String() == event })
}

// reported returns the errors so far.
func (w *world) reported() []string {
	w.seeing.Lock()
	defer w.seeing.Unlock()
	return slices.Clone(w.errors)
}

// expectReported waits for an error and compares all errors so far.
func (w *world) expectReported(want ...string) {
	w.t.Helper()
	w.eventually("an error", func() bool { return len(w.reported()) >= len(want) })
	if got := w.reported(); !slices.Equal(got, want) {
		w.t.Fatalf("errors %q, want %q", got, want)
	}
}

// listings returns how often the server has sent all objects of a resource.
func (w *world) listings(resource string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lists[resource]
}

// allWatch waits until all kinds of objects are watched.
func (w *world) allWatch() {
	w.t.Helper()
	w.eventually("all watches", func() bool {
		return w.watching("services") == 1 && w.watching("endpointslices") == 1 && w.watching("nodes") == 1 && w.watching("servicecidrs") == 1
	})
}
