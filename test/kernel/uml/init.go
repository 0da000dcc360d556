// SPDX-License-Identifier: Apache-2.0

package uml

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// outputTTY is the machine's end of descriptor 3 of the kernel's process.
const outputTTY = "/dev/tty1"

// Init does nothing on the host. In process 1 of a machine it does that process's work
// and powers the machine off; it does not return then.
func Init() {
	dir := os.Getenv(jobVariable)
	if os.Getpid() != 1 || dir == "" {
		return
	}
	result := serve(dir)
	if result.Failure != "" {
		fmt.Fprintln(os.Stderr, "uml: init:", result.Failure)
	}
	if err := writeJSON(filepath.Join(dir, resultFile), result); err != nil {
		fmt.Fprintln(os.Stderr, "uml: init: result:", err)
	}
	// hostfs hands a file to the host when it is closed; this is for files that are open
	// still, because a kernel that powers off closes none.
	unix.Sync()
	err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	fmt.Fprintln(os.Stderr, "uml: init: power off:", err)
	os.Exit(1) // the kernel panics, which ends the machine as well
}

// serve runs the job of a directory.
func serve(dir string) Result {
	fail := func(format string, args ...any) Result {
		return Result{ExitCode: -1, Failure: fmt.Sprintf(format, args...)}
	}
	var c Command
	if err := readJSON(filepath.Join(dir, jobFile), &c); err != nil {
		return fail("job: %v", err)
	}
	if err := setUp(); err != nil {
		return fail("%v", err)
	}
	output, err := openOutput()
	if err != nil {
		return fail("%v", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return fail("%v", err)
	}
	process, err := os.StartProcess(c.Path, append([]string{c.Path}, c.Args...), &os.ProcAttr{
		Dir:   c.Dir,
		Env:   environment(c.Env),
		Files: []*os.File{null, output, output},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fail("command: %v", err)
	}
	status, err := reapUntil(process.Pid)
	if err != nil {
		return fail("command %s: %v", c.Path, err)
	}
	// Whatever it left running must not write past the end of its output.
	_ = unix.Kill(-1, unix.SIGKILL)
	if err := drain(output); err != nil {
		return fail("output: %v", err)
	}
	code := status.ExitStatus()
	if status.Signaled() {
		code = 128 + int(status.Signal())
	}
	return Result{ExitCode: code}
}

// reapUntil waits for children, those that were left to process 1 among them, until
// the one with the given id has ended.
func reapUntil(pid int) (unix.WaitStatus, error) {
	for {
		var status unix.WaitStatus
		got, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, err
		case got == pid && (status.Exited() || status.Signaled()):
			return status, nil
		}
	}
}

// environment completes a command's environment.
func environment(env []string) []string {
	out := make([]string, 0, len(env)+3)
	has := map[string]bool{}
	for _, entry := range env {
		name, _, _ := strings.Cut(entry, "=")
		if name == "TMPDIR" {
			continue
		}
		has[name] = true
		out = append(out, entry)
	}
	if !has["PATH"] {
		out = append(out, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	}
	if !has["HOME"] {
		out = append(out, "HOME=/root")
	}
	return append(out, "TMPDIR="+tempDir)
}

// openOutput opens the terminal that leads to the host, and takes from it all that a
// terminal does to what is written.
func openOutput() (*os.File, error) {
	fd, err := unix.Open(outputTTY, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("output: %s: %w", outputTTY, err)
	}
	mode, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("output: %s: mode: %w", outputTTY, err)
	}
	mode.Oflag &^= unix.OPOST
	mode.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG | unix.TOSTOP
	mode.Iflag = 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, mode); err != nil {
		return nil, fmt.Errorf("output: %s: mode: %w", outputTTY, err)
	}
	return os.NewFile(uintptr(fd), outputTTY), nil
}

// drain waits until the host has taken all output.
func drain(output *os.File) error {
	for {
		// TCSBRK with an argument other than 0 is what tcdrain(3) does.
		err := unix.IoctlSetInt(int(output.Fd()), unix.TCSBRK, 1)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// setUp makes the machine fit to run tests on.
func setUp() error {
	if err := mountAll(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte("uml")); err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("link lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("link lo: up: %w", err)
	}
	if err := setSysctls(); err != nil {
		return err
	}
	return setLimits()
}
