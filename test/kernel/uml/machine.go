// SPDX-License-Identifier: Apache-2.0

package uml

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipstream-proxy/slipstream/test/process"
)

// defaultMemory is what a machine has unless told otherwise. The host gives pages as
// they are touched, so a machine that needs little takes little.
const defaultMemory = "2G"

// Machine describes a User Mode Linux machine. Each Run boots one of its own.
type Machine struct {
	// Kernel is the path of the kernel, an executable file.
	Kernel string
	// Memory is how much the machine may use, as the kernel's mem= option takes it;
	// empty means 2G.
	Memory string
	// Parameters are more of the kernel's, such as "ipv6.disable=1".
	Parameters []string
	// Console receives the kernel's own messages of level error and above, and the
	// complaints of process 1. It may be nil: errors of Run carry the end of them.
	Console io.Writer
}

// Version returns the release of the kernel, such as "6.12.117".
func (m Machine) Version(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, m.Kernel, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("uml: kernel %s: --version: %w", m.Kernel, err)
	}
	version := strings.TrimSpace(string(out))
	if version == "" || strings.ContainsAny(version, " \n") {
		return "", fmt.Errorf("uml: kernel %s: --version printed %q, which is no kernel release", m.Kernel, version)
	}
	return version, nil
}

// Check boots the machine once and runs nothing of use on it. An error says in one line
// why the machine does not boot, in the words of the kernel's panic if there was one.
func (m Machine) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, bootTimeout, fmt.Errorf("no end after %v", bootTimeout))
	defer cancel()
	var console tail
	m.Console = &console
	result, err := m.Run(ctx, Command{Path: "/bin/true"}, nil)
	switch {
	case err == nil && result.ExitCode == 0:
		return nil
	case err == nil:
		return fmt.Errorf("uml: kernel %s boots, but /bin/true ends with %d", m.Kernel, result.ExitCode)
	}
	if why := console.panicked(); why != "" {
		return fmt.Errorf("uml: kernel %s does not boot: %s", m.Kernel, why)
	}
	return fmt.Errorf("uml: kernel %s does not boot: %w", m.Kernel, err)
}

// bootTimeout bounds a boot that takes less than a second on an idle host.
const bootTimeout = 2 * time.Minute

// Run boots the machine, runs the command, and returns how it ended after the machine
// is gone. The command's standard output and standard error both go to output as they
// come, which is written to by one goroutine at a time.
//
// An error means that there is no result: the kernel did not start, panicked, or ctx
// ended first; then every process of the machine has been killed.
//
// The calling program must be one that calls [Init].
func (m Machine) Run(ctx context.Context, c Command, output io.Writer) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, fmt.Errorf("uml: not booted: %w", err)
	}
	if c.Dir == "" {
		c.Dir = "/"
	}
	if err := checkVisible("command", c.Path); err != nil {
		return Result{}, err
	}
	if err := checkVisible("working directory", c.Dir); err != nil {
		return Result{}, err
	}
	// Process 1 could only report that the program does not exist, which is misleading.
	if _, err := os.Stat(c.Dir); err != nil {
		return Result{}, fmt.Errorf("uml: working directory: %w", err)
	}
	dir, err := prepare(c)
	if err != nil {
		return Result{}, err
	}
	defer os.RemoveAll(dir)

	console := &tail{to: m.Console}
	if err := m.boot(ctx, dir, console, output); err != nil {
		return Result{}, fmt.Errorf("%w%s", err, console.quote())
	}
	var result Result
	if err := readJSON(filepath.Join(dir, resultFile), &result); err != nil {
		return Result{}, fmt.Errorf("uml: the machine stopped without a result: %w%s", err, console.quote())
	}
	if result.Failure != "" {
		return Result{}, fmt.Errorf("uml: %s", result.Failure)
	}
	return result, nil
}

