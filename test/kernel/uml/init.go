// SPDX-License-Identifier: Apache-2.0

package uml

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// outputTTY is the machine's end of descriptor 3 of the kernel's process.
const outputTTY = "/dev/tty1"

// Init does nothing on the host. In process 1 of a machine it runs the machine's command
// and powers the machine off; it does not return then.
func Init() {
	dir := os.Getenv(jobVariable)
	if os.Getpid() != 1 || dir == "" {
		return
	}
	var result Result
	var err error
	if result.ExitCode, err = serve(dir); err != nil {
		result.Failure = err.Error()
		fmt.Fprintln(os.Stderr, "uml: init:", err)
	}
	if err := writeJSON(filepath.Join(dir, resultFile), result); err != nil {
		fmt.Fprintln(os.Stderr, "uml: init: result:", err)
	}
	// hostfs writes a file to the host when the file is closed. This is for files that are
	// still open: a kernel that powers off does not close them.
	unix.Sync()
	err = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	fmt.Fprintln(os.Stderr, "uml: init: power off:", err)
	os.Exit(1) // the kernel panics, which ends the machine as well
}

// serve runs the job of a directory and returns the command's exit code.
func serve(dir string) (int, error) {
	var c Command
	if err := readJSON(filepath.Join(dir, jobFile), &c); err != nil {
		return 0, fmt.Errorf("job: %w", err)
	}
	if err := setUp(); err != nil {
		return 0, err
	}
	output, err := openOutput()
	if err != nil {
		return 0, fmt.Errorf("output: %s: %w", outputTTY, err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	process, err := os.StartProcess(c.Path, append([]string{c.Path}, c.Args...), &os.ProcAttr{
		Dir:   c.Dir,
		Env:   environment(c.Env),
		Files: []*os.File{null, output, output},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, fmt.Errorf("command: %w", err)
	}
	// Reap all children, which orphans become, until the command has ended.
	var status unix.WaitStatus
	for pid := 0; pid != process.Pid || !status.Exited() && !status.Signaled(); {
		if pid, err = unix.Wait4(-1, &status, 0, nil); err != nil && !errors.Is(err, unix.EINTR) {
			return 0, fmt.Errorf("command %s: %w", c.Path, err)
		}
	}
	// Processes that it left running must not write past the end of its output.
	_ = unix.Kill(-1, unix.SIGKILL)
	// Wait until the host has taken all output: TCSBRK with an argument other than 0 is
	// tcdrain(3).
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.IoctlSetInt(int(output.Fd()), unix.TCSBRK, 1)
	}
	if err != nil {
		return 0, fmt.Errorf("output: %w", err)
	}
	if status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return status.ExitStatus(), nil
}

// environment completes a command's environment.
func environment(env []string) []string {
	has := func(name string) bool {
		return slices.ContainsFunc(env, func(entry string) bool { return strings.HasPrefix(entry, name+"=") })
	}
	env = slices.DeleteFunc(slices.Clone(env), func(entry string) bool { return strings.HasPrefix(entry, "TMPDIR=") })
	if !has("PATH") {
		env = append(env, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	}
	if !has("HOME") {
		env = append(env, "HOME=/root")
	}
	return append(env, "TMPDIR="+tempDir)
}

// openOutput opens the terminal that leads to the host and makes it pass bytes unchanged.
func openOutput() (*os.File, error) {
	fd, err := unix.Open(outputTTY, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	mode, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, err
	}
	mode.Oflag &^= unix.OPOST
	mode.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG | unix.TOSTOP
	mode.Iflag = 0
	return os.NewFile(uintptr(fd), outputTTY), unix.IoctlSetTermios(fd, unix.TCSETS, mode)
}
