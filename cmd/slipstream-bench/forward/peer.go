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

// Client and server are processes of their own with blocking system calls, as netperf's
// are. Within one Go process every wait would pass through the runtime's scheduler and
// poller, which takes longer than the measured exchange, and less evenly. The runtime
// installs signal handlers with SA_RESTART, so these calls are not interrupted.

// The arguments of a peer's process: peerServer, with a listening socket as descriptor
// listenerFD; or peerClient, with the address to connect to and the number of connections.
const (
	peerServer = "server"
	peerClient = "client"
	listenerFD = 3
)

// ignored is how many connections a client makes before it measures.
const ignored = 50

// clientReport is what a client writes.
type clientReport struct {
	Took    []float64 // each connection, in nanoseconds
	Elapsed time.Duration
}

// RunPeer is the whole work of a process that [CRR] starts.
func RunPeer(args []string, out io.Writer) error {
	// A second P keeps the runtime from taking the only one away from a thread that waits
	// in a system call.
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
			return fmt.Errorf("%q is not a number of connections", args[2])
		}
		report, err := makeRequests(to, n)
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(report)
	}
	return fmt.Errorf("%q are not arguments of a peer", args)
}

// serveRequests answers requests until it is killed. It closes a connection when it has
// answered: its own port stays in TIME_WAIT, and the client's can be used again.
func serveRequests(listener int) error {
	var b [1]byte
	for {
		fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
		if errors.Is(err, unix.ECONNABORTED) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("accept", err)
		}
		if n, err := unix.Read(fd, b[:]); n == 1 && err == nil {
			_, _ = unix.Write(fd, b[:])
		}
		unix.Close(fd)
	}
}

// makeRequests makes connections one after the other.
func makeRequests(to netip.AddrPort, n int) (*clientReport, error) {
	family, sa := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
	if to.Addr().Is4() {
		sa = &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	} else {
		family = unix.AF_INET6
	}
	r := &clientReport{Took: make([]float64, 0, n)}
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
			r.Took = append(r.Took, float64(took))
		}
	}
	r.Elapsed = time.Since(begin)
	return r, nil
}

// makeRequest connects, sends the request, reads the response and the end.
func makeRequest(family int, to unix.Sockaddr) (time.Duration, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	b := [1]byte{'?'}
	start := time.Now()
	if err := unix.Connect(fd, to); err != nil {
		return 0, os.NewSyscallError("connect", err)
	}
	if _, err := unix.Write(fd, b[:]); err != nil {
		return 0, os.NewSyscallError("write", err)
	}
	for _, want := range []int{1, 0} {
		n, err := unix.Read(fd, b[:])
		if err != nil {
			return 0, os.NewSyscallError("read", err)
		}
		if n != want {
			return 0, io.ErrUnexpectedEOF
		}
	}
	return time.Since(start), nil
}
