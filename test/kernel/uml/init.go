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

	"github.com/vishvananda/netlink"
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
	var r result
	var err error
	if r.ExitCode, err = serve(dir); err != nil {
		r.Failure = err.Error()
		fmt.Fprintln(os.Stderr, "uml: init:", err)
	}
	if err := writeJSON(filepath.Join(dir, resultFile), r); err != nil {
		fmt.Fprintln(os.Stderr, "uml: init: result:", err)
	}
	// hostfs writes a file to the host when it is closed, which a power off does not do.
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

// tempDir is TMPDIR of the command. It is on a tmpfs, for speed, and because hostfs has
// no UNIX sockets. /tmp itself stays the host's, as test binaries are usually there.
const tempDir = "/run/tmp"

const noDevices = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// mounts of the machine, in order.
var mounts = []struct {
	fstype, target, data string
	flags                uintptr
	mkdir                bool // the target is on one of our own mounts, not on the host's disk
	optional             bool // the kernel may have been built without it
}{
	{fstype: "proc", target: "/proc", flags: noDevices},
	{fstype: "sysfs", target: "/sys", flags: noDevices},
	{fstype: "cgroup2", target: "/sys/fs/cgroup", optional: true},
	{fstype: "devtmpfs", target: "/dev", data: "mode=0755", flags: unix.MS_NOSUID},
	{fstype: "devpts", target: "/dev/pts", data: "ptmxmode=0666", mkdir: true},
	{fstype: "tmpfs", target: "/dev/shm", data: "mode=1777", mkdir: true},
	// ip-netns(8) keeps its names in /run/netns, iptables its lock in /run.
	{fstype: "tmpfs", target: "/run", data: "mode=0755"},
	{fstype: "tmpfs", target: tempDir, data: "mode=1777", mkdir: true},
}

// links that devtmpfs lacks.
var links = map[string]string{
	"/dev/fd":     "/proc/self/fd",
	"/dev/stdin":  "/proc/self/fd/0",
	"/dev/stdout": "/proc/self/fd/1",
	"/dev/stderr": "/proc/self/fd/2",
}

// sysctls whose defaults are too low, as the kernel derives them from little memory.
var sysctls = map[string]string{
	// Watches of manifest directories, one instance each.
	"fs.inotify.max_user_instances": "1024",
	"fs.inotify.max_user_watches":   "65536",
	// The Go runtime reserves far more address space than it uses.
	"vm.overcommit_memory": "1",
	// Neighbour tables are shared by all network namespaces of a kernel; the lab's
	// nodes and pods together exceed the default of 1024 entries.
	"net.ipv4.neigh.default.gc_thresh1": "4096",
	"net.ipv4.neigh.default.gc_thresh2": "8192",
	"net.ipv4.neigh.default.gc_thresh3": "16384",
	"net.ipv6.neigh.default.gc_thresh1": "4096",
	"net.ipv6.neigh.default.gc_thresh2": "8192",
	"net.ipv6.neigh.default.gc_thresh3": "16384",
}

// setUp prepares the machine for tests.
func setUp() error {
	for _, m := range mounts {
		if m.mkdir {
			if err := os.MkdirAll(m.target, 0o755); err != nil {
				return fmt.Errorf("mount %s: %w", m.target, err)
			}
		}
		err := unix.Mount(m.fstype, m.target, m.fstype, m.flags, m.data)
		if m.optional && (errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT)) {
			continue
		}
		if err != nil {
			return fmt.Errorf("mount %s (%s): %w", m.target, m.fstype, err)
		}
	}
	for _, dir := range []string{"/run/lock", "/run/netns"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	for name, target := range links {
		if err := os.Symlink(target, name); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	for name, value := range sysctls {
		err := os.WriteFile("/proc/sys/"+strings.ReplaceAll(name, ".", "/"), []byte(value), 0)
		ipv6Disabled := errors.Is(err, os.ErrNotExist) && strings.HasPrefix(name, "net.ipv6.")
		if err != nil && !ipv6Disabled {
			return fmt.Errorf("sysctl %s: %w", name, err)
		}
	}
	if err := unix.Sethostname([]byte("uml")); err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("link lo: %w", err)
	}
	// Servers and clients of the lab are sockets of one test process.
	const files = 1 << 18
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: files}); err != nil {
		return fmt.Errorf("limit of open files: %w", err)
	}
	// A core would be written to the host's source tree.
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("limit of core files: %w", err)
	}
	return nil
}
