// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

func TestRunWithoutDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Join(t.TempDir(), "none"), file} {
		err := New(dir, func(err error) { t.Error(err) }).Run(context.Background(), func([]source.Event) { t.Error("an event") })
		if err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("Run: %v, want an error that names %s", err, dir)
		}
	}
}

func TestInitialContent(t *testing.T) {
	w := newTestDirectory(t,
		"b.yaml", service("b", 2)+"---\n"+sliceYAML,
		"a.json", jsonService("a", 1),
		"c.yml", nodeYAML+"---\n"+serviceCIDRYAML,
		".hidden.yaml", service("hidden", 3),
		"notes.txt", "not: [yaml",
	)
	w.check(os.Mkdir(w.path("sub.yaml"), 0o755))
	w.check(os.WriteFile(w.path("sub.yaml/d.yaml"), []byte(service("d", 4)), 0o644))
	w.start()
	w.wantEvents(0, "Set Node node-1", "Set ServiceCIDR extra", "Set Service default/a", "Set Service default/b", "Set EndpointSlice shop/web-1", "Synced")
	if w.batchCount() != 1 || len(w.problems()) != 0 {
		t.Errorf("%d batches, errors %v", w.batchCount(), w.problems())
	}
}

func TestEmptyDirectory(t *testing.T) {
	w := newTestDirectory(t).start()
	w.wantEvents(0, "Synced")
	w.write("a.yaml", service("a", 1))
	w.untilIP("a", 1)
}

func TestOneSaveIsOneBatch(t *testing.T) {
	both := func(octet int) string { return service("web", octet) + "---\n" + sliceYAML }
	w := newTestDirectory(t).start()
	w.write("web.yaml", both(1))
	w.untilIP("web", 1)
	w.write("web.yaml", strings.Replace(both(2), "10.0.0.1", "10.0.0.2", 1))
	w.untilIP("web", 2)
	w.write("web.yaml", service("new", 3)+"---\n"+sliceYAML) // web becomes new
	w.untilIP("new", 3)
	w.wantEvents(1, "Set Service default/web", "Set EndpointSlice shop/web-1",
		"Set Service default/web", "Set EndpointSlice shop/web-1",
		"Set Service default/new", "Delete Service default/web", "Set EndpointSlice shop/web-1")
	if n := w.batchCount(); n != 4 {
		t.Errorf("%d batches, want 4", n)
	}
}

func TestUnchangedIsNoEvent(t *testing.T) {
	w := newTestDirectory(t, "web.yaml", service("web", 1)).start()
	w.write("web.yaml", service("web", 1))
	w.marker()
	w.write("web.yaml", "# the same in other words\n"+jsonService("web", 1))
	w.marker()
	now := time.Now()
	w.check(os.Chtimes(w.path("web.yaml"), now, now))
	w.marker()
	w.wantEvents(1)
}

func TestBreakAndRepair(t *testing.T) {
	w := newTestDirectory(t, "web.yaml", service("a", 1)+"---\n"+service("b", 2)+"---\n"+service("c", 3)).start()

	// a is not valid, b changes, c is taken out, d is new.
	w.write("web.yaml", strings.Replace(service("a", 10), "80", "70000", 1)+"---\n"+service("b", 20)+"---\n"+service("d", 4))
	w.untilError("web.yaml", "document 1: Service default/a: spec.ports[0].port: Invalid value: 70000: must be between 1 and 65535, inclusive")
	w.untilIP("d", 4)
	w.wantEvents(1, "Set Service default/b", "Set Service default/d")

	// Nothing of it can be read.
	w.write("web.yaml", "spec: [")
	w.untilError("web.yaml", "document 1: YAML: ")
	w.marker()
	w.wantEvents(1, "Set Service default/b", "Set Service default/d")

	// The same error of the same content is not reported again.
	errs := len(w.problems())
	w.write("web.yaml", "spec: [")
	w.marker()
	if len(w.problems()) != errs {
		t.Errorf("errors again: %v", w.problems()[errs:])
	}

	from := w.batchCount()
	w.write("web.yaml", service("a", 10)+"---\n"+service("b", 20))
	w.untilIP("a", 10)
	w.wantEvents(from, "Set Service default/a", "Delete Service default/c", "Delete Service default/d")
	w.until("a log that all is well", func() bool { return strings.Contains(strings.Join(w.logs, "\n"), "All manifests are valid again") })
}

