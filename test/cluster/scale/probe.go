// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/slipstream-proxy/slipstream/test/lab"
	"golang.org/x/sys/unix"
)

// errTooLong says that a subject needs longer than -timeout.
var errTooLong = errors.New("not within -timeout")

// prober connects from a client's pod on the node of a subject.
type prober struct {
	client  *lab.Pod
	timeout time.Duration
	ended   <-chan struct{} // of the subject's process
}

// do runs fn on a thread in the client's pod. The other functions here are called in it.
func (p *prober) do(fn func() error) error { return p.client.Do(fn) }

// until connects again and again until a wanted pod answers, and returns when it did. The
// time since begin decides how long to wait for an answer and between connections.
func (p *prober) until(ctx context.Context, to netip.AddrPort, begin time.Time, wanted func(pod netip.Addr) bool) (time.Time, error) {
	for {
		elapsed := time.Since(begin)
		pod, err := connect(to, bounded(elapsed/100, 2*time.Millisecond, 100*time.Millisecond))
		now := time.Now()
		if err == nil && wanted(pod) {
			return now, nil
		}
		select {
		case <-ctx.Done():
			return now, ctx.Err()
		case <-p.ended:
			return now, errors.New("it ended")
		default:
		}
		if now.Sub(begin) > p.timeout {
			return now, fmt.Errorf("%w: connections to %v: %v %v", errTooLong, to, pod, err)
		}
		sleep(bounded(elapsed/1000, 100*time.Microsecond, 10*time.Millisecond))
	}
}

func bounded(d, least, most time.Duration) time.Duration { return min(max(d, least), most) }

// sleep is more precise than [time.Sleep], and holds its thread.
func sleep(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_, _ = unix.Ppoll(nil, &t, nil)
}

// errSilent says that nothing answers.
var errSilent = errors.New("no answer")

// connect makes a TCP connection in the namespace of the calling thread and returns the
// pod that answered.
func connect(to netip.AddrPort, wait time.Duration) (pod netip.Addr, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return pod, err
	}
	defer unix.Close(fd)
	// Close by a reset, so that no state of the connection stays behind in the pods.
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return pod, err
	}
	err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return pod, err
	}
	deadline := time.Now().Add(wait)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return pod, errSilent
		}
		t := unix.NsecToTimespec(int64(left))
		n, err := unix.Ppoll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, &t, nil)
		if n > 0 {
			break
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return pod, err
		}
	}
	var a [4]byte
	n, err := unix.Read(fd, a[:])
	if err != nil {
		return pod, err
	}
	if n != len(a) {
		return pod, fmt.Errorf("an answer of %d bytes", n)
	}
	return netip.AddrFrom4(a), nil
}
