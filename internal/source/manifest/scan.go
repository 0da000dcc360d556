// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// checkDirectory finds out what inotify does not tell: that the directory is
// gone, back or another one (a symbolic link to it was changed, something was
// mounted there), and that the target of a symbolic link has changed.
func (w *watch) checkDirectory(now time.Time) {
	w.poll = now.Add(pollEvery)
	if !w.sameDirectory() {
		info, err := os.Stat(w.dir)
		if err == nil && !info.IsDir() {
			err = errors.New("is no longer a directory")
		}
		if err != nil {
			w.vanished(now, err)
			return
		}
		if err := w.follow(info); err != nil {
			w.vanished(now, fmt.Errorf("cannot be watched: %w", err))
			return
		}
		w.gone = false
		w.scan(now, settleBack)
		return
	}
	for name, f := range w.files {
		if !f.link || w.pending[name] != nil {
			continue
		}
		if info, err := os.Stat(filepath.Join(w.dir, name)); err != nil || stampOf(info) != f.stamp {
			w.look(name, now, 0)
		}
	}
}

// sameDirectory tells whether the directory is the one that is watched.
func (w *watch) sameDirectory() bool {
	if w.gone || !w.watching {
		return false
	}
	info, err := os.Stat(w.dir)
	return err == nil && os.SameFile(info, w.identity)
}

// vanished leaves everything as it is until the directory is back.
func (w *watch) vanished(now time.Time, err error) {
	w.gone = true
	w.poll = now.Add(pollGone)
	clear(w.pending)
	w.rescan = time.Time{}
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err // the path is in the message already
	}
	w.directoryError(fmt.Errorf("%w: keeping the %d objects known from it", err, len(w.table.current)))
}

// scan looks at all files and has those read that have changed since they
// were, and those withdrawn that are gone for as long as grace.
func (w *watch) scan(now time.Time, grace time.Duration) {
	entries, err := os.ReadDir(w.dir)
	if err != nil {
		w.directoryError(fmt.Errorf("cannot be listed: %w: keeping the %d objects known from it", err, len(w.table.current)))
		w.rescanAt(now.Add(pollEvery))
		return
	}
	w.directoryFine()
	seen := map[string]bool{}
	for _, entry := range entries {
		name := entry.Name()
		if !isManifest(name) {
			continue
		}
		seen[name] = true
		f := w.files[name]
		info, err := os.Stat(filepath.Join(w.dir, name))
		if err == nil && f != nil && stampOf(info) == f.stamp {
			continue
		}
		if w.pending[name] == nil {
			p := w.look(name, now, 0)
			if err == nil && info.ModTime().Before(now) {
				p.quiet = info.ModTime()
			}
		}
	}
	for name := range w.files {
		if seen[name] {
			continue
		}
		p := w.pending[name]
		if p == nil {
			p = w.look(name, now, 0)
		}
		p.grace = max(p.grace, grace)
	}
}