func TestRenameFile(t *testing.T) {
	w := newTestDirectory(t, "m.yaml", service("a", 1)).start()
	for i, to := range []string{"z.yaml", "b.yaml"} { // up and down in the order
		from := []string{"m.yaml", "z.yaml"}[i]
		w.check(os.Rename(w.path(from), w.path(to)))
		w.marker()
		w.write(to, service("a", 2+i))
		w.untilIP("a", 2+i)
	}
	w.wantEvents(1, "Set Service default/a", "Set Service default/a")
	if len(w.problems()) != 0 {
		t.Errorf("errors %v", w.problems())
	}
	w.remove("b.yaml")
	w.untilIP("a", 0)

	w.write("a.yaml", service("a", 5))
	w.untilIP("a", 5)
	w.check(os.Rename(w.path("a.yaml"), w.path("a.yaml.off")))
	w.untilIP("a", 0)
}

func TestRemoveFile(t *testing.T) {
	w := newTestDirectory(t, "a.yaml", service("a", 1), "b.yaml", service("b", 2)+"---\nnot: good\n").start()
	w.remove("a.yaml")
	w.untilIP("a", 0)
	w.remove("b.yaml") // its errors go with it
	w.untilIP("b", 0)
	w.write("b.yaml", service("b", 3))
	w.untilIP("b", 3)
	w.write("b.yaml", "# nothing\n")
	w.untilIP("b", 0)
}

func TestSameObjectInTwoFiles(t *testing.T) {
	w := newTestDirectory(t, "b.yaml", service("web", 2)).start()

	w.write("a.yaml", service("web", 1)) // comes first and takes over
	w.untilIP("web", 1)
	w.untilError("b.yaml", "document 1: Service default/web: a.yaml has it too and counts")

	w.write("c.yaml", "# c\n---\n"+service("web", 3)) // comes last
	w.untilError("c.yaml", "document 1: Service default/web: a.yaml has it too and counts")
	w.write("b.yaml", service("web", 22)) // does not count
	w.marker()
	if got := w.count("b.yaml") + w.count("c.yaml"); got != 2 {
		t.Errorf("%d errors, want one for each of the two files", got)
	}
	w.wantEvents(1, "Set Service default/web")

	w.remove("a.yaml") // b takes over, without a gap
	w.untilIP("web", 22)
	w.untilError("c.yaml", "b.yaml has it too and counts")

	w.write("b.yaml", "# gave up\n") // and c
	w.untilIP("web", 3)
	w.wantEvents(1, "Set Service default/web", "Set Service default/web", "Set Service default/web")

	w.remove("c.yaml")
	w.untilIP("web", 0)
}

func TestEmptyFileIsBeingWritten(t *testing.T) {
	w := newTestDirectory(t, "web.yaml", service("web", 1), "new.yaml", "").start()
	w.overwrite("web.yaml", "")
	w.untilError("web.yaml", "is empty")
	w.untilError("new.yaml", "is empty")
	w.wantEvents(1)
	w.marker()
	w.write("web.yaml", service("web", 2))
	w.untilIP("web", 2)
	w.wantEvents(1, "Set Service default/web")
	w.write("new.yaml", service("new", 3))
	w.untilIP("new", 3)
	if n := w.count("web.yaml"); n != 1 {
		t.Errorf("%d errors of web.yaml, want one", n)
	}
}

// TestWriterThatStays keeps the file open for writing, as some tools do.
func TestWriterThatStays(t *testing.T) {
	w := newTestDirectory(t, "web.yaml", service("web", 1)).start()
	f, err := os.OpenFile(w.path("web.yaml"), os.O_WRONLY|os.O_TRUNC, 0)
	w.check(err)
	defer f.Close()
	_, err = f.WriteString(service("web", 2))
	w.check(err)
	w.untilIP("web", 2)
}

