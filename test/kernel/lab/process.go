// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/process"
)

// Process is a child process that runs in a namespace.
type Process = process.Process

// Start starts cmd in the namespace, as process.Start does. The process ends with the
// namespace.
//
// Only network namespaces are separate: files, /sys and process ids are the
// machine's. Processes that cmd starts outside its process group are not known
// here and outlive a kill -9 of this process.
func (n *Namespace) Start(cmd *exec.Cmd) (*Process, error) {
	cmd.WaitDelay = cmp.Or(cmd.WaitDelay, 2*time.Second) // do not wait for pipes held by others
	p, err := process.Start(cmd, n.Do)
	if err != nil {
		return nil, n.wrap(fmt.Errorf("start %s: %w", cmd.Path, err))
	}
	if err := n.track(p, false); err != nil {
		_ = p.Close()
		return nil, n.wrap(fmt.Errorf("start %s: %w", cmd.Path, err))
	}
	go func() {
		<-p.Done()
		n.untrack(p)
	}()
	return p, nil
}

// Run runs a program in the namespace to its end and returns its standard
// output; the error holds its standard error.
func (n *Namespace) Run(ctx context.Context, name string, args ...string) ([]byte, error) {
	return n.Output(exec.CommandContext(ctx, name, args...))
}

// Output is Run for a command, which knows afterwards what it used.
func (n *Namespace) Output(cmd *exec.Cmd) ([]byte, error) {
	var stdout, stderr bytes.Buffer
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

// Program is a process that runs until it is stopped, with its output in a file.
type Program struct {
	*Process
	name string
	log  string // path
}

// StartProgram starts a program in the namespace and in the directory dir; its output is
// added to NAME.log there.
func (n *Namespace) StartProgram(dir, name, path string, args ...string) (*Program, error) {
	return n.StartCommand(dir, name, exec.Command(path, args...))
}

// StartCommand is StartProgram for a command.
func (n *Namespace) StartCommand(dir, name string, cmd *exec.Cmd) (*Program, error) {
	log := filepath.Join(dir, name+".log")
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, f, f
	p, err := n.Start(cmd)
	if err != nil {
		return nil, err
	}
	return &Program{p, name, log}, nil
}

// Await calls ready until it returns nil. It gives up when ctx ends or the program does.
func (p *Program) Await(ctx context.Context, ready func(context.Context) error) error {
	for {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := ready(try)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-p.Done():
			return p.Explain(fmt.Errorf("ended early: %v", p.Wait()))
		case <-ctx.Done():
			return p.Explain(errors.Join(ctx.Err(), err))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Log returns the output of the program, and of earlier ones of its name in its directory.
func (p *Program) Log() string {
	out, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(out)
}

// Explain adds the end of the log to an error.
func (p *Program) Explain(err error) error {
	return fmt.Errorf("%s: %w; its log ends with:\n%s", p.name, err, Tail(p.Log(), 15))
}

// Terminate is [process.Process.Terminate] with an error that holds the end of the log.
func (p *Program) Terminate(ctx context.Context) error {
	if err := p.Process.Terminate(ctx); err != nil {
		return p.Explain(err)
	}
	return nil
}

// Tail returns the last n lines of a program's output.
func Tail(out string, n int) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
