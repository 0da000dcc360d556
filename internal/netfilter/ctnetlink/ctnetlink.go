// SPDX-License-Identifier: Apache-2.0

// Package ctnetlink speaks netlink with the kernel's connection tracking
// (linux/netfilter/nfnetlink_conntrack.h).
package ctnetlink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/sock"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Message types of the subsystem (enum cntl_msg_types).
const (
	MsgNew    = unix.NFNL_SUBSYS_CTNETLINK << 8
	MsgGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	MsgDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2
)

// Attributes of a request for a dump (enum ctattr_type).
const (
	Filter     = 25 // Linux 5.8
	StatusMask = 26 // Linux 5.15
)

// WithStatus appends to a request for a dump that entries need one of some bits of their status (Linux 5.15),
// or with not, none of them.
func WithStatus(a *netlink.AttributeEncoder, status uint32, not bool) {
	mask := binary.BigEndian.AppendUint32(nil, status)
	a.Bytes(StatusMask, mask)
	if not {
		mask = make([]byte, len(mask))
	}
	a.Bytes(nl.CTA_STATUS, mask)
}

// Attributes of a filter (enum ctattr_filter): which parts of the tuples in a
// request count, a bit each. The bits are in net/netfilter/nf_internals.h, which
// is not among the kernel's exported headers, but the numbers are part of the
// interface all the same: libnetfilter_conntrack has them too.
const (
	FilterOrigFlags  = 1
	FilterReplyFlags = 2

	FilterIPSrc   = 1 << 0
	FilterIPDst   = 1 << 1
	FilterProto   = 1 << 3
	FilterSrcPort = 1 << 4
	FilterDstPort = 1 << 5
)

// Bits of an entry's status (enum ip_conntrack_status).
const (
	StatusSeenReply = 1 << 1
	StatusAssured   = 1 << 2
	StatusDNAT      = 1 << 5
	StatusOffload   = 1 << 14
	StatusHWOffload = 1 << 15
)

// Tuple is the protocol, source and destination of packets in one direction.
type Tuple struct {
	Protocol uint8
	Src, Dst netip.AddrPort
}

// ParseTuple parses a tuple. ok is false if it lacks an address or a port.
func ParseTuple(b []byte) (t Tuple, ok bool) {
	var src, dst netip.Addr
	var srcPort, dstPort []byte
	for typ, payload := range nfnl.Attributes(b) {
		for inner, value := range nfnl.Attributes(payload) {
			switch {
			case typ == nl.CTA_TUPLE_IP && (inner == nl.CTA_IP_V4_SRC || inner == nl.CTA_IP_V6_SRC):
				src, _ = netip.AddrFromSlice(value)
			case typ == nl.CTA_TUPLE_IP && (inner == nl.CTA_IP_V4_DST || inner == nl.CTA_IP_V6_DST):
				dst, _ = netip.AddrFromSlice(value)
			case typ == nl.CTA_TUPLE_PROTO && inner == nl.CTA_PROTO_NUM && len(value) == 1:
				t.Protocol = value[0]
			case typ == nl.CTA_TUPLE_PROTO && inner == nl.CTA_PROTO_SRC_PORT:
				srcPort = value
			case typ == nl.CTA_TUPLE_PROTO && inner == nl.CTA_PROTO_DST_PORT:
				dstPort = value
			}
		}
	}
	if !src.IsValid() || !dst.IsValid() || len(srcPort) != 2 || len(dstPort) != 2 {
		return t, false
	}
	t.Src = netip.AddrPortFrom(src, binary.BigEndian.Uint16(srcPort))
	t.Dst = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(dstPort))
	return t, true
}

// Entry is what a message of a dump or an event says of a connection. Its slices refer to the message.
type Entry struct {
	Original, Reply Tuple
	Status          uint32
	TCPState        uint8 // enum tcp_conntrack; 0 for other protocols

	// These are in the kernel's encoding; nil if the message lacks them.
	Tuple, ID, Zone []byte    // they identify the entry
	Counters        [2][]byte // of Original and Reply
	Timestamp       []byte
}

