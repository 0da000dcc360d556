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
	"time"

	"k8s.io/klog/v2"

	"github.com/slipstream-proxy/slipstream/internal/source"
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
