// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// endingClock is a real clock whose After also fires when a context ends. The Reflector
// waits for up to a minute between attempts to connect and ignores its context meanwhile.
type endingClock struct {
	clock.RealClock
	ctx context.Context
}

// After implements clock.Clock.
func (c endingClock) After(d time.Duration) <-chan time.Time {
	fired := make(chan time.Time, 1)
	timer := time.NewTimer(d)
	go func() {
		defer timer.Stop()
		select {
		case now := <-timer.C:
			fired <- now
		case <-c.ctx.Done():
			fired <- time.Now()
		}
	}()
	return fired
}