// Parse parses the data of a message. ok is false unless both tuples have ports.
func (e *Entry) Parse(data []byte) (ok bool) {
	*e = Entry{}
	if len(data) < headerLen {
		return false
	}
	var there, back bool
	for typ, b := range nfnl.Attributes(data[headerLen:]) {
		switch typ {
		case nl.CTA_TUPLE_ORIG:
			e.Tuple = b
			e.Original, there = ParseTuple(b)
		case nl.CTA_TUPLE_REPLY:
			e.Reply, back = ParseTuple(b)
		case nl.CTA_STATUS:
			if len(b) == 4 {
				e.Status = binary.BigEndian.Uint32(b)
			}
		case nl.CTA_PROTOINFO:
			if state := nfnl.Attr(nfnl.Attr(b, nl.CTA_PROTOINFO_TCP), nl.CTA_PROTOINFO_TCP_STATE); len(state) == 1 {
				e.TCPState = state[0]
			}
		case nl.CTA_ID:
			if len(b) == 4 {
				e.ID = b
			}
		case nl.CTA_ZONE:
			e.Zone = b
		case nl.CTA_COUNTERS_ORIG:
			e.Counters[0] = b
		case nl.CTA_COUNTERS_REPLY:
			e.Counters[1] = b
		case nl.CTA_TIMESTAMP:
			e.Timestamp = b
		}
	}
	return there && back
}

// Encode appends the tuple as an attribute. It omits an end that is the zero AddrPort.
func (t Tuple) Encode(a *netlink.AttributeEncoder, typ uint16) {
	type end struct {
		netip.AddrPort
		ipv4, ipv6, port uint16
	}
	ends := []end{{t.Src, nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC, nl.CTA_PROTO_SRC_PORT}, {t.Dst, nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST, nl.CTA_PROTO_DST_PORT}}
	a.Nested(typ, func(a *netlink.AttributeEncoder) error {
		a.Nested(nl.CTA_TUPLE_IP, func(a *netlink.AttributeEncoder) error {
			for _, e := range ends {
				switch addr := e.Addr(); {
				case addr.Is4():
					a.Bytes(e.ipv4, addr.AsSlice())
				case addr.Is6():
					a.Bytes(e.ipv6, addr.AsSlice())
				}
			}
			return nil
		})
		a.Nested(nl.CTA_TUPLE_PROTO, func(a *netlink.AttributeEncoder) error {
			a.Uint8(nl.CTA_PROTO_NUM, t.Protocol)
			for _, e := range ends {
				if e.IsValid() {
					a.Bytes(e.port, binary.BigEndian.AppendUint16(nil, e.Port()))
				}
			}
			return nil
		})
		return nil
	})
}

// Conn is a netlink socket to the conntrack table of one network namespace. It is for
// one goroutine at a time.
type Conn struct {
	sock   *netlink.Conn
	raw    syscall.RawConn
	buffer []byte // of dumps
}

// datagram is the size of a buffer for one datagram of a dump. The kernel makes none that is larger than
// the largest buffer that it has been read with, or than 32 KiB.
const datagram = 32 << 10

