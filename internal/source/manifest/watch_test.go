// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// clock is a watch without a goroutine, for which the test chooses the time.
type clock struct {
	*testDirectory
	watch  *watch
	events []string
}

// newClock starts a watch on a directory with the file web.yaml.
func newClock(t *testing.T) *clock {
	c := &clock{testDirectory: newTestDirectory(t, "web.yaml", service("web", 1))}
	w, err := newWatch(c.dir)
	c.check(err)
	t.Cleanup(w.close)
	c.watch = w
	w.log = klog.TODO()
	w.onError = func(err error) { t.Error(err) }
	w.sink = func(batch []source.Event) {
		for _, e := range batch {
			c.events = append(c.events, e.String())
		}
	}
	c.settled("Set Service default/web", "Synced")
	return c
}

// newest returns the time of the last change to the directory or a file.
func (c *clock) newest() (newest time.Time) {
	err := fs.WalkDir(os.DirFS(c.dir), ".", func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.ModTime().After(newest) {
			newest = info.ModTime()
		}
		return err
	})
	c.check(err)
	return newest
}

// wait looks just before the settling period of the last change ends: nothing must
// happen.
func (c *clock) wait() {
	c.Helper()
	c.watch.changed = true
	if delay := c.watch.look(c.newest().Add(settle - time.Millisecond)); delay != time.Millisecond {
		c.Errorf("looks again after %s", delay)
	}
	c.want()
}

// settled looks when the settling period has ended.
func (c *clock) settled(want ...string) {
	c.Helper()
	c.watch.changed = true
	c.watch.look(c.newest().Add(settle))
	c.want(want...)
}

func (c *clock) want(want ...string) {
	c.Helper()
	if !slices.Equal(c.events, want) {
		c.Errorf("events %q, want %q", c.events, want)
	}
	c.events = nil
}

// TestHalfWritten writes a file in two steps. The first half is valid, but deletes an
// object and changes another one.
func TestHalfWritten(t *testing.T) {
	c := newClock(t)
	first, second := service("web", 2), "---\n"+service("last", 2)
	c.overwrite("web.yaml", service("web", 1)+"---\n"+service("last", 1))
	c.settled("Set Service default/last")
	f, err := os.OpenFile(c.path("web.yaml"), os.O_WRONLY|os.O_TRUNC, 0)
	c.check(err)
	c.wait()
	_, err = f.WriteString(first)
	c.check(err)
	c.wait()
	_, err = f.WriteString(second)
	c.check(err)
	c.wait()
	c.check(f.Close())
	c.settled("Set Service default/last", "Set Service default/web")
}

// TestSameTimeOfModification writes a file as "cp -p" does: with the size and the time of
// modification that it had before.
func TestSameTimeOfModification(t *testing.T) {
	c := newClock(t)
	before, err := os.Stat(c.path("web.yaml"))
	c.check(err)
	time.Sleep(20 * time.Millisecond) // files have the time of the kernel's last tick
	c.check(os.WriteFile(c.path("web.yaml"), []byte(service("web", 2)), 0o644))
	c.check(os.Chtimes(c.path("web.yaml"), time.Time{}, before.ModTime()))
	after, err := os.Stat(c.path("web.yaml"))
	c.check(err)
	if after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime()) {
		t.Fatalf("the file has %d bytes of %v, before %d of %v", after.Size(), after.ModTime(), before.Size(), before.ModTime())
	}
	c.settled("Set Service default/web")
}

// TestSyncedWithAllFiles writes a file between the moments in which the first look finds
// it and reads it: when the other file has been decoded.
func TestSyncedWithAllFiles(t *testing.T) {
	pod := "---\napiVersion: v1\nkind: Pod\n"
	c := &clock{testDirectory: newTestDirectory(t, "a.yaml", service("a", 1)+pod, "b.yaml", service("b", 1)+pod)}
	w, err := newWatch(c.dir)
	c.check(err)
	t.Cleanup(w.close)
	c.watch = w
	written := false
	w.log = funcr.New(func(_, args string) {
		if other := map[bool]string{true: "a", false: "b"}[strings.Contains(args, "b.yaml")]; !written {
			written = true
			c.overwrite(other+".yaml", service(other, 2)+"# the size differs, as the time may not\n")
		}
	}, funcr.Options{})
	w.onError = func(err error) { t.Error(err) }
	w.sink = func(batch []source.Event) {
		for _, e := range batch {
			c.events = append(c.events, e.String())
		}
	}
	c.settled()
	if !written {
		t.Error("no file was written meanwhile")
	}
	c.settled("Set Service default/a", "Set Service default/b", "Synced")
}

