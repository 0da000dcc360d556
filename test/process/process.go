// SPDX-License-Identifier: Apache-2.0

// Package process runs a program of the host and leaves none of its processes behind.
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
	killed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		KillGroup(cmd)
		close(killed)
	})
	awaitEnd(cmd)
	if !stop() {
		<-killed
	}
	return Wait(cmd)
}

// Wait waits until a started command that leads a process group has ended, kills the rest
// of the group, and returns what [exec.Cmd.Wait] does.
func Wait(cmd *exec.Cmd) error {
	// Before it is reaped, its number, which is the group's, cannot be reused.
	awaitEnd(cmd)
	KillGroup(cmd)
	return cmd.Wait()
}

// awaitEnd returns when a child has ended, without reaping it.
func awaitEnd(cmd *exec.Cmd) {
	for {
		err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// KillGroup kills the process group that a command leads. The command has not been reaped.
func KillGroup(cmd *exec.Cmd) { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
