// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// Commands (enum ip_vs_genl commands).
const (
	cmdNewService = 1
	cmdSetService = 2
	cmdDelService = 3
	cmdGetService = 4
	cmdNewDest    = 5
	cmdSetDest    = 6
	cmdDelDest    = 7
	cmdGetDest    = 8
	cmdSetConfig  = 12
	cmdGetConfig  = 13
)

// Attributes of commands, of virtual servers and of destinations.
const (
	attrService    = 1
	attrDest       = 2
	attrTCP        = 4
	attrTCPFin     = 5
	attrUDP        = 6
	svcFamily      = 1
	svcProtocol    = 2
	svcAddr        = 3
	svcPort        = 4
	svcMark        = 5
	svcScheduler   = 6
	svcFlags       = 7
	svcTimeout     = 8
	svcMask        = 9
	svcEngine      = 11
	destAddr       = 1
	destPort       = 2
	destMethod     = 3
	destWeight     = 4
	destUpper      = 5
	destLower      = 6
	destActive     = 7
	destInactive   = 8
	destPersistent = 9
	destFamily     = 11

	// methodMask has the forwarding method in the flags of a connection; masquerading is 0.
	methodMask = 0x7
)

// Request is one change, for [Conn.Execute].
type Request struct{ data []byte }

// AddService adds a virtual server. The request fails with EEXIST if the kernel has it, and
// with ENOENT if it does not have the scheduler.
func AddService(s Service) Request { return request(cmdNewService).service(s) }

// SetService changes all properties of a virtual server. Its connections and destinations
// stay. The request fails with ESRCH if the kernel does not have it.
func SetService(s Service) Request { return request(cmdSetService).service(s) }

// DeleteService deletes a virtual server with its destinations. Their connections are not
// translated from then on. The request fails with ESRCH if the kernel does not have it.
func DeleteService(k Key) Request { return request(cmdDelService).key(k) }

// AddDestination adds a destination. The request fails with ESRCH if there is no such
// virtual server and with EEXIST if it has the destination.
//
// The kernel keeps a destination that was deleted while it had connections, and uses it again
// with them.
func AddDestination(k Key, d Destination) Request { return request(cmdNewDest).key(k).destination(d) }

// SetDestination changes the weight of a destination. The request fails with ENOENT if the
// virtual server does not have it.
func SetDestination(k Key, d Destination) Request { return request(cmdSetDest).key(k).destination(d) }

// DeleteDestination deletes a destination. The packets of its connections are dropped. The
// request fails with ENOENT if the virtual server does not have it.
func DeleteDestination(k Key, d netip.AddrPort) Request {
	return request(cmdDelDest).key(k).destination(Destination{AddrPort: d})
}

// request starts a message: struct genlmsghdr.
func request(command byte) Request {
	b := make([]byte, 0, 160)
	return Request{append(b, command, 1, 0, 0)}
}

func (r Request) key(k Key) Request {
	start := len(r.data)
	return r.open(attrService).identity(k).close(start)
}

func (r Request) service(s Service) Request {
	mask := uint32(s.MaskBits)
	if !s.IPv6() { // a mask in network byte order, where IPv6 has a length
		mask = binary.NativeEndian.Uint32(binary.BigEndian.AppendUint32(nil, ^uint32(0)<<(32-s.MaskBits)))
	}
	start := len(r.data)
	r = r.open(attrService).identity(s.Key)
	r = r.bytes(svcScheduler, append([]byte(s.Scheduler), 0))
	r = r.bytes(svcFlags, binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, s.Flags), ^uint32(0)))
	return r.uint32(svcTimeout, s.Timeout).uint32(svcMask, mask).close(start)
}

func (r Request) identity(k Key) Request {
	r = r.uint16(svcFamily, binary.NativeEndian, k.family())
	if k.Mark != 0 {
		return r.uint32(svcMark, k.Mark)
	}
	r = r.uint16(svcProtocol, binary.NativeEndian, uint16(k.Protocol))
	return r.bytes(svcAddr, k.Addr.AsSlice()).uint16(svcPort, binary.BigEndian, k.Port)
}