func TestEditors(t *testing.T) {
	c := newClock(t)
	content := func(octet int) string { return service("web", octet) + "---\n" + service("other", 1) }
	c.write("web.yaml", content(2)) // sed -i
	c.settled("Set Service default/other", "Set Service default/web")

	c.overwrite("4913", "") // vim: may files be made here?
	c.remove("4913")
	c.check(os.Rename(c.path("web.yaml"), c.path("web.yaml~")))
	c.wait()
	c.overwrite("web.yaml", content(3))
	c.remove("web.yaml~")
	c.settled("Set Service default/web")

	c.overwrite(".#web.yaml", "") // emacs: a lock, and an in-place save
	c.overwrite("web.yaml", content(4))
	c.remove(".#web.yaml")
	c.settled("Set Service default/web")

	c.remove("web.yaml") // delete and write
	c.wait()
	c.overwrite("web.yaml", content(5))
	c.settled("Set Service default/web")
}

// TestChangesThatGoOn checks that a file that changes all the time delays the others for a
// limited time.
func TestChangesThatGoOn(t *testing.T) {
	c := newClock(t)
	c.write("other.yaml", service("other", 1))
	c.watch.changed = true
	now := c.newest()
	for end := now.Add(settleMax); now.Before(end); now = now.Add(settle / 2) {
		c.check(os.Chtimes(c.path("web.yaml"), now, now))
		c.watch.look(now)
		c.want()
	}
	c.check(os.Chtimes(c.path("web.yaml"), now, now))
	c.watch.look(now)
	c.want("Set Service default/other")
}

// TestTimeInTheFuture uses a directory and a file with a modification time in the future.
func TestTimeInTheFuture(t *testing.T) {
	c := newClock(t)
	c.write("other.yaml", service("other", 1))
	now := c.newest().Add(settle)
	for _, path := range []string{c.dir, c.path("other.yaml")} {
		c.check(os.Chtimes(path, now, now.Add(time.Hour)))
	}
	c.watch.changed = true
	c.watch.look(now)
	c.want("Set Service default/other")
}

// TestTimeInTheFutureOfAnother writes a file beside one with a wrong time of modification.
func TestTimeInTheFutureOfAnother(t *testing.T) {
	c := newClock(t)
	c.write("other.yaml", service("other", 1))
	wrote := c.newest()
	c.check(os.Chtimes(c.path("web.yaml"), wrote, wrote.Add(time.Hour)))
	c.watch.changed = true
	if delay := c.watch.look(wrote.Add(settle - time.Millisecond)); delay != time.Millisecond {
		t.Errorf("looks again after %s", delay)
	}
	c.want()
}

// TestUnreadableFileIsPolled reads a file that could not be read again without a notification.
func TestUnreadableFileIsPolled(t *testing.T) {
	c := newClock(t)
	errs := 0
	c.watch.onError = func(error) { errs++ }
	c.overwrite("web.yaml", "")
	c.settled()
	c.overwrite("web.yaml", service("web", 2))
	c.watch.look(c.newest().Add(settle))
	c.want("Set Service default/web")
	if errs != 1 {
		t.Errorf("%d errors, want 1", errs)
	}
}

// TestDirectoryWithoutSearchPermission uses a directory that can be listed, but no file in it
// can be read.
func TestDirectoryWithoutSearchPermission(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("takes on another user's rights, so needs root")
	}
	c := newClock(t)
	var errs []string
	c.watch.onError = func(err error) { errs = append(errs, err.Error()) }
	for dir := filepath.Dir(c.dir); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		c.check(os.Chmod(dir, 0o755))
	}
	c.check(os.Chmod(c.dir, 0o744))
	now := c.newest().Add(settle)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c.check(unix.Setfsuid(65534))
	defer func() { c.check(unix.Setfsuid(0)) }()
	c.watch.changed = true
	c.watch.look(now)
	c.want()
	if len(errs) != 1 || !strings.HasSuffix(errs[0], "permission denied: keeping the 1 objects known from it") {
		t.Errorf("errors %q", errs)
	}
}

// TestDirectoryIsFilledAgain removes the directory and creates it again, empty. Its objects are
// deleted only when it has been empty for a while, as it may be about to be filled.
func TestDirectoryIsFilledAgain(t *testing.T) {
	c := newClock(t)
	var errs []string
	c.watch.onError = func(err error) { errs = append(errs, err.Error()) }
	c.check(os.RemoveAll(c.dir))
	for range 3 {
		c.watch.look(time.Now())
	}
	c.want()
	if len(errs) != 1 || !strings.HasSuffix(errs[0], "keeping the 1 objects known from it") {
		t.Errorf("errors %q", errs)
	}
	c.check(os.Mkdir(c.dir, 0o755))
	if delay := c.watch.look(c.newest().Add(settle)); delay != settleBack-settle {
		t.Errorf("looks again after %s", delay)
	}
	c.want()
	c.watch.look(c.newest().Add(settleBack))
	c.want("Delete Service default/web")
}
