// SPDX-License-Identifier: Apache-2.0

// Package manifest is a source that reads a directory of manifests: Services,
// EndpointSlices, Nodes, ServiceCIDRs and Namespaces, in files that kubectl apply -f DIR takes.
//
// Each object is decoded strictly, gets defaults and is validated. A mistake is reported once
// and removes nothing. docs/manifests.md has the rules.
//
// The directory is watched with inotify and read when neither it nor any manifest has
// changed for 100 ms. The changes are delivered in one batch.
package manifest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/plain"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"k8s.io/klog/v2"
)

const (
	// settle is for how long nothing must have changed before files are read. It
	// spans the steps of saving a file: truncate and write, remove and rename.
	settle = 100 * time.Millisecond
	// settleBack is settle for a directory that replaces another one, and is perhaps
	// still being filled.
	settleBack = time.Second
	// settleMax is for how long changes that do not stop can delay reading.
	settleMax = 2 * time.Second
	// pollPeriod is how often to look for what inotify does not report: another
	// directory in the place of the watched one, and changed targets of symbolic links.
	pollPeriod = time.Second
)

// Source reads a directory of manifests. It implements source.Source.
type Source struct {
	dir     string
	onError func(error)
}

var _ source.Source = (*Source)(nil)

// New returns a source that reads dir. onError is called with each mistake, an *Error,
// when it appears; calls precede the events of the same change.
func New(dir string, onError func(error)) *Source {
	return &Source{dir: dir, onError: onError}
}

// Run implements source.Source. All objects that exist at the start are one batch,
// which ends with Synced. It returns an error if the directory does not exist or cannot
// be watched at the start. Logs go to the logger of ctx.
func (s *Source) Run(ctx context.Context, sink func([]source.Event)) error {
	w, err := newWatch(s.dir)
	if err != nil {
		return err
	}
	defer w.close()
	w.log = klog.FromContext(ctx).WithValues("directory", s.dir)
	w.onError, w.sink = s.onError, sink

	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			timer.Reset(w.look(time.Now()))
			continue
		case _, ok := <-w.notify.Events:
			if !ok {
				return errors.New("fsnotify: closed")
			}
		case err := <-w.notify.Errors:
			w.log.V(2).Info("Notifications were lost, looking at all files", "err", err)
		}
		if !w.changed {
			w.changed = true
			timer.Reset(settle)
		}
	}
}

// Error describes the mistakes in one object, document or file. Its message is one
// line, for example
//
//	web.yaml: document 2: Service default/web: spec.ports[0].port: Invalid value: 70000: must be between 1 and 65535, inclusive
type Error struct {
	File     string  // its name within the directory, or the path of the directory
	Document int     // counted from 1, without empty ones; 0 for an error of the file as a whole
	Item     string  // the position of the object within a List, e.g. "items[3]"
	Object   string  // kind, namespace and name, as far as they could be read
	Errs     []error // the mistakes
}

// Limits of a message: number of mistakes, and bytes of each.
const (
	maxErrs    = 5
	maxMessage = 300
)

// Error returns the message.
func (e *Error) Error() string {
	parts := []string{e.File}
	if e.Document > 0 {
		parts = append(parts, fmt.Sprintf("document %d", e.Document))
	}
	parts = append(parts, slices.DeleteFunc([]string{e.Item, e.Object}, func(s string) bool { return s == "" })...)
	var errs []string
	for i, err := range e.Errs {
		if i == maxErrs {
			errs = append(errs, fmt.Sprintf("and %d more", len(e.Errs)-i))
			break
		}
		errs = append(errs, plain.Line(err.Error(), maxMessage))
	}
	return plain.Line(strings.Join(append(parts, strings.Join(errs, "; ")), ": "), 2*maxErrs*maxMessage)
}

// Unwrap returns Errs.
func (e *Error) Unwrap() []error { return e.Errs }
