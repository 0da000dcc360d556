// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"
)

// calm waits until a process does next to nothing. One that always does something is left
// to it after a while.
func calm(ctx context.Context, pid int, timeout time.Duration) error {
	const window = 500 * time.Millisecond
	before, err := used(pid)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(min(timeout, 5*time.Minute)); time.Now().Before(deadline); {
		if err := pause(ctx, window); err != nil {
			return err
		}
		now, err := used(pid)
		if err != nil {
			return err
		}
		if now.minus(before).sum() <= window/25 && len(children(pid)) == 0 {
			return nil
		}
		before = now
	}
	return nil
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
