// SPDX-License-Identifier: Apache-2.0

// Package process runs a program of the host and leaves none of its processes behind.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Process is a child process that leads a process group.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // valid once done is closed
}

// Start starts a command, on a thread that do chooses. It adds to cmd.SysProcAttr a process
// group of its own and SIGKILL on the death of this process. When the process ends, the rest of
// its process group is killed.
func Start(cmd *exec.Cmd, do func(func() error) error) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	cmd.SysProcAttr.Setpgid = !cmd.SysProcAttr.Setsid // setsid makes a process group too
	p := &Process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		err := do(func() error {
			// The kernel sends the death signal when the thread that started the child
			// ends, so this thread stays until the child has ended.
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if err := cmd.Start(); err != nil {
				return err
			}
			started <- nil
			// Before it is reaped, its number, which is that of its process group, cannot be reused.
			for err := error(unix.EINTR); errors.Is(err, unix.EINTR); {
				err = unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
			}
			_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // what is left of the group
			p.err = cmd.Wait()
			close(p.done)
			return nil
		})
		if err != nil {
			started <- err
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// Run starts a command as Start does, in a session of its own, and returns the result of
// [exec.Cmd.Wait]. When ctx ends first, the process group is killed. The command's SysProcAttr
// is replaced.
func Run(ctx context.Context, cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	p, err := Start(cmd, func(f func() error) error { return f() })
	if err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		_ = p.Kill()
	}
	return p.Wait()
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal to the process, not to its group. The error is
// os.ErrProcessDone after its end.
func (p *Process) Signal(sig os.Signal) error { return p.cmd.Process.Signal(sig) }

// Kill sends SIGKILL; a process that has already ended is not an error.
func (p *Process) Kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Close is Kill and waits for the end.
func (p *Process) Close() error {
	err := p.Kill()
	<-p.done
	return err
}

// Terminate sends SIGTERM and waits for the end of the process. If ctx ends first, the
// process is killed, which is an error.
func (p *Process) Terminate(ctx context.Context) error {
	if err := p.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("does not end after SIGTERM: %w", ctx.Err()), p.Close())
	}
}

// Done returns a channel that is closed when the process has ended and its output is written.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the end of the process and returns the result of [exec.Cmd.Wait], to any
// number of callers.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}
