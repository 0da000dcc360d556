// SPDX-License-Identifier: Apache-2.0

// Package process runs a program of the host such that nothing of it stays behind.
package process

import (
	"context"
	"errors"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Run starts a command in a session of its own, waits until it has ended, kills what it
// left running in its process group, and returns what [exec.Cmd.Wait] says.
//
// When ctx ends first, the whole group is killed. When the calling program dies, the
// command's own process is. The command must not have been made with
// [exec.CommandContext], and its SysProcAttr is replaced.
func Run(ctx context.Context, cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}

	// The signal of Pdeathsig comes when the thread that started the process ends, so
	// that thread must stay.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return err
	}
	group := cmd.Process.Pid
	killed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		killGroup(group)
		close(killed)
	})
	awaitEnd(group)
	if !stop() {
		<-killed
	}
	// The process has ended but is not reaped yet, so that its number, which is the
	// group's, cannot have been given to others.
	killGroup(group)
	return cmd.Wait()
}

// awaitEnd returns when a child has ended, and leaves it to be reaped.
func awaitEnd(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// killGroup ends every process of a process group. That there is none is fine.
func killGroup(group int) {
	_ = syscall.Kill(-group, syscall.SIGKILL)
}
