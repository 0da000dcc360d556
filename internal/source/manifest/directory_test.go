// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/go-logr/logr/funcr"
	"k8s.io/klog/v2"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// patience is how long something may take that should happen at once.
const patience = time.Minute

// testDirectory is a directory with a Source that reads it, and the events and errors that it
// delivered.
type testDirectory struct {
	*testing.T
	dir string

	mu      sync.Mutex
	batches [][]source.Event
	objects map[string]source.Object // as the events have it
	errs    []*Error
	logs    []string
	block   chan struct{} // the sink waits until it is closed
	blocked bool          // the sink waits, or has

	stop    context.CancelFunc
	stopped chan error
	markers int
}

// newTestDirectory makes a directory with the given files, name and content in turn.
func newTestDirectory(t *testing.T, files ...string) *testDirectory {
	t.Helper()
	w := &testDirectory{T: t, dir: filepath.Join(t.TempDir(), "manifests"), objects: map[string]source.Object{}}
	w.check(os.Mkdir(w.dir, 0o755))
	for i := 0; i < len(files); i += 2 {
		w.write(files[i], files[i+1])
	}
	return w
}

// start runs a Source on the directory and waits until it is synced.
func (w *testDirectory) start() *testDirectory {
	w.Helper()
	logger := funcr.New(func(prefix, args string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.logs = append(w.logs, args)
	}, funcr.Options{Verbosity: 2})
	ctx, stop := context.WithCancel(klog.NewContext(context.Background(), logger))
	w.stop, w.stopped = stop, make(chan error, 1)
	var inSink, returned atomic.Bool
	s := New(w.dir, func(err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		var e *Error
		if !errors.As(err, &e) {
			w.Errorf("the error is a %T: %v", err, err)
			return
		}
		w.errs = append(w.errs, e)
	})
	go func() {
		err := s.Run(ctx, func(batch []source.Event) {
			if !inSink.CompareAndSwap(false, true) || returned.Load() {
				w.Error("the sink is called concurrently or after the end")
			}
			defer inSink.Store(false)
			w.mu.Lock()
			block := w.block
			w.blocked = block != nil
			w.mu.Unlock()
			if block != nil {
				<-block
			}
			w.took(batch)
		})
		returned.Store(true)
		w.stopped <- err
	}()
	w.Cleanup(w.end)
	w.until("synced", func() bool { return len(w.batches) > 0 })
	return w
}

// end stops the Source and checks that it ends well.
func (w *testDirectory) end() {
	w.stop()
	select {
	case err := <-w.stopped:
		w.stopped <- err // for whoever asks again
		if err != nil {
			w.Errorf("Run: %v", err)
		}
	case <-time.After(patience):
		w.Error("Run does not return")
	}
	if w.Failed() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.Logf("batches: %v", w.batches)
		w.Logf("errors: %v", w.errs)
		w.Logf("logs: %s", strings.Join(w.logs, "\n"))
	}
}

// took applies a batch to the known objects and checks its consistency.
func (w *testDirectory) took(batch []source.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(batch) == 0 {
		w.Error("an empty batch")
	}
	seen := map[string]bool{}
	for i, e := range batch {
		if e.Type == source.Synced {
			if len(w.batches) != 0 || i != len(batch)-1 || e.Object != nil {
				w.Errorf("Synced at %d of batch %d", i, len(w.batches))
			}
			continue
		}
		name := source.Name(e.Object)
		if seen[name] {
			w.Errorf("%s twice in a batch", name)
		}
		seen[name] = true
		_, exists := w.objects[name]
		switch e.Type {
		case source.Set:
			w.objects[name] = e.Object
		case source.Delete:
			if !exists {
				w.Errorf("%s is deleted but does not exist", name)
			}
			delete(w.objects, name)
		default:
			w.Errorf("event %v", e)
		}
	}
	w.batches = append(w.batches, batch)
}

func (w *testDirectory) check(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *testDirectory) path(name string) string { return filepath.Join(w.dir, name) }

// write writes a file as sed -i does: write another one, then rename it.
func (w *testDirectory) write(name, content string) {
	w.Helper()
	temporary := filepath.Join(filepath.Dir(w.path(name)), ".tmp")
	w.check(os.WriteFile(temporary, []byte(content), 0o644))
	w.check(os.Rename(temporary, w.path(name)))
}

// overwrite writes a file as the shell's > does: truncate, then write.
func (w *testDirectory) overwrite(name, content string) {
	w.Helper()
	w.check(os.WriteFile(w.path(name), []byte(content), 0o644))
}

func (w *testDirectory) remove(name string) {
	w.Helper()
	w.check(os.Remove(w.path(name)))
}

// until waits until a condition holds, which is checked under the lock.
func (w *testDirectory) until(what string, holds func() bool) {
	w.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		w.mu.Lock()
		ok := holds()
		w.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(end) {
			w.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// ip returns the cluster IP of a Service of the default namespace as the events
// have it, or "".
func (w *testDirectory) ip(name string) string {
	if s, ok := w.objects["Service default/"+name].(*corev1.Service); ok {
		return s.Spec.ClusterIP
	}
	return ""
}

// untilIP waits until a Service has the last octet of its cluster IP; 0 waits
// until there is no such Service.
func (w *testDirectory) untilIP(name string, octet int) {
	w.Helper()
	want := ""
	if octet > 0 {
		want = fmt.Sprintf("10.96.0.%d", octet)
	}
	w.until(fmt.Sprintf("Service %s with IP %q", name, want), func() bool { return w.ip(name) == want })
}

// untilError waits for an error about a file that contains a text.
func (w *testDirectory) untilError(file, text string) {
	w.Helper()
	w.until(fmt.Sprintf("an error of %s with %q", file, text), func() bool { return w.errorCount(file, text) > 0 })
}

func (w *testDirectory) errorCount(file, text string) int {
	n := 0
	for _, e := range w.errs {
		if m := e.Error(); strings.HasPrefix(m, file+": ") && strings.Contains(m, text) {
			n++
		}
	}
	return n
}

// marker makes a change and waits for its event, so that the events of all earlier changes were
// delivered.
func (w *testDirectory) marker() {
	w.Helper()
	w.markers++
	w.write("zz-marker.yaml", service("marker", w.markers))
	w.untilIP("marker", w.markers)
}

// events returns the events since batch number from, without those of the marker.
func (w *testDirectory) events(from int) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []string
	for _, batch := range w.batches[from:] {
		for _, e := range batch {
			if s := e.String(); !strings.Contains(s, "marker") {
				list = append(list, s)
			}
		}
	}
	return list
}

func (w *testDirectory) batchCount() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.batches)
}

// wantEvents checks the events since batch number from.
func (w *testDirectory) wantEvents(from int, want ...string) {
	w.Helper()
	if got := w.events(from); !slices.Equal(got, want) {
		w.Errorf("events %q, want %q", got, want)
	}
}

// wantNoDelete checks that nothing was deleted since batch number from.
func (w *testDirectory) wantNoDelete(from int) {
	w.Helper()
	for _, e := range w.events(from) {
		if strings.HasPrefix(e, "Delete ") {
			w.Errorf("%s, but nothing should be", e)
		}
	}
}

// problems returns the errors so far.
func (w *testDirectory) problems() []*Error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.errs)
}

// log returns the logs so far.
func (w *testDirectory) log() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.logs, "\n")
}

// count returns how many errors a file has had.
func (w *testDirectory) count(file string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.errorCount(file, "")
}