// TestVolume does what a kubelet does with a ConfigMap volume.
func TestVolume(t *testing.T) {
	w := newTestDirectory(t)
	version := 0
	swap := func(files map[string]string) {
		w.Helper()
		version++
		data := fmt.Sprintf("..v%d", version)
		w.check(os.Mkdir(w.path(data), 0o755))
		for name, content := range files {
			w.write(filepath.Join(data, name), content)
		}
		w.check(os.Symlink(data, w.path("..data_tmp")))
		w.check(os.Rename(w.path("..data_tmp"), w.path("..data")))
		for name := range files {
			if _, err := os.Lstat(w.path(name)); err != nil {
				w.check(os.Symlink(filepath.Join("..data", name), w.path(name)))
			}
		}
		if version > 1 {
			w.check(os.RemoveAll(w.path(fmt.Sprintf("..v%d", version-1))))
		}
	}
	swap(map[string]string{"a.yaml": service("a", 1), "b.yaml": service("b", 1)})
	w.start()
	w.wantEvents(0, "Set Service default/a", "Set Service default/b", "Synced")

	swap(map[string]string{"a.yaml": service("a", 2), "b.yaml": service("b", 1)})
	w.untilIP("a", 2)
	w.wantEvents(1, "Set Service default/a")

	from := w.batchCount()
	swap(map[string]string{"a.yaml": service("a", 3), "b.yaml": service("b", 3)})
	w.untilIP("a", 3)
	w.wantEvents(from, "Set Service default/a", "Set Service default/b") // in one batch
	if n := w.batchCount(); n != from+1 {
		t.Errorf("%d batches for one swap", n-from)
	}

	swap(map[string]string{"a.yaml": service("a", 3)})
	w.remove("b.yaml")
	w.untilIP("b", 0)
	if len(w.problems()) != 0 {
		t.Errorf("errors %v", w.problems())
	}
}

func TestSymbolicLinks(t *testing.T) {
	w := newTestDirectory(t)
	other := t.TempDir()
	target := filepath.Join(other, "target")
	w.check(os.WriteFile(target, []byte(service("web", 1)), 0o644))
	w.check(os.Symlink(target, w.path("web.yaml")))
	w.check(os.Symlink(other, w.path("dir.yaml"))) // to a directory: nothing
	w.start()
	w.wantEvents(0, "Set Service default/web", "Synced")

	w.check(os.WriteFile(target, []byte(service("web", 2)), 0o644)) // inotify does not report it
	w.untilIP("web", 2)

	w.check(os.Remove(target))
	w.untilError("web.yaml", "is a symbolic link to nothing")
	w.wantNoDelete(0)
	w.marker() // it is read again and not reported again
	w.check(os.WriteFile(target, []byte(service("web", 3)), 0o644))
	w.untilIP("web", 3)

	w.check(os.Remove(w.path("web.yaml")))
	w.check(os.Symlink("web.yaml", w.path("web.yaml"))) // to itself
	w.untilError("web.yaml", "too many levels of symbolic links")
	w.write("web.yaml", service("web", 4))
	w.untilIP("web", 4)
	w.wantNoDelete(0)
	if n := len(w.problems()); n != 2 {
		t.Errorf("%d errors, want 2: %v", n, w.problems())
	}
}

func TestUnreadableFile(t *testing.T) {
	if os.Geteuid() == 0 { // root may read everything
		asNobody(t)
		return
	}
	w := newTestDirectory(t, "web.yaml", service("web", 1)).start()
	w.check(os.Chmod(w.path("web.yaml"), 0))
	w.untilError("web.yaml", "permission denied")
	w.wantNoDelete(1)
	w.check(os.Chmod(w.path("web.yaml"), 0o644))
	w.write("web.yaml", service("web", 2))
	w.untilIP("web", 2)
}

// asNobody runs the calling test once more, as a user without privileges.
func asNobody(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "test")
	if err := os.WriteFile(binary, self, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), binary, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	const nobody = 65534
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}

