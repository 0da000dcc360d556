// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/slipstream-proxy/slipstream/test/lab"
	"golang.org/x/sys/unix"
)

// ignore hides all connections from the pods' server, by a filter that drops the packets.
// Nothing is answered then.
func (p *pods) ignore(yes bool) error {
	if !yes {
		return unix.SetsockoptInt(p.listener, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
	}
	none := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0} // so many bytes pass
	return unix.SetsockoptSockFprog(p.listener, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &none})
}

// first has a pod send the first packet of a connection, and no other one, and returns
// where among the pods it arrived. The pods must ignore it.
func (p *pods) first(from *lab.Pod, to netip.AddrPort) (arrived netip.AddrPort, err error) {
	raw := -1
	err = p.Do(func() error {
		raw, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		return err
	})
	if err != nil {
		return arrived, err
	}
	defer unix.Close(raw)
	err = from.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		// Close it before the packet is sent again, which is after a second.
		defer unix.Close(fd)
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
		if !errors.Is(err, unix.EINPROGRESS) {
			return fmt.Errorf("connect to %v: %w", to, err)
		}
		arrived, err = nextSYN(raw, 900*time.Millisecond)
		return err
	})
	return arrived, err
}

// nextSYN is the destination of the next SYN packet that a raw socket receives.
func nextSYN(raw int, wait time.Duration) (to netip.AddrPort, err error) {
	timeout := unix.NsecToTimeval(int64(wait))
	if err := unix.SetsockoptTimeval(raw, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return to, err
	}
	for deadline := time.Now().Add(wait); time.Now().Before(deadline); {
		b := make([]byte, 128)
		n, _, err := unix.Recvfrom(raw, b, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return to, errSilent
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return to, err
		}
		if to, ok := parseSYN(b[:n]); ok {
			return to, nil
		}
	}
	return to, errSilent
}

// parseSYN is the destination of an IPv4 TCP packet, if it has SYN set and not ACK.
func parseSYN(b []byte) (to netip.AddrPort, ok bool) {
	if len(b) < 20 {
		return to, false
	}
	header := int(b[0]&15) * 4 // IHL, in words of 32 bits
	if len(b) < header+20 {
		return to, false
	}
	const syn, ack = 0x02, 0x10
	tcp := b[header:]
	to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[16:20])), binary.BigEndian.Uint16(tcp[2:]))
	return to, tcp[13]&(syn|ack) == syn
}
