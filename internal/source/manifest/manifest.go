// SPDX-License-Identifier: Apache-2.0

// Package manifest is a source that reads a directory of manifests: Services,
// EndpointSlices, Nodes and ServiceCIDRs in files such as kubectl apply -f DIR
// takes.
//
// It reads *.yaml, *.yml and *.json of the directory itself, leaves out hidden
// files, follows symbolic links to files, and ignores objects of other kinds.
// Each object is decoded strictly, gets the defaults of the Kubernetes API and
// is validated by its rules. As there is no API server to allocate cluster
// IPs, Services have to bring theirs.
//
// The directory is watched with inotify. A file that was saved is read some
// milliseconds later, once nobody has it open for writing any more, and what
// it changes is delivered in one batch.
//
// # What bad input does
//
// Bad input is reported and never takes away what worked:
//
//   - An object that is not valid keeps its last valid version; the other
//     objects of the file are taken.
//   - As long as anything in a file is wrong, nothing that the file said
//     before is withdrawn: what is wrong may be that very object.
//   - A file that is empty (0 bytes) is taken for one about to be written and
//     withdraws nothing. One with only white space or comments does.
//   - When the directory vanishes everything stays, until it is back.
//
// A file that is deleted or renamed, or an object that is taken out of a file
// in which all is well, is withdrawn.
//
// # The same object twice
//
// Of two files with the same object, the one that comes first in byte order of
// its name counts; the other is reported, and takes over when the first no
// longer has the object. Within one file the first one counts.
package manifest

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// How long things take. They are no promises; the tests shorten none of them.
const (
	// settle is how long a file must have been left alone before it is read.
	// It spans the steps of one save: truncate and write, write and rename.
	settle = 10 * time.Millisecond
	// settleUnknown is settle where it cannot be known whether anybody has the
	// file open for writing: it is not ours, or on a file system without leases.
	settleUnknown = 50 * time.Millisecond
	// settleBusy is settle while somebody has the file open for writing.
	settleBusy = 500 * time.Millisecond
	// settleGone is how long a file must have been gone before its objects are
	// withdrawn: some editors move the old file away before they write the new.
	settleGone = 100 * time.Millisecond
	// settleBack is settleGone for a directory that had vanished itself and may
	// be filled file by file.
	settleBack = time.Second
	// settleMax bounds all of the above for files that are never left alone.
	settleMax = 2 * time.Second
	// emptyAfter is how long a file may be empty until that is reported.
	emptyAfter = time.Second
	// pollEvery is how often what inotify does not tell is looked at: whether
	// the directory is still the same, and the targets of symbolic links.
	pollEvery = time.Second
	// pollGone is pollEvery while the directory is gone.
	pollGone = 200 * time.Millisecond
)

// Source reads a directory of manifests. It implements source.Source.
type Source struct {
	dir     string
	onError func(error)
}

var _ source.Source = (*Source)(nil)

// Option changes how a Source works.
type Option func(*Source)

// OnError has each error passed to report instead of being logged. The error
// is always an *Error. The same error of a file that has not changed is
// reported once. Calls come from the goroutine that calls the sink and are
// made before the events of the same change.
func OnError(report func(error)) Option {
	return func(s *Source) { s.onError = report }
}

// New returns a source that reads dir. Nothing is read before Run.
func New(dir string, opts ...Option) *Source {
	s := &Source{dir: dir}
	for _, o := range opts {
		o(s)
	}
	return s
}

// Run implements source.Source. All objects that exist at the start come in one
// batch, which ends with Synced. It returns an error if the directory does not
// exist or cannot be watched at the start; later it waits for it to come back.
// Logs go to the logger of ctx (klog.FromContext).
func (s *Source) Run(ctx context.Context, sink func([]source.Event)) error {
	w, err := newWatch(s.dir)
	if err != nil {
		return err
	}
	defer w.close()
	w.log = klog.FromContext(ctx).WithValues("directory", s.dir)
	w.sink = sink
	w.report = func(e *Error) {
		if s.onError != nil {
			s.onError(e)
			return
		}
		w.log.Error(e, "Manifest refused, keeping what was valid", "file", e.File, "line", e.Line, "object", e.Object, "field", e.Field)
	}
	return w.run(ctx)
}
