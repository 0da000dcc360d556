// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// instanceSocket is an abstract Unix socket, which exists once in a network namespace and vanishes with the
// process that holds it.
const instanceSocket = "@slipstream"

// lockInstance keeps a second proxy out of this network namespace: each would take the other's
// commits for damage. Only root's processes count, so that no other user can keep the proxy from starting.
func lockInstance() (io.Closer, error) {
	l, err := net.Listen("unix", instanceSocket)
	if !errors.Is(err, unix.EADDRINUSE) {
		return l, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	asker := os.NewFile(uintptr(fd), instanceSocket)
	if unix.Connect(fd, &unix.SockaddrUnix{Name: instanceSocket}) == nil {
		if peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil && peer.Uid == 0 {
			return nil, errors.Join(fmt.Errorf("slipstream is running here (process ID %d, 0 in another PID namespace): stop it first", peer.Pid), asker.Close())
		}
	}
	return asker, nil
}

// running describes a proxy that runs in this network namespace and would restore what a clean-up
// removes; "" if none is seen. It is Slipstream if its status socket listens, also where that path
// is in another mount namespace. A process is seen only in the same PID namespace.
func running(socket string, orKubeProxy bool) string {
	sockets, _ := os.ReadFile("/proc/net/unix") // of this network namespace
	for line := range strings.Lines(string(sockets)) {
		const flags, path, listens = 3, 7, "00010000"
		if f := strings.Fields(line); len(f) > path && (f[path] == socket || f[path] == instanceSocket) && f[flags] == listens {
			return fmt.Sprintf("slipstream (it listens on %s)", f[path])
		}
	}
	own, _ := os.Readlink("/proc/self/ns/net")
	exe, _ := os.Stat("/proc/self/exe")
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range processes {
		if ns, _ := os.Readlink(p + "/ns/net"); ns != own || p == fmt.Sprint("/proc/", os.Getpid()) {
			continue
		}
		text, _ := os.ReadFile(p + "/cmdline")
		args := append(strings.Split(string(text), "\x00"), "")
		name := filepath.Base(args[0])
		other, _ := os.Stat(p + "/exe")
		ours := name == "slipstream" || os.SameFile(exe, other)
		if name == kubeProxy && (ours || orKubeProxy) || ours && slices.Contains([]string{"run", "fastpath"}, args[1]) {
			return fmt.Sprintf("%s with process ID %s", name, filepath.Base(p))
		}
	}
	return ""
}
