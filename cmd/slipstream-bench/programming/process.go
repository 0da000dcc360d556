// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Command is how a child process is started: a program and its arguments, such
// that it calls [RunChild] with its standard input and output.
type Command []string

// process is a running child, in a network namespace of its own.
type process struct {
	name     string
	requests *json.Encoder
	replies  *json.Decoder
	input    io.Closer
	done     chan struct{} // closed when nothing more is to be read
	ended    chan error
}

// startProcess starts a child and opens a system in it. The second result says
// why there is no such system on this machine. The child ends with ctx, with
// this process, or when it is closed.
func startProcess(ctx context.Context, command Command, name string, o *SyncOptions) (*process, string, error) {
	p := &process{name: name, done: make(chan struct{}), ended: make(chan error, 1)}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 10 * time.Second
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, "", err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	started := make(chan error)
	go func() {
		// The kernel takes the end of the thread that has started a
		// child for the end of its parent.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			<-p.done // only then, as Wait closes the pipe of replies
			p.ended <- cmd.Wait()
		}
	}()
	if err := <-started; errors.Is(err, syscall.EPERM) {
		return nil, "", errors.New("it takes root to make a network namespace for what is measured")
	} else if err != nil {
		return nil, "", fmt.Errorf("starting a process for what is measured: %w", err)
	}
	p.requests, p.replies, p.input = json.NewEncoder(in), json.NewDecoder(out), in
	r, err := p.step(request{Step: stepOpen, System: name, Options: o})
	if err != nil {
		return nil, "", errors.Join(err, p.close())
	}
	if r.Unavailable != "" {
		return nil, r.Unavailable, p.close()
	}
	return p, "", nil
}

// step has the child take a step.
func (p *process) step(q request) (r reply, err error) {
	if err := p.requests.Encode(q); err != nil {
		return r, fmt.Errorf("%s: step %s: the process has ended: %w", p.name, q.Step, err)
	}
	if err := p.replies.Decode(&r); err != nil {
		return r, fmt.Errorf("%s: step %s: the process has ended: %w", p.name, q.Step, err)
	}
	if r.Error != "" {
		return r, fmt.Errorf("%s: step %s: %s", p.name, q.Step, r.Error)
	}
	return r, nil
}

// close ends the child.
func (p *process) close() error {
	err := p.input.Close()
	close(p.done)
	if end := <-p.ended; end != nil {
		err = errors.Join(err, fmt.Errorf("%s: the process has ended with %w", p.name, end))
	}
	return err
}
