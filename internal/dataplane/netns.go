// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Inside runs do on a thread in a network namespace, given by a file descriptor; 0 is the
// calling thread's. Commands that do starts are in it too. A thread that cannot return to
// its namespace ends with its goroutine.
func Inside(netns int, do func() error) error {
	if netns == 0 {
		return do()
	}
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			result <- fmt.Errorf("network namespace of the thread: %w", err)
			return
		}
		defer home.Close()
		if err := unix.Setns(netns, unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			result <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		err = do()
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		result <- err
	}()
	return <-result
}

// In is Inside for a function with a result.
func In[T any](netns int, do func() (T, error)) (result T, err error) {
	err = Inside(netns, func() (err error) { result, err = do(); return err })
	return result, err
}
