// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// clock is a watch whose time the test makes pass.
type clock struct {
	*watch
	t       *testing.T
	now     time.Time
	deletes int
}

// newClock starts a watch on a new directory with one file, web.yaml.
func newClock(t *testing.T) *clock {
	dir := filepath.Join(t.TempDir(), "manifests")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "web.yaml"), []byte(service("web", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	w, err := newWatch(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	c := &clock{watch: w, t: t, now: time.Now()}
	w.log = klog.TODO()
	w.report = func(*Error) {}
	w.sink = func(batch []source.Event) {
		for _, e := range batch {
			if e.Type == source.Delete {
				c.deletes++
			}
		}
	}
	w.scan(c.now, settleGone)
	c.pass(settleUnknown)
	if !w.synced || len(w.table.current) != 1 {
		t.Fatalf("synced %v with %v", w.synced, w.table.current)
	}
	return c
}

// pass makes time pass in small steps, without polls and notifications.
func (c *clock) pass(d time.Duration) {
	for end := c.now.Add(d); c.now.Before(end); {
		c.now = c.now.Add(settle)
		c.poll = c.now.Add(time.Hour)
		c.work(context.Background(), c.now)
	}
}

func (c *clock) wantDeletes(when string, n int) {
	c.t.Helper()
	if c.deletes != n {
		c.t.Errorf("%s: %d objects were withdrawn, want %d", when, c.deletes, n)
	}
}

// TestFileGoneBeforeDirectory has the file be noticed to be gone long before
// the directory is.
func TestFileGoneBeforeDirectory(t *testing.T) {
	c := newClock(t)
	if err := os.RemoveAll(c.dir); err != nil {
		t.Fatal(err)
	}
	c.look("web.yaml", c.now, 0)
	c.pass(settleGone / 2)
	if c.gone || c.pending["web.yaml"] == nil {
		t.Fatal("the directory is already known to be gone")
	}
	c.pass(10 * settleMax)
	if !c.gone {
		t.Error("the directory is not known to be gone")
	}
	c.wantDeletes("without a directory", 0)

	if err := os.Mkdir(c.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c.checkDirectory(c.now)
	c.pass(settleBack - 2*settle)
	c.wantDeletes("just after it came back", 0)
	c.pass(4 * settle)
	c.wantDeletes("some time after it came back", 1)
}

// TestDirectoryGoneWithPendingFile has the directory be noticed to be gone
// while a file is waited for.
func TestDirectoryGoneWithPendingFile(t *testing.T) {
	c := newClock(t)
	if err := os.RemoveAll(c.dir); err != nil {
		t.Fatal(err)
	}
	c.look("web.yaml", c.now, 0)
	c.pass(settleGone / 2)
	c.checkDirectory(c.now)
	c.pass(10 * settleMax)
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c.checkDirectory(c.now)
	c.pass(settleBack - 2*settle)
	c.wantDeletes("just after it came back", 0)
	c.pass(4 * settle)
	c.wantDeletes("some time after it came back", 1)
}

// TestRemovalsThatGoOn has files keep going for longer than a file may be gone:
// perhaps the directory is being removed.
func TestRemovalsThatGoOn(t *testing.T) {
	c := newClock(t)
	path := filepath.Join(c.dir, "web.yaml")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	c.noticed(fsnotify.Event{Name: path, Op: fsnotify.Remove}, c.now)
	for range 5 {
		c.pass(settleGone - 2*settle)
		c.noticed(fsnotify.Event{Name: filepath.Join(c.dir, "other.yaml"), Op: fsnotify.Remove}, c.now)
	}
	c.wantDeletes("while others go", 0)
	c.pass(settleGone + 2*settle)
	c.wantDeletes("afterwards", 1)
}

// TestRemovedDirectoryIsAnother has a directory be made anew with, perhaps, the
// inode number of the one that was removed.
func TestRemovedDirectoryIsAnother(t *testing.T) {
	c := newClock(t)
	if !c.sameDirectory() {
		t.Fatal("it is not the same at the start")
	}
	c.noticed(fsnotify.Event{Name: c.dir, Op: fsnotify.Remove}, c.now)
	if c.sameDirectory() {
		t.Error("it is taken for the one that is watched")
	}
}
