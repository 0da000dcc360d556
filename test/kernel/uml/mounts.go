// SPDX-License-Identifier: Apache-2.0

package uml

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// tempDir is TMPDIR of the command: on a tmpfs, for speed, and because hostfs knows no
// UNIX sockets. /tmp itself stays the host's, where test binaries usually are.
const tempDir = "/run/tmp"

// mounts of the machine, in order.
var mounts = []struct {
	fstype, target, data string
	flags                uintptr
	mkdir                bool // the target is on one of our own mounts, not on the host's disk
	optional             bool // the kernel may have been built without it
}{
	{fstype: "proc", target: "/proc", flags: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
	{fstype: "sysfs", target: "/sys", flags: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
	{fstype: "cgroup2", target: "/sys/fs/cgroup", optional: true},
	{fstype: "bpf", target: "/sys/fs/bpf", data: "mode=0700", optional: true},
	{fstype: "devtmpfs", target: "/dev", data: "mode=0755", flags: unix.MS_NOSUID},
	{fstype: "devpts", target: "/dev/pts", data: "ptmxmode=0666", mkdir: true},
	{fstype: "tmpfs", target: "/dev/shm", data: "mode=1777", mkdir: true},
	{fstype: "mqueue", target: "/dev/mqueue", mkdir: true, optional: true},
	// ip-netns(8) keeps its names in /run/netns, iptables its lock in /run.
	{fstype: "tmpfs", target: "/run", data: "mode=0755"},
}

func mountAll() error {
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
	for _, dir := range []string{"/run/lock", "/run/netns", tempDir} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(tempDir, 0o1777); err != nil {
		return err
	}
	links := map[string]string{
		"/dev/fd":     "/proc/self/fd",
		"/dev/stdin":  "/proc/self/fd/0",
		"/dev/stdout": "/proc/self/fd/1",
		"/dev/stderr": "/proc/self/fd/2",
	}
	for name, target := range links {
		if err := os.Symlink(target, name); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}
