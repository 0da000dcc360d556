// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// onThread runs fn on an operating system thread of its own and puts that
// thread back into its previous network namespace. A thread that
// cannot be put back ends with its goroutine, so no other goroutine ever runs
// in a foreign namespace. A panic or runtime.Goexit in fn (testing's FailNow,
// for instance) goes on in the caller.
func onThread(fn func() error) error {
	type result struct {
		err      error
		returned bool
		panicked any
		stack    []byte
	}
	done := make(chan result, 1)
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
		var r result
		origin, err := openThreadNamespace()
		defer func() {
			if p := recover(); p != nil {
				r.panicked, r.stack = p, debug.Stack()
			}
			if err == nil {
				if unix.Setns(int(origin.Fd()), unix.CLONE_NEWNET) == nil {
					runtime.UnlockOSThread()
				}
				origin.Close()
			}
			done <- r
		}()
		if err != nil {
			r.err, r.returned = err, true
			return
		}
		r.err = fn()
		r.returned = true
	}
	go body()
	r := <-done
	switch {
	case r.panicked != nil:
		panic(fmt.Sprintf("%v\n\nin a namespace thread:\n%s", r.panicked, r.stack))
	case !r.returned:
		runtime.Goexit()
	}
	return r.err
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
