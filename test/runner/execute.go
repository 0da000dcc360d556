// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/uml"
	"github.com/slipstream-proxy/slipstream/test/process"
)

// grace is how long a test binary may take, after its own timeout, to say where it
// hangs. Then it is killed.
const grace = 30 * time.Second

// executor runs test binaries.
type executor struct {
	opts      options
	test2json string
	progress  *progress
}

// run runs the tests of one package on one kernel.
func (x executor) run(ctx context.Context, k kernel, p testPackage, b *build) packageRun {
	r := packageRun{pkg: p.path, kernel: k.String(), tests: map[string]*testRun{}}
	defer func() { x.progress.done(r) }()
	<-b.ready
	if b.failed {
		r.failure = "the tests do not build:\n" + b.output
		return r
	}
	begin := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, x.opts.timeout+grace,
		fmt.Errorf("no end after %v", x.opts.timeout+grace))
	defer cancel()

	events, err := startEvents(x.test2json, p.path, func(e event) {
		r.add(e)
		x.progress.event(k.name, e)
	})
	if err != nil {
		r.failure = err.Error()
		return r
	}
	onKernel := onHost
	if k.uml() {
		onKernel = k.onUML
	}
	runErr := onKernel(ctx, b.binary, testArgs(x.opts), p.dir, events)
	runErr = errors.Join(runErr, events.Close())
	r.elapsed = time.Since(begin)
	r.finish(runErr)
	return r
}

// testArgs are the arguments of a test binary. Like go test's own they make a premature
// exit with status 0 a failure.
func testArgs(opts options) []string {
	args := []string{
		"-test.v=test2json",
		"-test.paniconexit0",
		"-test.timeout=" + opts.timeout.String(),
		"-test.count=" + strconv.Itoa(opts.count),
	}
	if opts.run != "" {
		args = append(args, "-test.run="+opts.run)
	}
	if opts.short {
		args = append(args, "-test.short")
	}
	return args
}

func onHost(ctx context.Context, binary string, args []string, dir string, output io.Writer) error {
	cmd := exec.Command(binary, args...)
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = output, output
	// What escaped from the process group may hold the output open.
	cmd.WaitDelay = grace
	err := process.Run(ctx, cmd)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("killed: %w", context.Cause(ctx))
	}
	return err
}

func (k kernel) onUML(ctx context.Context, binary string, args []string, dir string, output io.Writer) error {
	result, err := uml.Machine{Kernel: k.path}.Run(ctx, uml.Command{
		Path: binary,
		Args: args,
		Dir:  dir,
		Env:  withPath(os.Environ()),
	}, output)
	if err != nil {
		return err
	}
	if result.ExitCode != 0 {
		return fmt.Errorf("exit status %d", result.ExitCode)
	}
	return nil
}

// withPath makes sure that the commands of root are found: tests on the machine run as
// root even if the runner does not.
func withPath(env []string) []string {
	const name, add = "PATH=", ":/usr/local/sbin:/usr/sbin:/sbin"
	out := make([]string, 0, len(env))
	for _, entry := range env {
		if strings.HasPrefix(entry, name) {
			entry += add
		}
		out = append(out, entry)
	}
	return out
}
