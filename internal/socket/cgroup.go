// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNoCGroup says that the node has no cgroup v2 of which processes could be served.
var ErrNoCGroup = errors.New("no cgroup v2 with other processes is mounted")

// findCGroup returns the cgroup to serve: the given one, or else the one nearest to the root of all
// cgroups that is mounted. That of a container is of no use, unless it is a node itself.
func findCGroup(given string) (string, error) {
	if given != "" {
		var stat unix.Statfs_t
		if err := unix.Statfs(given, &stat); err != nil || stat.Type != unix.CGROUP2_SUPER_MAGIC {
			return "", fmt.Errorf("%s: %w", given, errors.Join(ErrNoCGroup, err))
		}
		return given, nil
	}
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer mounts.Close()
	found := ""
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		path, is := cgroupMount(lines.Text())
		if !is {
			continue
		}
		var stat unix.Stat_t
		if unix.Stat(path, &stat) != nil {
			continue
		}
		const rootInode = 1 // of the root of all cgroups; a container's is another
		if stat.Ino == rootInode {
			return path, nil
		}
		if found == "" && stat.Nlink > 2 { // it has cgroups in it
			found = path
		}
	}
	if found == "" {
		return "", fmt.Errorf("%w: mount the node's, in a container as a hostPath of /sys/fs/cgroup", ErrNoCGroup)
	}
	return found, nil
}

// cgroupMount returns the mount point of a line of mountinfo if it is a cgroup v2.
func cgroupMount(line string) (path string, is bool) {
	before, after, _ := strings.Cut(line, " - ")
	fields := strings.Fields(before)
	if kind, _, _ := strings.Cut(after, " "); kind != "cgroup2" || len(fields) < 5 {
		return "", false
	}
	return strings.ReplaceAll(fields[4], `\040`, " "), true
}
