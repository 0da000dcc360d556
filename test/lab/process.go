// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/slipstream-proxy/slipstream/test/process"
)

// Process is a child process that runs in a namespace.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // valid once done is closed
}

// Start starts cmd in the namespace. The caller fills in cmd as for
// exec.Cmd.Start (exec.CommandContext, Env, Stdout, Stderr ...); Start adds to
// cmd.SysProcAttr a process group of its own and SIGKILL on the death of this
// process. When the process ends, what is left in its process group is killed.
//
// Only network namespaces are separate: files, /sys and process ids are the
// machine's. Processes that cmd starts outside its process group are not known
// here and outlive a kill -9 of this process.
func (n *Namespace) Start(cmd *exec.Cmd) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if !cmd.SysProcAttr.Setsid { // setsid makes a process group too
		cmd.SysProcAttr.Setpgid = true
	}
	if cmd.WaitDelay == 0 {
		cmd.WaitDelay = 2 * time.Second // do not wait for pipes held by others
	}
	p := &Process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The kernel sends the death signal when the thread that started the
		// child ends, so this thread stays until the child has ended.
		err := n.Do(func() error {
			if err := cmd.Start(); err != nil {
				return n.wrap(fmt.Errorf("start %s: %w", cmd.Path, err))
			}
			if err := n.track(p, false); err != nil {
				process.KillGroup(cmd)
				_ = cmd.Wait()
				return n.wrap(err)
			}
			started <- nil
			p.err = process.Wait(cmd)
			return nil
		})
		if err != nil {
			started <- err
			return
		}
		n.untrack(p)
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// Run runs a program in the namespace to its end and returns its standard
// output; the error holds its standard error.
func (n *Namespace) Run(ctx context.Context, name string, args ...string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	p, err := n.Start(cmd)
	if err != nil {
		return nil, err
	}
	if err := p.Wait(); err != nil {
		return stdout.Bytes(), n.wrap(fmt.Errorf("%s: %w: %s", cmd, err, bytes.TrimSpace(stderr.Bytes())))
	}
	return stdout.Bytes(), nil
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal to the process, not to its group. The error is
// os.ErrProcessDone after its end.
func (p *Process) Signal(sig os.Signal) error { return p.cmd.Process.Signal(sig) }

// Kill sends SIGKILL; no error if the process has ended before. What else is in
// its process group is killed right after it.
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

// Terminate sends SIGTERM and waits for the end of the process, however it ends. A
// process that has not ended when ctx does is killed, which is an error.
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

// Done returns a channel that is closed when the process has ended and its
// output has been written.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the end of the process and returns what exec.Cmd.Wait
// returns. It may be called often and from several goroutines.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}
