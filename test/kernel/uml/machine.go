// SPDX-License-Identifier: Apache-2.0

// Package uml boots a User Mode Linux kernel, an ordinary Linux program, and runs one
// command on it.
//
// The machine's root is the host's file system (hostfs): a test binary built on the host
// runs there unchanged, and files that it writes stay on the host. The machine has its own
// processes, network and mounts: what the command does to network namespaces, rules or
// sysctls does not affect the host.
//
// Process 1 of the machine is the binary that booted it: a program that uses this package
// calls [Init] first in main or TestMain. On the host Init does nothing; as process 1 it
// mounts file systems, runs the command, records how it ended and powers off.
package uml

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/process"
	"golang.org/x/sys/unix"
)

// Machine describes a User Mode Linux machine. Each Run boots a new one.
type Machine struct {
	Kernel string // path
	Memory string // as in the kernel's option mem=; 2G if empty. The host provides pages as they are touched

	Parameters []string // further kernel parameters, such as "ipv6.disable=1"
}

// bootTimeout bounds a boot that takes less than a second on an idle host.
const bootTimeout = 2 * time.Minute

// Check boots the machine and returns its kernel's release, such as "6.12.117". An error
// says in one line why the machine does not boot, with the message of the kernel's panic
// if there was one.
func (m Machine) Check(ctx context.Context) (release string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, bootTimeout, fmt.Errorf("no end after %v", bootTimeout))
	defer cancel()
	var console tail
	var out strings.Builder
	exitCode, err := m.run(ctx, Command{Path: "/bin/uname", Args: []string{"-r"}}, &out, &console)
	release = strings.TrimSpace(out.String())
	why := console.panicked()
	switch {
	case err != nil && why != "":
		return "", fmt.Errorf("uml: kernel %s does not boot: %s", m.Kernel, why)
	case err != nil:
		return "", fmt.Errorf("uml: kernel %s does not boot: %w", m.Kernel, err)
	case exitCode != 0 || release == "":
		return "", fmt.Errorf("uml: kernel %s boots, but uname -r exits with %d and prints %q", m.Kernel, exitCode, release)
	}
	return release, nil
}

// Run boots the machine, runs the command, and returns its exit code, or 128 plus the number
// of the signal that ended it. The command's standard output and standard error both go to
// output, which may be nil, as they arrive. An error means that the kernel did not start, panicked, or ctx ended
// first. The calling program must be one that calls [Init].
func (m Machine) Run(ctx context.Context, c Command, output io.Writer) (exitCode int, err error) {
	exitCode, err = m.run(ctx, c, output, &tail{})
	if err != nil {
		err = fmt.Errorf("uml: %w", err)
	}
	return exitCode, err
}

func (m Machine) run(ctx context.Context, c Command, output io.Writer, console *tail) (exitCode int, err error) {
	c.Dir = cmp.Or(c.Dir, "/")
	dir, err := os.MkdirTemp("", "slipstream-uml-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if err := prepare(dir, c); err != nil {
		return 0, err
	}
	bootErr := m.boot(ctx, dir, output, console)
	var r result
	switch err := readJSON(filepath.Join(dir, resultFile), &r); {
	case err == nil && r.Failure != "":
		return 0, errors.New(r.Failure)
	case err == nil:
		// Output and result are complete before the kernel powers off. UML has been seen
		// to abort after that, which changes nothing.
		return r.ExitCode, nil
	case bootErr != nil:
		return 0, fmt.Errorf("%w%s", bootErr, console.quote())
	default:
		return 0, fmt.Errorf("the machine stopped without a result: %w%s", err, console.quote())
	}
}

// prepare writes the files of a job to its directory.
func prepare(dir string, c Command) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := errors.Join(
		checkVisible("command", c.Path), checkVisible("working directory", c.Dir),
		checkVisible("temporary directory", dir), checkVisible("program", self),
	); err != nil {
		return err
	}
	// Process 1 would report that the program does not exist.
	if _, err := os.Stat(c.Dir); err != nil {
		return fmt.Errorf("working directory: %w", err)
	}
	if strings.ContainsAny(dir, " \t\n\"',") {
		return fmt.Errorf("temporary directory %q cannot be named on a kernel's command line; set TMPDIR", dir)
	}
	if err := os.Symlink(self, filepath.Join(dir, initFile)); err != nil {
		return err
	}
	return writeJSON(filepath.Join(dir, jobFile), c)
}

