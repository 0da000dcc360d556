// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/slipstream-proxy/slipstream/lab"
)

// process is a program that runs until it is stopped, with its output in a file.
type process struct {
	*lab.Process
	name string
	log  string // path
}

// start starts a program in a namespace; its output goes to NAME.log in dir.
func start(ns *lab.Namespace, dir, name, path string, args ...string) (*process, error) {
	log := filepath.Join(dir, name+".log")
	f, err := os.Create(log)
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
	return &process{p, name, log}, nil
}

// await asks ready until it has no error. It gives up when ctx ends or when the program
// does.
func (p *process) await(ctx context.Context, ready func(context.Context) error) error {
	for {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := ready(try)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-p.Done():
			return p.explain(fmt.Errorf("ended early: %v", p.Wait()))
		case <-ctx.Done():
			return p.explain(errors.Join(ctx.Err(), err))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// explain adds what the program said last.
func (p *process) explain(err error) error {
	out, _ := os.ReadFile(p.log)
	return fmt.Errorf("%s: %w; its log ends with:\n%s", p.name, err, tail(out, 15))
}

// stop kills the program and waits for its end.
func (p *process) stop() error {
	if err := p.Kill(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	<-p.Done()
	return nil
}