func (r Request) destination(d Destination) Request {
	family := uint16(unix.AF_INET)
	if d.Addr().Is6() {
		family = unix.AF_INET6
	}
	start := len(r.data)
	r = r.open(attrDest).bytes(destAddr, d.Addr().AsSlice()).uint16(destPort, binary.BigEndian, d.Port())
	r = r.uint32(destMethod, 0).uint32(destWeight, d.Weight).uint32(destUpper, 0).uint32(destLower, 0)
	return r.uint16(destFamily, binary.NativeEndian, family).close(start)
}

// open starts a nested attribute, and close sets its length.
func (r Request) open(attribute uint16) Request { return r.header(attribute|unix.NLA_F_NESTED, 0) }

func (r Request) close(start int) Request {
	binary.NativeEndian.PutUint16(r.data[start:], uint16(len(r.data)-start))
	return r
}

func (r Request) header(attribute uint16, size int) Request {
	r.data = binary.NativeEndian.AppendUint16(r.data, uint16(unix.SizeofNlAttr+size))
	r.data = binary.NativeEndian.AppendUint16(r.data, attribute)
	return r
}

func (r Request) bytes(attribute uint16, value []byte) Request {
	r = r.header(attribute, len(value))
	r.data = append(r.data, value...)
	for len(r.data)%unix.NLA_ALIGNTO != 0 {
		r.data = append(r.data, 0)
	}
	return r
}

func (r Request) uint16(attribute uint16, order binary.AppendByteOrder, value uint16) Request {
	r = r.header(attribute, 2)
	r.data = append(order.AppendUint16(r.data, value), 0, 0)
	return r
}

func (r Request) uint32(attribute uint16, value uint32) Request {
	r = r.header(attribute, 4)
	r.data = binary.NativeEndian.AppendUint32(r.data, value)
	return r
}

// attributes are those of an answer, after struct genlmsghdr.
func attributes(data []byte) []byte { return data[min(len(data), 4):] }

// number reads a number in the machine's byte order, of 2 or 4 bytes; 0 if there is none.
func number(b []byte) uint32 {
	switch {
	case len(b) >= 4:
		return binary.NativeEndian.Uint32(b)
	case len(b) >= 2:
		return uint32(binary.NativeEndian.Uint16(b))
	}
	return 0
}

// port reads a number in network byte order.
func port(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

// decodeService reads a virtual server.
func decodeService(data []byte) (s Service, err error) {
	all := nfnl.Attr(attributes(data), attrService)
	of := func(typ uint16) []byte { return nfnl.Attr(all, typ) }
	family, mask := uint16(number(of(svcFamily))), number(of(svcMask))
	s = Service{
		Key:       Key{Protocol: uint8(number(of(svcProtocol))), Port: port(of(svcPort)), Mark: number(of(svcMark))},
		Scheduler: nfnl.Text(all, svcScheduler), Flags: number(of(svcFlags)) &^ hashed, Timeout: number(of(svcTimeout)), MaskBits: uint8(mask), Engine: nfnl.Text(all, svcEngine),
	}
	if family == unix.AF_INET {
		// The number of ones in a mask in network byte order.
		s.MaskBits = uint8(bits.LeadingZeros32(^binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, mask))))
	}
	if s.Mark != 0 {
		s.Mark6 = family == unix.AF_INET6
		return s, nil
	}
	s.Addr, err = address(family, of(svcAddr))
	return s, err
}

// decodeDestination reads a destination of a virtual server of a family.
func decodeDestination(data []byte, family uint16) (d Destination, err error) {
	all := nfnl.Attr(attributes(data), attrDest)
	of := func(typ uint16) []byte { return nfnl.Attr(all, typ) }
	if own := of(destFamily); own != nil {
		family = uint16(number(own))
	}
	a, err := address(family, of(destAddr))
	return Destination{
		AddrPort: netip.AddrPortFrom(a, port(of(destPort))), Weight: number(of(destWeight)), Masquerading: number(of(destMethod))&methodMask == 0,
		Limited: number(of(destUpper))|number(of(destLower)) != 0,
		Active:  number(of(destActive)), Inactive: number(of(destInactive)), Persistent: number(of(destPersistent)),
	}, err
}

// address reads a union nf_inet_addr.
func address(family uint16, b []byte) (netip.Addr, error) {
	size := 16
	if family == unix.AF_INET {
		size = 4
	}
	a, ok := netip.AddrFromSlice(b[:min(size, len(b))])
	if !ok || a.BitLen() != 8*size {
		return a, fmt.Errorf("an address of family %d has %d bytes", family, len(b))
	}
	return a, nil
}
