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
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// watch is one run of a Source: the loop that turns what happens to the
// directory into files to be read, and those into events. One goroutine does
// all of it.
type watch struct {
	dir    string
	log    klog.Logger
	sink   func([]source.Event)
	report func(*Error)

	notify   *fsnotify.Watcher
	watching bool        // the directory is being watched
	identity os.FileInfo // of the directory that is watched
	gone     bool        // there is none
	dirError string      // what was last reported about the directory

	table   *table
	files   map[string]*file
	pending map[string]*pending // files to be looked at
	soonest time.Time           // none of them is due before; zero is never
	rescan  time.Time           // when to look at all of them; zero is never
	poll    time.Time           // when to look at what inotify does not tell
	synced  bool
	// lastGone is when a file was last seen to go. While a directory is being
	// removed that keeps happening, and nothing is withdrawn.
	lastGone time.Time
}

// file is what is known about one file.
type file struct {
	stamp stamp // as last read; zero if it has to be read again
	sum   [32]byte
	link  bool // it is a symbolic link: inotify does not tell of its target
	read  bool // sum is valid
	bad   bool // the content has errors
	// empty is since when it has 0 bytes; zero if it has more.
	empty time.Time
	// problem is what was last reported about the file as a whole.
	problem string
}

// pending is a file that is to be looked at.
type pending struct {
	due   time.Time
	since time.Time     // when it was first noticed
	quiet time.Time     // since when it has been left alone
	gone  time.Time     // since when it has been missing; zero if it is not
	grace time.Duration // how long it may be missing
}

// newWatch starts to watch dir.
func newWatch(dir string) (*watch, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s: is not a directory", dir)
	}
	if _, err := os.ReadDir(dir); err != nil {
		return nil, err
	}
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("%s: cannot be watched: %w", dir, err)
	}
	w := &watch{
		dir:     dir,
		notify:  notify,
		table:   newTable(),
		files:   map[string]*file{},
		pending: map[string]*pending{},
	}
	if err := w.follow(info); err != nil {
		w.close()
		return nil, fmt.Errorf("%s: cannot be watched: %w", dir, err)
	}
	return w, nil
}

func (w *watch) close() {
	_ = w.notify.Close() // only ever fails for being closed
}

// follow watches the directory that is at w.dir now, which has the given
// identity.
func (w *watch) follow(info os.FileInfo) error {
	if w.identity != nil {
		// The watch of the former directory, if it is not gone with it.
		if err := w.notify.Remove(w.dir); err != nil && !errors.Is(err, fsnotify.ErrNonExistentWatch) {
			w.log.V(4).Info("Removing a watch", "err", err)
		}
	}
	w.identity = info
	err := w.notify.Add(w.dir)
	w.watching = err == nil
	return err
}

func (w *watch) run(ctx context.Context) error {
	start := time.Now()
	w.scan(start, settleGone)
	w.poll = start.Add(pollEvery)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-w.notify.Events:
			if !ok {
				return errors.New("fsnotify: closed")
			}
			w.noticed(e, time.Now())
		case err, ok := <-w.notify.Errors:
			if !ok {
				return errors.New("fsnotify: closed")
			}
			w.lost(err, time.Now())
		case <-timer.C:
			w.work(ctx, time.Now())
		}
		if ctx.Err() != nil {
			return nil
		}
		timer.Reset(time.Until(w.next()))
	}
}

// next is when there is something to do again.
func (w *watch) next() time.Time {
	next := w.poll
	for _, t := range []time.Time{w.rescan, w.soonest} {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	return next
}

// noticed takes note of something that inotify tells.
func (w *watch) noticed(e fsnotify.Event, now time.Time) {
	if filepath.Clean(e.Name) == filepath.Clean(w.dir) {
		if e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename) {
			// A new one may have the same inode number, but no watch.
			w.watching = false
		}
		w.poll = now
		return
	}
	name := filepath.Base(e.Name)
	if !isManifest(name) {
		// Kubernetes swaps the content of a volume by way of ..data, a symbolic
		// link to a directory, through which the manifests are links.
		if strings.HasPrefix(name, "..") || isLink(filepath.Join(w.dir, name)) {
			w.rescanAt(now.Add(settle))
		}
		return
	}
	p := w.look(name, now, settle)
	p.quiet = now
	if e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename) {
		w.lastGone = now
	}
}

// look has a file looked at after a delay, or later than it was to be.
func (w *watch) look(name string, now time.Time, delay time.Duration) *pending {
	p := w.pending[name]
	if p == nil {
		p = &pending{since: now, quiet: now, grace: settleGone}
		w.pending[name] = p
	}
	p.due = now.Add(delay)
	if last := p.since.Add(settleMax); p.due.After(last) && last.After(now) {
		p.due = last
	}
	if w.soonest.IsZero() || p.due.Before(w.soonest) {
		w.soonest = p.due
	}
	return p
}

func (w *watch) rescanAt(t time.Time) {
	if w.rescan.IsZero() {
		w.rescan = t
	}
}

// lost is called when notifications were: what has changed must be found out.
func (w *watch) lost(err error, now time.Time) {
	w.log.V(2).Info("Notifications were lost, looking at all files", "err", err)
	w.rescanAt(now)
}

// work does what is due.
func (w *watch) work(ctx context.Context, now time.Time) {
	if !now.Before(w.poll) {
		w.checkDirectory(now)
	}
	if !w.gone && !w.rescan.IsZero() && !now.Before(w.rescan) {
		w.rescan = time.Time{}
		w.scan(now, settleGone)
	}
	for _, name := range w.due(now) {
		if ctx.Err() != nil {
			return
		}
		if w.gone {
			break
		}
		w.process(name, now)
	}
	w.soonest = time.Time{}
	for _, p := range w.pending {
		if w.soonest.IsZero() || p.due.Before(w.soonest) {
			w.soonest = p.due
		}
	}
	w.deliver(ctx)
}

// due returns the files that are to be looked at now, sorted.
func (w *watch) due(now time.Time) []string {
	var names []string
	for name, p := range w.pending {
		if !now.Before(p.due) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// deliver hands over what has changed. The first batch waits until every file
// has been read that can be.
func (w *watch) deliver(ctx context.Context) {
	if !w.synced {
		if w.gone || w.dirError != "" {
			return
		}
		for name, p := range w.pending {
			if f := w.files[name]; p.gone.IsZero() && (f == nil || f.empty.IsZero()) {
				return
			}
		}
	}
	for _, e := range w.table.conflicts(func(name string) bool { return w.pending[name] != nil }) {
		w.report(e)
	}
	batch := w.table.events()
	if !w.synced {
		w.synced = true
		batch = append(batch, source.Event{Type: source.Synced})
	}
	if len(batch) > 0 && ctx.Err() == nil {
		w.sink(batch)
	}
}

// directoryError reports what is wrong with the directory, once.
func (w *watch) directoryError(err error) {
	if message := err.Error(); message != w.dirError {
		w.dirError = message
		w.report(&Error{File: w.dir, Err: err})
	}
}

func (w *watch) directoryFine() {
	if w.dirError != "" {
		w.dirError = ""
		w.log.Info("The directory can be read again")
	}
}

// isLink tells whether path is a symbolic link.
func isLink(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&os.ModeSymlink != 0
}
