// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/klog/v2"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// watch is one run of a Source.
type watch struct {
	dir     string
	log     klog.Logger
	sink    func([]source.Event)
	onError func(error)
	notify  *fsnotify.Watcher

	watched  os.FileInfo // the directory that is watched; nil if there is none
	changed  bool        // there is something to read
	poll     bool        // there are files of which inotify does not report all changes
	replaced bool        // the directory is another one than before
	since    time.Time   // since when changes delay reading; zero if they do not

	files    map[string]*file         // by name
	objects  map[string]source.Object // as delivered, by source.Name
	problems []*Error                 // of files
	reported map[string]bool          // messages of errors that persist
	synced   bool
}

// file is the last known content of a file.
type file struct {
	info    fs.FileInfo // as it was read; nil if it must be read again
	objects []Object
	errs    []*Error
	err     *Error // why the file could not be read
}

// unchanged reports whether a file has not changed from one look to the next. Programs such as
// "cp -p" and rsync set the time of modification, but not that of the last change (ctime).
func unchanged(was, is fs.FileInfo) bool {
	return was != nil && is != nil && os.SameFile(was, is) && was.Size() == is.Size() && was.Mode() == is.Mode() &&
		was.ModTime().Equal(is.ModTime()) && changeTime(was) == changeTime(is)
}

func changeTime(info fs.FileInfo) syscall.Timespec { return info.Sys().(*syscall.Stat_t).Ctim }

func newWatch(dir string) (*watch, error) {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	w := &watch{dir: dir, notify: notify, files: map[string]*file{}, objects: map[string]source.Object{}}
	if err = w.follow(); err == nil {
		_, err = os.ReadDir(dir)
	}
	if err != nil {
		w.close()
		return nil, fmt.Errorf("%s: %w", dir, withoutPath(err))
	}
	return w, nil
}

func (w *watch) close() {
	_ = w.notify.Close() // only fails when it is closed
}

// look reads the files if something has changed, and delivers what follows. It returns
// after how long to look again.
func (w *watch) look(now time.Time) time.Duration {
	err := w.follow()
	if err == nil && !w.changed && !w.poll {
		return pollPeriod
	}
	var infos map[string]fs.FileInfo
	if err == nil {
		infos, err = w.list()
	}
	if err != nil {
		w.changed = true
		err = fmt.Errorf("%w: keeping the %d objects known from it", withoutPath(err), len(w.objects))
		w.report(append(slices.Clip(w.problems), &Error{File: w.dir, Errs: []error{err}}))
		return pollPeriod
	}
	if delay := w.unsettled(infos, now); delay > 0 && w.mayWait(now) {
		return delay
	}
	files := map[string]*file{}
	for name, info := range infos {
		if name != "." {
			files[name] = w.read(name, info, now)
		}
	}
	if after, err := w.list(); !maps.EqualFunc(infos, after, unchanged) && w.mayWait(now) {
		w.log.V(4).Info("Files have changed while they were read", "err", err)
		return settle
	}
	for _, f := range files {
		w.poll = w.poll || f.err != nil // it may become readable in ways that inotify does not report
	}
	w.changed, w.replaced, w.since, w.files = false, false, time.Time{}, files
	w.deliver()
	return pollPeriod
}

// mayWait reports whether changes may delay reading further.
func (w *watch) mayWait(now time.Time) bool {
	w.changed = true
	if w.since.IsZero() {
		w.since = now
	}
	return now.Sub(w.since) < settleMax
}

// follow makes sure that the directory that is there now is the one that is watched.
func (w *watch) follow() error {
	info, err := os.Stat(w.dir)
	if err == nil && !info.IsDir() {
		err = errors.New("is not a directory")
	}
	if err != nil {
		w.watched = nil
		return err
	}
	// fsnotify forgets a directory that is removed. A new one may have its inode number.
	if w.watched != nil && os.SameFile(info, w.watched) && len(w.notify.WatchList()) > 0 {
		return nil
	}
	if err := w.notify.Remove(w.dir); err != nil && !errors.Is(err, fsnotify.ErrNonExistentWatch) {
		w.log.V(4).Info("Removing a watch", "err", err)
	}
	w.changed, w.replaced, w.watched = true, w.synced, nil
	if err := w.notify.Add(w.dir); err != nil {
		return fmt.Errorf("cannot be watched: %w", err)
	}
	w.watched = info
	return nil
}

// list returns the manifests of the directory, and the directory itself as ".". The targets
// of links count.
func (w *watch) list() (map[string]fs.FileInfo, error) {
	entries, err := os.ReadDir(w.dir)
	if err != nil {
		return nil, err
	}
	w.poll = false
	infos := map[string]fs.FileInfo{}
	for _, entry := range entries {
		name := entry.Name()
		if strings.HasPrefix(name, ".") || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) {
			continue
		}
		isLink := entry.Type()&fs.ModeSymlink != 0
		w.poll = w.poll || isLink
		info, err := os.Stat(filepath.Join(w.dir, name))
		if err != nil && isLink {
			info, err = entry.Info() // reading it returns the error
		}
		switch {
		case errors.Is(err, fs.ErrNotExist): // deleted meanwhile
		case err != nil:
			return nil, err
		case !info.IsDir():
			infos[name] = info
		}
	}
	// The directory is looked at last: the list may lack a file that was being renamed.
	infos["."], err = os.Stat(w.dir)
	return infos, err
}

