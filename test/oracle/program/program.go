// SPDX-License-Identifier: Apache-2.0

// Package program runs programs in network namespaces for as long as a test needs them,
// with their output in files.
package program

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/test/lab"
)

// Program is a program that runs until it is stopped.
type Program struct {
	*lab.Process
	name string
	log  string // path
}

// Start starts a program in a namespace and in the directory dir; its output is added to
// NAME.log there. The program ends with this process at the latest.
func Start(ns *lab.Namespace, dir, name, path string, args ...string) (*Program, error) {
	log := filepath.Join(dir, name+".log")
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = f, f
	p, err := ns.Start(cmd)
	if err != nil {
		return nil, err
	}
	return &Program{p, name, log}, nil
}

// Await asks ready until it has no error. It gives up when ctx ends or when the program
// does.
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

// Log is all that the program has said, and earlier ones of its name in its directory.
func (p *Program) Log() string {
	out, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(out)
}

// Explain adds what the program said last.
func (p *Program) Explain(err error) error {
	return fmt.Errorf("%s: %w; its log ends with:\n%s", p.name, err, Tail([]byte(p.Log()), 15))
}

// Stop kills the program and waits for its end.
func (p *Program) Stop() error {
	if err := p.Kill(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	<-p.Done()
	return nil
}

// Terminate is [lab.Process.Terminate] with an error that holds the end of the log.
func (p *Program) Terminate(ctx context.Context) error {
	if err := p.Process.Terminate(ctx); err != nil {
		return p.Explain(err)
	}
	return nil
}

// Tail is the last n lines of a program's output.
func Tail(out []byte, n int) string {
	lines := strings.Split(string(bytes.TrimSpace(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
