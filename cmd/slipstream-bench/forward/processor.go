// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// onOneProcessor runs f on a thread that stays on one processor, the last one that
// this process may use: interrupts mostly go to the first.
func onOneProcessor(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return fmt.Errorf("processors of this process: %w", err)
	}
	for i := 64*len(all) - 1; i >= 0; i-- {
		if all.IsSet(i) {
			one.Set(i)
			break
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("staying on one processor: %w", err)
	}
	defer func() { _ = unix.SchedSetaffinity(0, &all) }()
	return f()
}
