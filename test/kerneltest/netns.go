// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// NetNS is the right and the ability to make network namespaces. It needs
// CONFIG_NET_NS (Linux 2.6.29) and, in a container, CAP_SYS_ADMIN.
var NetNS = define("network namespaces", probeNetNS, Root)

func probeNetNS() error {
	return inNewNetNS(func() error { return nil })
}

// inNewNetNS runs f in a network namespace of its own, which goes away afterwards, on a
// thread of its own. Commands that f starts are in that namespace, too.
func inNewNetNS(f func() error) error {
	result := make(chan error)
	go func() { result <- onOwnThread(f) }()
	return <-result
}

func onOwnThread(f func() error) error {
	runtime.LockOSThread()
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("network namespace of the thread: %w", err)
	}
	defer unix.Close(home)
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("unshare network namespace: %w", err)
	}
	err = f()
	// A thread that cannot go home stays locked, and ends with its goroutine.
	if back := unix.Setns(home, unix.CLONE_NEWNET); back != nil {
		return fmt.Errorf("return to the network namespace: %w", back)
	}
	runtime.UnlockOSThread()
	return err
}
