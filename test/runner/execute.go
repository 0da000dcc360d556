// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/uml"
	"github.com/slipstream-proxy/slipstream/test/process"
)

// grace is the time that a test binary has, after its own timeout, to report the hanging
// test before it is killed.
const grace = 30 * time.Second

// executor runs test binaries.
type executor struct {
	opts      options
	test2json string // path of the program
	out       *log.Logger
}

// run runs the tests of one package on one kernel and prints how they ended.
func (x executor) run(ctx context.Context, k kernel, p testPackage) packageRun {
	r := packageRun{pkg: p.name, kernel: k.label, tests: map[string]*testRun{}}
	if err := p.build(); err != nil {
		r.failure = err.Error()
	} else {
		begin := time.Now()
		r.finish(x.convert(func(output io.Writer) error {
			return x.execute(ctx, k, p, output)
		}, func(e event) {
			r.add(e)
			if x.opts.verbose && e.Action == "output" {
				x.out.Printf("[%s] %s", k.name, e.Output)
			}
		}))
		r.elapsed = time.Since(begin)
	}
	x.out.Print(r.summary())
	return r
}

// event is one line of go tool test2json.
type event struct {
	Action string
	Test   string // empty for events of the package
	Output string
}

// convert calls execute with a writer that leads through test2json, and deliver with each
// event. It returns when all events are delivered, with execute's error.
func (x executor) convert(execute func(output io.Writer) error, deliver func(event)) error {
	read, write := io.Pipe()
	cmd := exec.Command(x.test2json)
	cmd.Stdin, cmd.Stderr = read, os.Stderr
	lines, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("test2json: %w", err)
	}
	var converting sync.WaitGroup
	converting.Go(func() {
		for decoder := json.NewDecoder(lines); ; {
			var e event
			if err = decoder.Decode(&e); err != nil {
				break
			}
			deliver(e)
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		_, _ = io.Copy(io.Discard, lines)
		if err = errors.Join(err, cmd.Wait()); err != nil {
			err = fmt.Errorf("test2json: %w", err)
		}
		read.Close() // if test2json ended early, writers must not block
	})
	executeErr := execute(write)
	write.Close()
	converting.Wait()
	return errors.Join(executeErr, err)
}

// execute runs a package's test binary on a kernel.
func (x executor) execute(ctx context.Context, k kernel, p testPackage, output io.Writer) error {
	limit := x.opts.timeout + grace
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no end after %v", limit))
	defer cancel()
	args := []string{
		"-test.v=test2json",
		"-test.paniconexit0", // as in go test: exiting early with status 0 is a failure
		"-test.timeout=" + x.opts.timeout.String(),
		"-test.count=" + strconv.Itoa(x.opts.count),
		"-test.run=" + x.opts.run,
	}
	if k.path != "" {
		result, err := uml.Machine{Kernel: k.path}.Run(ctx, uml.Command{Path: p.binary, Args: args, Dir: p.dir, Env: os.Environ()}, output)
		if err == nil && result.ExitCode != 0 {
			err = fmt.Errorf("exit status %d", result.ExitCode)
		}
		return err
	}
	cmd := exec.Command(p.binary, args...)
	cmd.Dir = p.dir
	cmd.Stdout, cmd.Stderr = output, output
	// Processes that left the process group may hold the output open.
	cmd.WaitDelay = grace
	err := process.Run(ctx, cmd)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("killed: %w", context.Cause(ctx))
	}
	return err
}