// boot starts the kernel and returns when the machine has ended and all of its output has
// been delivered.
func (m Machine) boot(ctx context.Context, dir string, output io.Writer, console *tail) error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	defer write.Close()
	cmd := exec.Command(m.Kernel,
		"mem="+cmp.Or(m.Memory, "2G"),
		"root=/dev/root", "rootfstype=hostfs", "rootflags=/", "rw",
		"init="+filepath.Join(dir, initFile),
		// The kernel's messages go to descriptor 1, the command's output by way of tty1 to
		// descriptor 3, so that they do not mix.
		"con=null", "con0=null,fd:1", "con1=null,fd:3",
		"quiet", "panic=-1",
		"umid=machine", "uml_dir="+dir,
		jobVariable+"="+dir,
	)
	cmd.Args = append(cmd.Args, m.Parameters...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + dir, "TMPDIR=" + memoryDir()}
	cmd.Stdout, cmd.Stderr = console, console
	cmd.ExtraFiles = []*os.File{write}
	var reader sync.WaitGroup
	reader.Go(func() {
		if output != nil {
			_, _ = io.Copy(output, read)
		}
		_, _ = io.Copy(io.Discard, read) // a machine whose output is not read would hang
	})

	// The kernel runs each of its address spaces in a process of the host. They are all in
	// its process group, which is killed when the kernel ends.
	err = process.Run(ctx, cmd)
	write.Close()
	reader.Wait()
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("machine killed: %w", context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("kernel %s: %w", m.Kernel, err)
	}
	return nil
}

// memoryDir returns the directory for the file that is the machine's memory: not on a disk,
// and the kernel maps it for execution.
func memoryDir() string {
	const shm = "/dev/shm"
	const need = 3 << 30 // bytes; the machine takes what it touches
	var fs unix.Statfs_t
	if err := unix.Statfs(shm, &fs); err == nil &&
		fs.Type == unix.TMPFS_MAGIC && fs.Flags&unix.ST_NOEXEC == 0 &&
		fs.Bavail*uint64(fs.Bsize) >= need && unix.Access(shm, unix.W_OK) == nil {
		return shm
	}
	return os.TempDir()
}

// tailSize is how many bytes of a console are kept for an error message.
const tailSize = 16 << 10

// tail keeps the end of a log.
type tail struct{ kept []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if extra := len(t.kept) - tailSize; extra > 0 {
		t.kept = append([]byte(nil), t.kept[extra:]...)
	}
	return len(p), nil
}

// quote returns the console's output, indented, to follow an error message.
func (t *tail) quote() string {
	text := strings.TrimSpace(strings.ReplaceAll(string(t.kept), "\r", ""))
	if text == "" {
		return " (the console stayed silent)"
	}
	return "; the console said:\n    " + strings.ReplaceAll(text, "\n", "\n    ")
}

// fpFailure is in the output of a kernel without fp-size.patch before it panics on a processor
// with AMX.
const fpFailure = "ptrace set fp regs failed"

// panicked returns why the kernel panicked, or "" if it printed no reason.
func (t *tail) panicked() string {
	why := ""
	for line := range strings.Lines(string(t.kept)) {
		line = strings.TrimSpace(line)
		if at := strings.Index(line, fpFailure); at >= 0 {
			return line[at:] + ": built without fp-size.patch, which processors with AMX need"
		}
		if at := strings.Index(line, "Kernel panic - not syncing"); at >= 0 && why == "" {
			why = line[at:]
		}
	}
	return why
}

// Command is a program to run on a machine. Paths are the host's, and absolute.
type Command struct {
	Path string
	Args []string // without the program's own name
	Dir  string   // the working directory; "/" if empty
	Env  []string // NAME=value; with PATH and HOME if absent, and TMPDIR on a tmpfs of the machine
}

// result is how a command ended.
type result struct {
	ExitCode int
	Failure  string // why the command could not be started, or empty
}

const (
	// jobVariable names the job's directory, in the environment of process 1: it is on the
	// kernel's command line.
	jobVariable = "SLIPSTREAM_UML_JOB"

	// Names in the directory of a job.
	initFile   = "init"        // symbolic link to the binary that is process 1
	jobFile    = "job.json"    // a Command, written by the host
	resultFile = "result.json" // a result, written by process 1
)

// checkVisible returns an error if a machine has mounts of its own above a path of the host.
// what names the path in the error.
func checkVisible(what, path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%s %q is not an absolute path", what, path)
	}
	clean := filepath.Clean(path)
	if resolved, err := filepath.EvalSymlinks(clean); err == nil {
		clean = resolved
	}
	for _, dir := range []string{"/dev", "/proc", "/run", "/sys", "/var/run"} {
		if clean == dir || strings.HasPrefix(clean, dir+"/") {
			return fmt.Errorf("%s %q is below %s, where the machine has a mount of its own; use another place (see TMPDIR)", what, path, dir)
		}
	}
	return nil
}

func writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}

func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// Versions are the Linux versions that tests run on, as test/kernel/build.sh takes them.
var Versions = []string{"6.12", "6.1"}

// ErrNoKernel means that no kernel of the version is named and none is cached.
var ErrNoKernel = errors.New("no User Mode Linux kernel")

// Find returns the path of the kernel of a version that the environment names, else of the
// one that buildScript (test/kernel/build.sh) has cached, else [ErrNoKernel] with what the
// script said. It builds nothing.
func Find(ctx context.Context, buildScript, version string) (string, error) {
	cmd := exec.CommandContext(ctx, buildScript, "--cached", version)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if status, is := errors.AsType[*exec.ExitError](err); is && status.ExitCode() == 1 {
		return "", fmt.Errorf("%w: %s", ErrNoKernel, bytes.TrimSpace(said.Bytes()))
	}
	if err != nil {
		return "", fmt.Errorf("%s --cached %s: %w", buildScript, version, err)
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}
