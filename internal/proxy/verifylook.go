// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"io"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Reader reads what the kernel has, and is closed after that.
type Reader interface {
	dataplane.Reader
	io.Closer
}

// sighting is what one look at the kernel has come to.
type sighting struct {
	differences []dataplane.Differing
	took        time.Duration
	err         error
}

// lookAround delivers how the kernel differs from what was told. At 10,000 Services it
// takes some tens of megabytes, which it gives back.
func lookAround(ctx context.Context, open func(context.Context) (Reader, error), told *desired.Change, to chan<- sighting) {
	var s sighting
	atLeisure(func() {
		start := time.Now()
		s.differences, s.err = compare(ctx, open, told)
		s.took = time.Since(start)
	})
	debug.FreeOSMemory()
	to <- s
}

// lowest is the nice value of the least priority.
const lowest = 19

// atLeisure runs something on a thread of the lowest priority, which the commands that
// it starts have too.
func atLeisure(do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() { // the main thread, whose priority people see as the process's
			defer runtime.UnlockOSThread()
			atLeisure(do)
			return
		}
		// Not unlocked, so that the thread ends with the goroutine: its priority
		// cannot be raised again without CAP_SYS_NICE.
		if err := unix.Setpriority(unix.PRIO_PROCESS, 0, lowest); err != nil { // of this thread
			klog.V(2).InfoS("Verifying at the usual priority", "reason", err.Error())
		}
		do()
	}()
	<-done
}

// compare reads what the kernel has, and compares.
func compare(ctx context.Context, open func(context.Context) (Reader, error), told *desired.Change) (all []dataplane.Differing, err error) {
	r, err := open(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	got, err := r.Read(ctx)
	if err != nil {
		return nil, err
	}
	return dataplane.Differings(dataplane.Difference(dataplane.ContentOf(told), got), told), nil
}
