// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"sync/atomic"
	"time"
)

// lateAfter is how long a change may wait until the kernel has it, if nobody says.
// It is kube-proxy's: twice its usual sync period.
const lateAfter = time.Minute

// lateness knows since when changes have been waiting. Its zero value says that
// none are.
type lateness struct {
	since   atomic.Pointer[time.Time]
	updated atomic.Pointer[time.Time] // when none was last
}

// waiting says that there is a change; those before count from their own start.
func (l *lateness) waiting() {
	if l.since.Load() == nil {
		now := time.Now()
		l.since.Store(&now)
	}
}

// done says that the kernel has all changes.
func (l *lateness) done(now time.Time) {
	l.since.Store(nil)
	l.updated.Store(&now)
}

// late says whether a change has waited for too long.
func (l *lateness) late(after time.Duration) bool {
	since := l.since.Load()
	return since != nil && time.Since(*since) >= after
}

// Healthy says whether the kernel has what it should, or has been without for
// less than Options.LateAfter. It may be called by any goroutine.
func (p *Proxy) Healthy() bool { return !p.lateness.late(p.options.LateAfter) }

// Updated is when the kernel last had all changes; zero before it first had. It
// may be called by any goroutine.
func (p *Proxy) Updated() time.Time {
	if at := p.lateness.updated.Load(); at != nil {
		return *at
	}
	return time.Time{}
}