// unsettled returns after how long the directory and its files may be read, if they
// have just changed.
func (w *watch) unsettled(infos map[string]fs.FileInfo, now time.Time) (delay time.Duration) {
	quiet := map[bool]time.Duration{true: settleBack, false: settle}[w.replaced]
	for _, info := range infos {
		// A time in the future says nothing, unless it has just become the present.
		if d := quiet - now.Sub(info.ModTime()); d <= 2*quiet {
			delay = max(delay, min(d, quiet))
		}
	}
	return delay
}

func (w *watch) read(name string, info fs.FileInfo, now time.Time) *file {
	was := w.files[name]
	switch {
	case was == nil:
		was = &file{}
	case unchanged(was.info, info):
		return was
	}
	data, err := readFile(filepath.Join(w.dir, name), info)
	if err != nil {
		return &file{objects: was.objects, errs: was.errs, err: &Error{File: name, Errs: []error{withoutPath(err)}}}
	}
	content := Decode(name, data)
	for _, warning := range content.Warnings {
		w.log.Info("Manifest has a warning", "warning", warning)
	}
	if n := len(content.Ignored); n > 0 {
		w.log.Info("Ignoring objects of other kinds", "file", name, "count", n, "objects", strings.Join(content.Ignored[:min(n, 10)], ", "))
	}
	f := &file{objects: content.Objects, errs: content.Errors}
	if len(f.errs) > 0 {
		f.objects = append(f.objects, missing(was.objects, f.objects)...)
	}
	if now.Sub(info.ModTime()) >= settle { // else it may change again without another time of modification
		f.info = info
	}
	return f
}

func readFile(path string, info fs.FileInfo) ([]byte, error) {
	switch {
	case info.Mode()&fs.ModeSymlink != 0: // its target could not be found
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return nil, errors.New("is a symbolic link to nothing")
	case !info.Mode().IsRegular():
		return nil, errors.New("is not a regular file")
	case info.Size() == 0: // many programs create a file before they write it
		return nil, errors.New("is empty: keeping its objects; delete it to delete them")
	}
	return os.ReadFile(path)
}

// withoutPath removes the path from an error, as it is part of the message already.
func withoutPath(err error) error {
	if path, is := errors.AsType[*fs.PathError](err); is {
		return path.Err
	}
	return err
}

func missing(before, now []Object) []Object {
	have := map[string]bool{}
	for _, o := range now {
		have[source.Name(o.Object)] = true
	}
	return slices.DeleteFunc(slices.Clone(before), func(o Object) bool { return have[source.Name(o.Object)] })
}

// deliver reports new mistakes and passes on the changes: Nodes first, then
// ServiceCIDRs, Services and EndpointSlices, each by namespace and name. An object that
// moves from one file to another is not deleted in between.
func (w *watch) deliver() {
	w.problems = nil
	var batch []source.Event
	owner := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(w.files)) {
		f := w.files[name]
		w.problems = append(w.problems, f.errs...)
		if f.err != nil {
			w.problems = append(w.problems, f.err)
		}
		for i, o := range f.objects {
			k := source.Name(o.Object)
			if first, ok := owner[k]; ok {
				w.problems = append(w.problems, o.error(name, fmt.Errorf("%s has it too and counts, being the first by name", first)))
				continue
			}
			owner[k] = name
			if was, ok := w.objects[k]; ok && (was == o.Object || equality.Semantic.DeepEqual(was, o.Object)) {
				f.objects[i].Object = was // keep one copy
				continue
			}
			w.objects[k] = o.Object
			batch = append(batch, source.Event{Type: source.Set, Object: o.Object})
		}
	}
	for k, was := range w.objects {
		if _, ok := owner[k]; !ok {
			delete(w.objects, k)
			batch = append(batch, source.Event{Type: source.Delete, Object: was})
		}
	}
	slices.SortFunc(batch, func(a, b source.Event) int {
		return cmp.Or(
			cmp.Compare(rank(a.Object), rank(b.Object)),
			cmp.Compare(a.Object.GetNamespace(), b.Object.GetNamespace()),
			cmp.Compare(a.Object.GetName(), b.Object.GetName()))
	})
	if !w.synced {
		w.synced = true
		batch = append(batch, source.Event{Type: source.Synced})
	}
	w.report(w.problems)
	if len(batch) > 0 {
		w.sink(batch)
	}
}

func rank(o source.Object) int {
	return slices.Index([]string{"Node", "ServiceCIDR", "Service", "EndpointSlice"}, source.Kind(o))
}

// report reports those of all present errors that were not present before.
func (w *watch) report(errs []*Error) {
	present := map[string]bool{}
	for _, e := range errs {
		message := e.Error()
		if !w.reported[message] && !present[message] {
			w.onError(e)
		}
		present[message] = true
	}
	if len(w.reported) > 0 && len(present) == 0 {
		w.log.Info("All manifests are valid again")
	}
	w.reported = present
}