func TestDirectoryGoesAndComesBack(t *testing.T) {
	for _, c := range []struct {
		name     string
		away     func(w *testDirectory)
		comeBack func(w *testDirectory)
	}{
		{"removed", func(w *testDirectory) { w.check(os.RemoveAll(w.dir)) },
			func(w *testDirectory) {
				w.check(os.Mkdir(w.dir, 0o755))
				w.write("a.yaml", service("a", 1))
			}},
		{"renamed", func(w *testDirectory) { w.check(os.Rename(w.dir, w.dir+".old")) },
			func(w *testDirectory) {
				w.check(os.Rename(w.dir+".old", w.dir))
				w.remove("b.yaml")
			}},
		{"became a file", func(w *testDirectory) {
			w.check(os.RemoveAll(w.dir))
			w.check(os.WriteFile(w.dir, nil, 0o644))
		}, func(w *testDirectory) {
			w.check(os.Remove(w.dir))
			w.check(os.Mkdir(w.dir, 0o755))
			w.write("a.yaml", service("a", 1))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTestDirectory(t, "a.yaml", service("a", 1), "b.yaml", service("b", 2)).start()
			c.away(w)
			w.until("an error", func() bool { return len(w.errs) > 0 })
			if got := w.problems()[0].Error(); !strings.HasPrefix(got, w.dir+": ") || !strings.HasSuffix(got, ": keeping the 2 objects known from it") {
				t.Errorf("error %q", got)
			}
			w.wantEvents(1)
			c.comeBack(w)
			w.untilIP("b", 0)
			w.wantEvents(1, "Delete Service default/b")
			w.write("a.yaml", service("a", 3)) // it is watched
			w.untilIP("a", 3)
			// The error of a removed directory depends on the moment.
			if n := len(w.problems()); n > 3 {
				t.Errorf("%d errors: %v", n, w.problems())
			}
		})
	}
}

// TestLinkToDirectory uses a symbolic link as the directory, and changes it.
func TestLinkToDirectory(t *testing.T) {
	w := newTestDirectory(t)
	for i, name := range []string{"one", "two"} {
		dir := filepath.Join(filepath.Dir(w.dir), name)
		w.check(os.Mkdir(dir, 0o755))
		w.check(os.WriteFile(filepath.Join(dir, "web.yaml"), []byte(service("web", i+1)), 0o644))
	}
	w.check(os.Remove(w.dir))
	w.check(os.Symlink("one", w.dir))
	w.start()
	w.untilIP("web", 1)
	w.check(os.Symlink("two", w.dir+".new"))
	w.check(os.Rename(w.dir+".new", w.dir))
	w.untilIP("web", 2)
	w.write("web.yaml", service("web", 3)) // it is watched
	w.untilIP("web", 3)
	w.wantEvents(1, "Set Service default/web", "Set Service default/web")
	if len(w.problems()) != 0 {
		t.Errorf("errors %v", w.problems())
	}
}

// TestNotificationsLost makes more changes than the kernel's queue holds while the sink blocks.
func TestNotificationsLost(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Skip(err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || limit > 100_000 {
		t.Skipf("the queue holds %q events", text)
	}
	w := newTestDirectory(t, "a.yaml", service("a", 1), "b.yaml", service("b", 1), "c.yaml", service("c", 1)).start()
	w.mu.Lock()
	w.block = make(chan struct{})
	w.mu.Unlock()
	w.write("a.yaml", service("a", 2))
	w.write("x.txt", "")
	w.write("y.txt", "")
	w.until("the sink blocks", func() bool { return w.blocked })
	for i := range limit + 10_000 {
		w.check(os.Chmod(w.path([]string{"x.txt", "y.txt"}[i%2]), 0o644)) // two, for the kernel joins equal events
	}
	w.remove("b.yaml")
	w.write("c.yaml", service("c", 3))
	close(w.block)
	w.untilIP("a", 2)
	w.untilIP("b", 0)
	w.untilIP("c", 3)
	w.until("a log that notifications were lost", func() bool { return strings.Contains(strings.Join(w.logs, "\n"), "Notifications were lost") })
}

func TestLogs(t *testing.T) {
	w := newTestDirectory(t, "web.yaml",
		"{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}}\n---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: c}}\n---\n"+
			strings.Replace(sliceYAML, "  labels: {kubernetes.io/service-name: web}\n", "", 1)).start()
	w.wantEvents(0, "Set EndpointSlice shop/web-1", "Synced")
	logs := w.log()
	for _, want := range []string{`"objects"="Deployment web, ConfigMap c"`, "belongs to no Service"} {
		if n := strings.Count(logs, want); n != 1 {
			t.Errorf("%q is in the logs %d times, want once:\n%s", want, n, logs)
		}
	}
}

func TestEndWhileBlocked(t *testing.T) {
	w := newTestDirectory(t, "a.yaml", service("a", 1)).start()
	w.mu.Lock()
	w.block = make(chan struct{})
	w.mu.Unlock()
	w.write("a.yaml", service("a", 2))
	w.until("the sink blocks", func() bool { return w.blocked })
	w.stop()
	close(w.block)
	w.end()
}
