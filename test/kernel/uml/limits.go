// SPDX-License-Identifier: Apache-2.0

package uml

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// sysctls that the machine's defaults, made for little memory, set too low.
var sysctls = []struct{ name, value string }{
	// Watches of manifest directories, one instance each.
	{"fs.inotify.max_user_instances", "1024"},
	{"fs.inotify.max_user_watches", "65536"},
	// The Go runtime reserves far more address space than it uses.
	{"vm.overcommit_memory", "1"},
	// Neighbour tables are shared by all network namespaces of a kernel; the lab's
	// nodes and pods together exceed the default of 1024 entries.
	{"net.ipv4.neigh.default.gc_thresh1", "4096"},
	{"net.ipv4.neigh.default.gc_thresh2", "8192"},
	{"net.ipv4.neigh.default.gc_thresh3", "16384"},
	{"net.ipv6.neigh.default.gc_thresh1", "4096"},
	{"net.ipv6.neigh.default.gc_thresh2", "8192"},
	{"net.ipv6.neigh.default.gc_thresh3", "16384"},
}

func setSysctls() error {
	for _, s := range sysctls {
		path := "/proc/sys/" + strings.ReplaceAll(s.name, ".", "/")
		err := os.WriteFile(path, []byte(s.value), 0)
		if errors.Is(err, os.ErrNotExist) && strings.HasPrefix(s.name, "net.ipv6.") {
			continue // with ipv6.disable=1
		}
		if err != nil {
			return fmt.Errorf("sysctl %s: %w", s.name, err)
		}
	}
	return nil
}

func setLimits() error {
	// Servers and clients of the lab are sockets of one test process.
	const files = 1 << 18
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: files}); err != nil {
		return fmt.Errorf("limit of open files: %w", err)
	}
	// A core would land in the host's source tree.
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("limit of core files: %w", err)
	}
	return nil
}
