// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// The two sides of a request are processes of their own that do one thing after
// the other with blocking system calls, as netperf's are. In one process of Go's,
// every wait would go through the runtime's scheduler and poller, which takes
// longer than what is measured, and less evenly.

// The arguments of a peer's process: peerServer, with a listening socket as
// descriptor 3; or peerClient, with where to connect to and how often.
const (
	peerServer = "server"
	peerClient = "client"
)

const listenerFD = 3

// ignored is how many connections a client makes before it measures.
const ignored = 50

// clientReport is what a client writes.
type clientReport struct {
	Took    []time.Duration // each connection
	Elapsed time.Duration   // all of them
}

// RunPeer is the whole work of a process that [CRR] starts.
func RunPeer(args []string, out io.Writer) error {
	// A second P keeps the runtime from taking the only one away from a thread
	// that waits in a system call.
	runtime.GOMAXPROCS(2)
	runtime.LockOSThread()
	debug.SetGCPercent(-1)
	switch {
	case len(args) == 1 && args[0] == peerServer:
		return serveRequests(listenerFD)
	case len(args) == 3 && args[0] == peerClient:
		to, err := netip.ParseAddrPort(args[1])
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(args[2])
		if err != nil || n < 1 {
			return fmt.Errorf("%q is no number of connections", args[2])
		}
		report, err := makeRequests(to, n)
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(report)
	}
	return fmt.Errorf("%q are not arguments of a peer", args)
}

// listen makes a socket that listens in the calling thread's namespace.
func listen(at netip.AddrPort) (*os.File, error) {
	family, sa := sockaddr(at)
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), "listener")
	err = errors.Join(
		os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)),
		os.NewSyscallError("bind", unix.Bind(fd, sa)),
		os.NewSyscallError("listen", unix.Listen(fd, 128)),
	)
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// serveRequests answers requests for ever. It closes a connection when it has
// answered, so that it is the server's port that has to wait (TIME_WAIT), and the
// client's may be used again.
func serveRequests(listener int) error {
	var b [1]byte
	for {
		fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNABORTED) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("accept", err)
		}
		if n, err := retry(func() (int, error) { return unix.Read(fd, b[:]) }); n == 1 && err == nil {
			_, _ = retry(func() (int, error) { return unix.Write(fd, b[:]) })
		}
		unix.Close(fd)
	}
}

// makeRequests makes connections one after the other.
func makeRequests(to netip.AddrPort, n int) (*clientReport, error) {
	family, sa := sockaddr(to)
	r := &clientReport{Took: make([]time.Duration, 0, n)}
	var begin time.Time
	for i := range ignored + n {
		if i == ignored {
			begin = time.Now()
		}
		took, err := makeRequest(family, sa)
		if err != nil {
			return nil, fmt.Errorf("connection %d to %v: %w", i+1, to, err)
		}
		if i >= ignored {
			r.Took = append(r.Took, took)
		}
	}
	r.Elapsed = time.Since(begin)
	return r, nil
}

// makeRequest connects, asks, reads the answer and the end.
func makeRequest(family int, to unix.Sockaddr) (time.Duration, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	start := time.Now()
	if err := connect(fd, to); err != nil {
		return 0, err
	}
	b := [1]byte{'?'}
	if _, err := retry(func() (int, error) { return unix.Write(fd, b[:]) }); err != nil {
		return 0, os.NewSyscallError("write", err)
	}
	for _, want := range []int{1, 0} {
		n, err := retry(func() (int, error) { return unix.Read(fd, b[:]) })
		if err != nil {
			return 0, os.NewSyscallError("read", err)
		}
		if n != want {
			return 0, io.ErrUnexpectedEOF
		}
	}
	return time.Since(start), nil
}

// connect waits on when a signal came in between; the runtime sends itself some.
func connect(fd int, to unix.Sockaddr) error {
	err := unix.Connect(fd, to)
	for errors.Is(err, unix.EINTR) || errors.Is(err, unix.EALREADY) {
		if _, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, -1); err == nil {
			err = unix.Connect(fd, to)
		}
	}
	if err != nil && !errors.Is(err, unix.EISCONN) {
		return os.NewSyscallError("connect", err)
	}
	return nil
}

// retry does a system call again that a signal has interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func sockaddr(a netip.AddrPort) (family int, sa unix.Sockaddr) {
	if a.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