// prepare makes the directory of a job.
func prepare(c Command) (dir string, err error) {
	dir, err = os.MkdirTemp("", "slipstream-uml-")
	if err != nil {
		return "", fmt.Errorf("uml: %w", err)
	}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
		}
	}()
	if err := checkVisible("temporary directory", dir); err != nil {
		return "", err
	}
	if strings.ContainsAny(dir, " \t\n\"',") {
		return "", fmt.Errorf("uml: temporary directory %q cannot be named on a kernel's command line; set TMPDIR", dir)
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("uml: %w", err)
	}
	if err := checkVisible("program", self); err != nil {
		return "", err
	}
	if err := os.Symlink(self, filepath.Join(dir, initFile)); err != nil {
		return "", fmt.Errorf("uml: %w", err)
	}
	if err := writeJSON(filepath.Join(dir, jobFile), c); err != nil {
		return "", fmt.Errorf("uml: %w", err)
	}
	return dir, nil
}

// boot starts the kernel and returns when the machine is gone and all of its output
// has been delivered.
func (m Machine) boot(ctx context.Context, dir string, console, output io.Writer) error {
	memory := m.Memory
	if memory == "" {
		memory = defaultMemory
	}
	consoleRead, consoleWrite, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("uml: %w", err)
	}
	defer consoleRead.Close()
	defer consoleWrite.Close()
	outputRead, outputWrite, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("uml: %w", err)
	}
	defer outputRead.Close()
	defer outputWrite.Close()

	cmd := exec.Command(m.Kernel,
		"mem="+memory,
		"root=/dev/root", "rootfstype=hostfs", "rootflags=/", "rw",
		"init="+filepath.Join(dir, initFile),
		// The kernel's messages go to descriptor 1, the command's output by way of
		// tty1 to descriptor 3 so that neither garbles the other.
		"con=null", "con0=null,fd:1", "con1=null,fd:3",
		"quiet", "panic=-1",
		"umid="+randomID(), "uml_dir="+dir,
		jobVariable+"="+dir,
	)
	cmd.Args = append(cmd.Args, m.Parameters...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + dir, "TMPDIR=" + memoryDir()}
	cmd.Stdout, cmd.Stderr = consoleWrite, consoleWrite
	cmd.ExtraFiles = []*os.File{outputWrite}
	var readers sync.WaitGroup
	readers.Go(func() { copyAll(console, consoleRead) })
	readers.Go(func() { copyAll(output, outputRead) })

	// The kernel runs each of its address spaces in a process of the host. They are
	// all in its process group, and end with it.
	runErr := process.Run(ctx, cmd)
	consoleWrite.Close()
	outputWrite.Close()
	readers.Wait()

	if ctx.Err() != nil && runErr != nil {
		return fmt.Errorf("uml: machine killed: %w", context.Cause(ctx))
	}
	if runErr != nil {
		return fmt.Errorf("uml: kernel %s: %w", m.Kernel, runErr)
	}
	return nil
}

// copyAll reads to the end whatever happens to the writer: a machine whose output
// nobody takes would hang.
func copyAll(to io.Writer, from io.Reader) {
	if to == nil {
		to = io.Discard
	}
	if _, err := io.Copy(to, from); err != nil {
		_, _ = io.Copy(io.Discard, from)
	}
}

// memoryDir returns where the kernel shall keep the machine's memory, an unlinked file.
// It must be possible to map it for execution, and it should not be on a disk.
func memoryDir() string {
	const shm = "/dev/shm"
	const need = 3 << 30 // bytes, of which the machine takes those that it touches
	var fs unix.Statfs_t
	if err := unix.Statfs(shm, &fs); err == nil &&
		fs.Type == unix.TMPFS_MAGIC && fs.Flags&unix.ST_NOEXEC == 0 &&
		fs.Bavail*uint64(fs.Bsize) >= need && unix.Access(shm, unix.W_OK) == nil {
		return shm
	}
	return os.TempDir()
}

func randomID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails, see crypto/rand
	return "slipstream-" + hex.EncodeToString(b[:])
}
