// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func (s *Server) listenUDP(_ Protocol, addr netip.AddrPort) (netip.AddrPort, error) {
	network, level, option := "udp4", unix.IPPROTO_IP, unix.IP_PKTINFO
	if addr.Addr().Is6() {
		network, level, option = "udp6", unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO
	}
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) })
		return errors.Join(cerr, err)
	}}
	var c *net.UDPConn
	err := s.machine.Do(func() error {
		pc, err := lc.ListenPacket(context.Background(), network, addr.String())
		if err == nil {
			c = pc.(*net.UDPConn)
		}
		return err
	})
	if err != nil {
		return addr, err
	}
	addr = c.LocalAddr().(*net.UDPAddr).AddrPort()
	s.listening(datagramListener{c}, func() { s.datagramLoop(c, addr.Port()) })
	return addr, nil
}

type datagramListener struct{ *net.UDPConn }

func (l datagramListener) Close() error { return closeNow(l.UDPConn) }

func (s *Server) datagramLoop(c *net.UDPConn, port uint16) {
	buf := make([]byte, 65536)
	oob := make([]byte, 256)
	for {
		n, oobn, _, from, err := c.ReadMsgUDPAddrPort(buf, oob)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(time.Millisecond)
			continue
		}
		local, source := packetInfo(oob[:oobn])
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		reply := answer{Server: s.name, Client: from, Local: netip.AddrPortFrom(local, port)}.line()
		reply = append(reply, buf[:n]...)
		s.served.Add(1) // before the client can know
		if _, _, err := c.WriteMsgUDPAddrPort(reply, source, from); err != nil {
			s.served.Add(-1)
		}
	}
}

// packetInfo returns the address that a datagram was sent to, from its control
// messages, and the control message that sends an answer from there: a wildcard
// socket of a machine with several addresses would take another.
func packetInfo(oob []byte) (local netip.Addr, source []byte) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return netip.Addr{}, nil
	}
	for _, m := range msgs {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			// struct in_pktinfo: link, address to answer from, address in the header
			local = netip.AddrFrom4([4]byte(m.Data[8:12]))
			return local, unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: local.As4()})
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= unix.SizeofInet6Pktinfo:
			local = netip.AddrFrom16([16]byte(m.Data[:16]))
			info := &unix.Inet6Pktinfo{Addr: local.As16()}
			if local.IsLinkLocalUnicast() {
				info.Ifindex = binary.NativeEndian.Uint32(m.Data[16:20])
			}
			return local, unix.PktInfo6(info)
		}
	}
	return netip.Addr{}, nil
}
