// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// toolRun is what one call of a command cost, such as nft, or several.
type toolRun struct {
	took, cpu time.Duration
	bytes     int // of the script
	// peak is the most memory that the command had resident, in bytes. The
	// kernel counts what this process had when it started the command, too,
	// so it is never less than some 20 MB.
	peak   int64
	output []byte
}

// add adds what another call cost.
func (r *toolRun) add(more toolRun) {
	r.took += more.took
	r.cpu += more.cpu
	r.bytes += more.bytes
	r.peak = max(r.peak, more.peak)
	r.output = append(r.output, more.output...)
}

// errTimeout says that a call was ended.
var errTimeout = errors.New("it took too long")

// runTool runs a command in this process's network namespace. What write writes
// is its standard input; writing is not part of what is measured.
func runTool(timeout time.Duration, write func(*os.File) error, name string, args ...string) (run toolRun, err error) {
	script, err := memoryFile()
	if err != nil {
		return run, err
	}
	defer script.Close()
	if err := write(script); err != nil {
		return run, fmt.Errorf("script for %s: %w", name, err)
	}
	size, err := script.Seek(0, 1)
	if err != nil {
		return run, err
	}
	if _, err := script.Seek(0, 0); err != nil {
		return run, err
	}
	run.bytes = int(size)

	ctx := context.Background()
	if timeout > 0 {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	cmd := exec.CommandContext(ctx, name, args...)
	var output, problems bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = script, &output, &problems
	// The command ends with this process, which stays on one thread (see newChains).
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	start := time.Now()
	err = cmd.Run()
	run.took = time.Since(start)
	if ctx.Err() != nil {
		return run, fmt.Errorf("%w (more than %s)", errTimeout, timeout)
	}
	if err != nil {
		line, _, _ := strings.Cut(strings.TrimSpace(problems.String()), "\n")
		return run, fmt.Errorf("%s: %w: %.300s", name, err, line)
	}
	run.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	if u, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		run.peak = u.Maxrss << 10
	}
	run.output = output.Bytes()
	return run, nil
}

// memoryFile is a file without a name in memory.
func memoryFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("script", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), "script"), nil
}
