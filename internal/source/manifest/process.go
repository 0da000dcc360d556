// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// process looks at one file and, unless it has to wait, takes what it says.
func (w *watch) process(name string, now time.Time) {
	p := w.pending[name]
	if p == nil {
		return
	}
	path := filepath.Join(w.dir, name)
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		w.missing(name, p, now, isLink(path))
		return
	case err == nil && info.IsDir():
		w.missing(name, p, now, false)
		return
	case err != nil:
		w.problem(name, err)
		return
	}
	p.gone = time.Time{}
	s, err := readFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		p.due = now.Add(settle)
		return
	case err != nil:
		w.problem(name, err)
		return
	case s.size == 0:
		w.empty(name, p, now)
		return
	}
	if f := w.files[name]; f != nil && !f.empty.IsZero() {
		f.empty = time.Time{} // the writing has begun
		p.since = now
	}
	if wait := p.wait(s, now); wait > 0 {
		p.due = now.Add(wait)
		return
	}
	delete(w.pending, name)
	w.take(name, s, now)
}

// wait returns how long to wait until a file can be taken for complete.
func (p *pending) wait(s *snapshot, now time.Time) time.Duration {
	left := p.since.Add(settleMax).Sub(now)
	if left <= 0 {
		return 0
	}
	if !s.stable {
		p.quiet = now
		return min(left, settle)
	}
	if s.mtime.After(p.quiet) && s.mtime.Before(now) {
		p.quiet = s.mtime
	}
	quiet := now.Sub(p.quiet)
	switch {
	case s.busy > 0 && quiet < settleBusy:
		return min(left, settle) // it may be closed any moment
	case s.busy < 0 && quiet < settleUnknown:
		return min(left, settleUnknown-quiet)
	}
	return 0
}

// file returns what is known about a file.
func (w *watch) file(name string) *file {
	f := w.files[name]
	if f == nil {
		f = &file{}
		w.files[name] = f
	}
	return f
}

// take takes what a file says.
func (w *watch) take(name string, s *snapshot, now time.Time) {
	f := w.file(name)
	f.link = isLink(filepath.Join(w.dir, name))
	f.stamp = s.stamp
	if now.Sub(s.mtime) < settleUnknown {
		// It may change again without its time of modification doing so, which
		// is as coarse as 10 ms. Only a rescan depends on it: let it read.
		f.stamp = stamp{}
	}
	if f.problem != "" {
		f.problem = ""
		w.log.Info("The file can be read again", "file", name)
	}

	sum := sha256.Sum256(s.data)
	if f.read && f.sum == sum {
		return
	}
	f.read, f.sum = true, sum
	content := Decode(name, s.data)
	for _, e := range content.Errors {
		w.report(e)
	}
	for _, warning := range content.Warnings {
		w.log.Info("Manifest has a warning", "warning", warning)
	}
	if n := len(content.Ignored); n > 0 {
		w.log.Info("Ignoring objects of other kinds", "file", name, "count", n, "objects", abridge(content.Ignored))
	}
	bad := len(content.Errors) > 0
	if f.bad && !bad {
		w.log.Info("All is well again", "file", name)
	}
	f.bad = bad
	w.table.set(name, content.Objects, bad)
}

// abridge joins the first few of a list.
func abridge(list []string) string {
	const most = 10
	if len(list) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
	}
	return strings.Join(list, ", ")
}

// missing withdraws what a file said once it has been missing long enough. A
// symbolic link to nothing is there, but cannot be read.
func (w *watch) missing(name string, p *pending, now time.Time, dangling bool) {
	if w.files[name] == nil && !dangling {
		delete(w.pending, name)
		return
	}
	if p.gone.IsZero() {
		p.gone = now
	}
	// Files that keep going are perhaps all going, and the directory with them.
	until := p.gone.Add(p.grace)
	if t := w.lastGone.Add(p.grace); t.After(until) && t.Before(p.gone.Add(settleMax)) {
		until = t
	}
	if now.Before(until) {
		p.due = until
		return
	}
	if !w.sameDirectory() {
		w.checkDirectory(now)
		return
	}
	if dangling {
		w.problem(name, errors.New("is a symbolic link to nothing"))
		return
	}
	delete(w.pending, name)
	delete(w.files, name)
	w.table.set(name, nil, false)
}

// empty leaves a file of 0 bytes alone, and reports it if it stays so.
func (w *watch) empty(name string, p *pending, now time.Time) {
	f := w.file(name)
	if f.empty.IsZero() {
		f.empty = now
	}
	if report := f.empty.Add(emptyAfter); now.Before(report) {
		p.due = report
		return
	}
	w.problem(name, errors.New("is empty: keeping what it said before; delete it to withdraw that"))
}

// problem reports why a file as a whole cannot be taken, unless that is known,
// and leaves what it said before.
func (w *watch) problem(name string, err error) {
	delete(w.pending, name)
	f := w.file(name)
	f.stamp = stamp{} // to be tried again with every rescan
	f.link = isLink(filepath.Join(w.dir, name))
	var path *fs.PathError
	if errors.As(err, &path) {
		err = fmt.Errorf("%s: %w", path.Op, path.Err) // without the path
	}
	if message := err.Error(); message != f.problem {
		f.problem = message
		w.report(&Error{File: name, Err: err})
	}
}
