// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// onThread runs fn on an operating system thread of its own and puts that
// thread back into its previous network namespace. A thread that
// cannot be put back ends with its goroutine, so no other goroutine ever runs
// in a foreign namespace. A runtime.Goexit in fn (testing's FailNow, for instance) goes
// on in the caller.
func onThread(fn func() error) error {
	var err error
	returned := false
	done := make(chan struct{})
	var body func()
	body = func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread stands for the process in /proc/PID/ns and
			// /proc/self/net; while it is held here the work goes elsewhere.
			moved := make(chan struct{})
			go func() { defer close(moved); body() }()
			<-moved
			runtime.UnlockOSThread()
			return
		}
		defer close(done)
		origin, openErr := openThreadNamespace()
		if openErr != nil {
			err, returned = openErr, true
			return
		}
		defer func() {
			if unix.Setns(int(origin.Fd()), unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread()
			}
			origin.Close()
		}()
		err = fn()
		returned = true
	}
	go body()
	<-done
	if !returned {
		runtime.Goexit()
	}
	return err
}

// openThreadNamespace opens the network namespace of the calling thread; the
// caller has locked its goroutine to it.
func openThreadNamespace() (*os.File, error) {
	// thread-self, not self: self is the main thread.
	f, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("network namespace of this thread: %w", err)
	}
	return f, nil
}