// Dial opens a socket in the network namespace that the file descriptor names, or in the
// calling thread's when netns is 0. Its use needs CAP_NET_ADMIN there and
// CONFIG_NF_CT_NETLINK, which kernels load on demand; without it requests fail with EINVAL.
func Dial(netns int) (*Conn, error) {
	s, err := sock.Dial(unix.NETLINK_NETFILTER, "conntrack", netlink.Config{
		NetNS:             netns,
		MessageBufferSize: 4096, // acknowledgements and errors are short
	})
	if err != nil {
		return nil, err
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &Conn{sock: s, raw: raw}, nil
}

// Close closes the socket.
func (c *Conn) Close() error { return c.sock.Close() }

// Header is the fixed part of a message (struct nfgenmsg), the start of its data.
func Header(family uint8) []byte { return []byte{family, unix.NFNETLINK_V0, 0, 0} }

const headerLen = 4

// Dump has the kernel report the entries of an address family (AF_UNSPEC is all) that
// agree with the attributes, and calls visit with the data of each, which is valid only during the call.
// It returns ctx's error when ctx ends before that.
func (c *Conn) Dump(ctx context.Context, family uint8, attributes []byte, visit func(data []byte)) error {
	return c.exchange(ctx, func() error {
		request, err := c.sock.Send(netlink.Message{
			Header: netlink.Header{Type: MsgGet, Flags: netlink.Request | netlink.Dump},
			Data:   append(Header(family), attributes...),
		})
		if err != nil {
			return fmt.Errorf("request for a dump: %w", err)
		}
		if err := c.receive(request.Header.Sequence, visit); err != nil {
			return fmt.Errorf("dump: %w", err)
		}
		return nil
	})
}

// receive reads a dump. Package netlink would allocate memory for each datagram, which is as much as the
// table in all.
func (c *Conn) receive(sequence uint32, visit func(data []byte)) error {
	if c.buffer == nil {
		c.buffer = make([]byte, datagram)
	}
	for {
		n, err := sock.Receive(c.raw, c.buffer, true)
		if err != nil {
			return err
		}
		if done, err := messages(c.buffer[:n], sequence, visit); done || err != nil {
			return err
		}
	}
}

// messages calls visit with the data of the messages of a datagram. done says that it was the last one.
func messages(b []byte, sequence uint32, visit func(data []byte)) (done bool, err error) {
	for h, data := range sock.Messages(b) {
		switch end := h.Type == unix.NLMSG_DONE || h.Type == unix.NLMSG_ERROR; {
		case h.Sequence != sequence || end && len(data) < 4:
			return false, unix.EBADMSG
		case end:
			return refused(data) == nil, refused(data)
		case h.Type != unix.NLMSG_NOOP:
			visit(data)
		}
	}
	return false, nil
}

// refused is the error at the begin of an answer, nil for none.
func refused(data []byte) error {
	if code := int32(binary.NativeEndian.Uint32(data)); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// Get returns the entry that has the tuple, in either direction. The error is ENOENT if there is none.
func (c *Conn) Get(ctx context.Context, t Tuple) (e Entry, err error) {
	a := netlink.NewAttributeEncoder()
	t.Encode(a, nl.CTA_TUPLE_ORIG)
	err = c.exchange(ctx, func() error {
		m, err := Request(MsgGet, 0, t.family(), a)
		if err != nil {
			return err
		}
		if _, err = c.sock.Send(m); err == nil {
			err = c.answer(&e)
		}
		if err != nil {
			return fmt.Errorf("entry of %v to %v: %w", t.Src, t.Dst, err)
		}
		return nil
	})
	return e, err
}

// answer reads one entry. The kernel flags it as one of several messages, so that the socket's
// own methods would wait for another.
func (c *Conn) answer(e *Entry) error {
	buf := make([]byte, 4096)
	n, err := sock.Receive(c.raw, buf, true)
	if err != nil {
		return err
	}
	for h, data := range sock.Messages(buf[:n]) {
		if h.Type == unix.NLMSG_ERROR && len(data) >= 4 {
			return refused(data)
		}
		if h.Type == MsgNew {
			e.Parse(data) // also one without ports
			return nil
		}
	}
	return unix.EBADMSG
}

// UpdateOf is a request that sets attributes of the entry that has the tuple, in either direction.
func UpdateOf(t Tuple, set func(*netlink.AttributeEncoder)) (netlink.Message, error) {
	a := netlink.NewAttributeEncoder()
	t.Encode(a, nl.CTA_TUPLE_ORIG)
	set(a)
	return Request(MsgNew, netlink.Acknowledge, t.family(), a)
}

func (t Tuple) family() uint8 {
	if t.Src.Addr().Is6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// Request is a request about an entry of a family.
func Request(typ netlink.HeaderType, flags netlink.HeaderFlags, family uint8, a *netlink.AttributeEncoder) (netlink.Message, error) {
	attributes, err := a.Encode()
	return netlink.Message{Header: netlink.Header{Type: typ, Flags: netlink.Request | flags}, Data: append(Header(family), attributes...)}, err
}

// Execute sends requests at once and calls answer with the kernel's answer to each, nil
// for an acknowledgement. The answers to all requests have to fit into the socket's queue:
// 64 do. An error is a failure to send or to read, or ctx's.
func (c *Conn) Execute(ctx context.Context, requests []netlink.Message, answer func(error)) error {
	return c.exchange(ctx, func() error {
		if _, err := c.sock.SendMessages(requests); err != nil {
			return fmt.Errorf("%d requests: %w", len(requests), err)
		}
		for range requests {
			_, err := c.sock.Receive()
			if op, is := errors.AsType[*netlink.OpError](err); err != nil && !(is && op.Sequence != 0) {
				return fmt.Errorf("answer to a request: %w", err)
			}
			answer(err)
		}
		return nil
	})
}

// exchange runs f on a socket without answers of former exchanges.
func (c *Conn) exchange(ctx context.Context, f func() error) error {
	return sock.Exchange(ctx, c.sock, func() error {
		_, _ = sock.Drain(c.raw) // f reports an error
		return f()
	})
}
