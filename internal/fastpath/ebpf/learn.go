// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/sock"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// LogGroup is the group of the rule's log messages, KEP-4963's number, and LogLength how much of
// a packet they need: the headers of IPv6 and UDP, or the first bytes of TCP.
const (
	LogGroup  = 4963
	LogLength = 64
)

// Messages and attributes of nfnetlink_log (linux/netfilter/nfnetlink_log.h).
const (
	msgPacket = unix.NFNL_SUBSYS_ULOG << 8
	msgConfig = unix.NFNL_SUBSYS_ULOG<<8 | 1

	packetInDevice  = 4
	packetOutDevice = 5
	packetPayload   = 9

	configCommand   = 1
	configMode      = 2
	configThreshold = 5
	commandBind     = 1
	copyPacket      = 2
)

// dialLog opens a socket that receives the log messages.
func dialLog(ns int) (*netlink.Conn, error) {
	s, err := sock.Dial(unix.NETLINK_NETFILTER, "nfnetlink_log", netlink.Config{NetNS: ns})
	if err != nil {
		return nil, err
	}
	a := netlink.NewAttributeEncoder()
	a.ByteOrder = binary.BigEndian
	a.Bytes(configCommand, []byte{commandBind})
	a.Bytes(configMode, append(binary.BigEndian.AppendUint32(nil, LogLength), copyPacket, 0))
	a.Uint32(configThreshold, 1) // each packet is a message
	attributes, err := a.Encode()
	if err == nil {
		_, err = s.Execute(netlink.Message{
			Header: netlink.Header{Type: msgConfig, Flags: netlink.Request | netlink.Acknowledge},
			Data:   append(binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, LogGroup), attributes...),
		})
	}
	if err == nil {
		err = s.SetReadBuffer(1 << 20)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("log group %d (CONFIG_NETFILTER_NETLINK_LOG): %w", LogGroup, err), s.Close())
	}
	return s, nil
}

// receive calls use with each message that has arrived, or discards them. It holds the lock, if there is one, for each
// message: what is received under it is not offloaded after a Delete, and a Delete does not wait for all.
func receive(fd uintptr, lock sync.Locker, use func([]byte)) {
	var buf [1024]byte
	one := func() (more bool) {
		if lock != nil {
			lock.Lock()
			defer lock.Unlock()
		}
		n, _, err := unix.Recvfrom(int(fd), buf[:], unix.MSG_DONTWAIT)
		switch {
		case err == unix.EINTR || err == unix.ENOBUFS: // messages were lost: the rule will repeat them
		case err != nil:
			return false
		case use != nil:
			use(buf[:n])
		}
		return true
	}
	for one() {
	}
}

// discard discards messages that have arrived.
func (e *Engine) discard() {
	if raw, err := e.log.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { receive(fd, nil, nil) })
	}
}

// listen offloads the connections of messages until ctx ends.
func (e *Engine) listen(ctx context.Context) {
	_ = e.log.SetReadDeadline(time.Time{}) // an earlier call has set it
	defer context.AfterFunc(ctx, func() { _ = e.log.SetReadDeadline(time.Unix(1, 0)) })()
	raw, err := e.log.SyscallConn()
	if err == nil {
		err = raw.Read(func(fd uintptr) bool {
			receive(fd, &e.mu, func(message []byte) {
				if err := e.learn(ctx, message); err != nil && ctx.Err() == nil {
					klog.FromContext(ctx).V(2).Info("Fast path: a connection stays on the slow path", "reason", err.Error())
				}
			})
			return false
		})
	}
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Fast path: no connections will be offloaded")
	}
}

// learn offloads the connection of a message.
func (e *Engine) learn(ctx context.Context, message []byte) error {
	if len(message) < 20 || binary.NativeEndian.Uint16(message[4:]) != msgPacket || e.ipsec {
		return nil
	}
	var in, out uint32
	var packet ctnetlink.Tuple
	ok := false
	for typ, b := range nfnl.Attributes(message[20:]) {
		switch {
		case typ == packetInDevice && len(b) == 4:
			in = binary.BigEndian.Uint32(b)
		case typ == packetOutDevice && len(b) == 4:
			out = binary.BigEndian.Uint32(b)
		case typ == packetPayload:
			packet, ok = parsePacket(b)
		}
	}
	if !ok || !e.part[int(in)] || !e.part[int(out)] {
		return nil
	}
	var key programTuple
	var known programFlow
	key.set(reversed(packet))
	if e.objects.Flows.Lookup(&key, &known) == nil {
		return e.follow(&known, in)
	}
	c, err := e.entry(ctx, reversed(packet))
	if err != nil || !c.offloadable() {
		return err
	}
	if c.original == reversed(packet) { // it was an answer
		in, out = out, in
	}
	if e.failed(c.id) {
		return nil
	}
	original := programFlow{In: in, Out: out, Peer: e.peer(int(out)), Packets: c.packets[0], Bytes: c.bytes[0], Checked: now(), Scale: c.scale[0]}
	reply := programFlow{In: out, Out: in, Peer: e.peer(int(in)), Packets: c.packets[1], Bytes: c.bytes[1], Checked: now(), Scale: c.scale[1], Reply: 1}
	return e.add(ctx, c, &original, &reply)
}

// follow has the program expect a connection's packets at an interface, instead of the one at which it has had none for a
// while, as after a change of routes elsewhere.
func (e *Engine) follow(back *programFlow, in uint32) error {
	var key programTuple
	var f programFlow
	key.set(reversed(back.To.get()))
	if e.objects.Flows.Lookup(&key, &f) != nil || f.In == in || f.Checked+uint64(time.Second) > now() {
		return nil // this packet is one for the slow path
	}
	f.In = in
	f.seal()
	return e.objects.Flows.Update(&key, &f, ebpf.UpdateExist)
}

// try is an offload of a connection that is still on trial.
type try struct {
	until uint64        // the time by now until which the connection is not back if it can be forwarded
	wait  time.Duration // how long it is refused if it is
}

// Refused is a connection that the program did not keep, because of its route for example.
type Refused struct {
	ID  uint32 // nft's "ct id", as in memory
	For time.Duration
}

// failed reports whether the program did not keep a connection that was offloaded a moment ago. To learn it again each second
// costs more than to forward it, so it is refused for longer each time.
func (e *Engine) failed(id uint32) bool {
	const trial, first, most, factor = 10 * time.Second, 8 * time.Second, 10 * time.Minute, 8
	t, is := e.tries[id]
	if !is {
		e.tries[id] = try{now() + uint64(trial), first}
		return false
	}
	at := now()
	if at >= t.until { // it was kept, or refused: it gets another try
		e.tries[id] = try{at + uint64(trial), t.wait}
		return false
	}
	e.refused = append(e.refused, Refused{id, t.wait})
	e.tries[id] = try{at, min(t.wait*factor, most)}
	return true
}

// Refused returns the connections that were refused since the last call.
func (e *Engine) Refused() []Refused {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer func() { e.refused = nil }()
	return e.refused
}

func (e *Engine) add(ctx context.Context, c *connection, original, reply *programFlow) error {
	var keys [2]programTuple
	keys[0].set(c.original)
	keys[1].set(c.reply)
	original.From, reply.From = keys[0], keys[1]
	share := maxFlows / 2 // of connections from an interface: no pod can fill the map
	if reply.Peer != 0 {
		share = maxFlows / 16
	}
	if e.flows[original.In] >= share && e.counted+uint64(time.Second) < now() { // many may have ended
		if err := e.sweep(Idle); err != nil {
			return err
		}
	}
	refuse := func() {
		e.stats.Refused++
		delete(e.tries, c.id) // it was no try
	}
	if e.flows[original.In] >= share {
		refuse()
		return nil
	}
	original.To.set(reversed(c.reply))
	reply.To.set(reversed(c.original))
	original.seal()
	reply.seal()
	tcp := c.original.Protocol == unix.IPPROTO_TCP
	if tcp { // before packets skip conntrack: the FIN after these would be invalid, and not be translated
		if err := e.beLiberal(ctx, c.original); err != nil {
			return err
		}
	}
	// An element that is replaced would be reused while packets have it.
	if err := e.objects.Flows.Update(&keys[1], reply, ebpf.UpdateNoExist); err != nil {
		refuse()
		return err
	}
	if err := e.objects.Flows.Update(&keys[0], original, ebpf.UpdateNoExist); err != nil {
		refuse()
		return errors.Join(err, e.objects.Flows.Delete(&keys[1]))
	}
	e.stats.Added++
	e.flows[original.In]++
	if tcp { // again, as packets that came before have set the highest acknowledgement
		return e.beLiberal(ctx, c.original)
	}
	if c.status&ctnetlink.StatusAssured != 0 {
		return nil
	}
	// On the slow path conntrack would do that, after two seconds, so as not to evict it from a full table.
	return e.ct.Update(ctx, c.original, func(a *netlink.AttributeEncoder) {
		a.Bytes(nl.CTA_STATUS, binary.BigEndian.AppendUint32(nil, c.status|ctnetlink.StatusAssured))
	})
}

// maxFlows is how many connections the map can have.
const maxFlows = 1 << 16

// peer is 1 if packets can go directly to the other end of a veth pair.
func (e *Engine) peer(index int) uint8 {
	peer, known := e.peers[index]
	if known {
		return peer
	}
	if l, err := e.route.LinkByIndex(index); err == nil && l.Type() == "veth" && l.Attrs().NetNsID >= 0 {
		if !e.usedAtEgress(index) {
			peer = 1
		}
	}
	e.peers[index] = peer
	return peer
}

// parsePacket returns the addresses and ports of a packet.
func parsePacket(b []byte) (t ctnetlink.Tuple, ok bool) {
	var src, dst netip.Addr
	switch {
	case len(b) >= 24 && b[0] == 0x45:
		src, _ = netip.AddrFromSlice(b[12:16])
		dst, _ = netip.AddrFromSlice(b[16:20])
		t.Protocol, b = b[9], b[20:]
	case len(b) >= 44 && b[0]>>4 == 6:
		src, _ = netip.AddrFromSlice(b[8:24])
		dst, _ = netip.AddrFromSlice(b[24:40])
		t.Protocol, b = b[6], b[40:]
	default:
		return t, false
	}
	t.Src = netip.AddrPortFrom(src, binary.BigEndian.Uint16(b))
	t.Dst = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(b[2:]))
	return t, t.Protocol == unix.IPPROTO_TCP || t.Protocol == unix.IPPROTO_UDP
}

// connection is a conntrack entry.
type connection struct {
	original, reply ctnetlink.Tuple
	id, status      uint32
	established     bool      // TCP
	scale           [2]uint8  // TCP: the shift of windows, by direction
	special         bool      // has a helper, or another zone than the default, or changed sequence numbers
	packets, bytes  [2]uint64 // by direction
}

// entry reads the conntrack entry that has a tuple in either direction.
func (e *Engine) entry(ctx context.Context, t ctnetlink.Tuple) (*connection, error) {
	data, err := e.ct.Get(ctx, t)
	if err != nil {
		return nil, err
	}
	c := &connection{}
	count := func(direction int, b []byte) {
		for typ, n := range nfnl.Attributes(b) {
			switch {
			case len(n) != 8:
			case typ == nl.CTA_COUNTERS_PACKETS:
				c.packets[direction] = binary.BigEndian.Uint64(n)
			case typ == nl.CTA_COUNTERS_BYTES:
				c.bytes[direction] = binary.BigEndian.Uint64(n)
			}
		}
	}
	var ok [2]bool
	for typ, b := range nfnl.Attributes(data) {
		switch typ {
		case nl.CTA_TUPLE_ORIG:
			c.original, ok[0] = ctnetlink.ParseTuple(b)
		case nl.CTA_TUPLE_REPLY:
			c.reply, ok[1] = ctnetlink.ParseTuple(b)
		case nl.CTA_ID:
			if len(b) == 4 {
				c.id = binary.NativeEndian.Uint32(b)
			}
		case nl.CTA_STATUS:
			if len(b) == 4 {
				c.status = binary.BigEndian.Uint32(b)
			}
		case nl.CTA_COUNTERS_ORIG:
			count(0, b)
		case nl.CTA_COUNTERS_REPLY:
			count(1, b)
		case nl.CTA_PROTOINFO:
			b = find(b, nl.CTA_PROTOINFO_TCP)
			c.established = slices.Equal(find(b, nl.CTA_PROTOINFO_TCP_STATE), []byte{tcpEstablished})
			c.scale[0] = scale(find(b, nl.CTA_PROTOINFO_TCP_WSCALE_ORIGINAL), find(b, nl.CTA_PROTOINFO_TCP_FLAGS_ORIGINAL))
			c.scale[1] = scale(find(b, nl.CTA_PROTOINFO_TCP_WSCALE_REPLY), find(b, nl.CTA_PROTOINFO_TCP_FLAGS_REPLY))
		case ctnetlink.Help, nl.CTA_ZONE, ctnetlink.SeqAdjOrig, ctnetlink.SeqAdjReply, ctnetlink.Synproxy:
			c.special = true
		}
	}
	if !ok[0] || !ok[1] {
		return nil, fmt.Errorf("conntrack entry of %v to %v: without tuples", t.Src, t.Dst)
	}
	return c, nil
}

// find returns a nested attribute.
func find(b []byte, path ...uint16) []byte {
	for _, want := range path {
		var found []byte
		for typ, inner := range nfnl.Attributes(b) {
			if typ == want {
				found = inner
			}
		}
		b = found
	}
	return b
}

const tcpEstablished = 3 // TCP_CONNTRACK_ESTABLISHED

// Flags of a direction (IP_CT_TCP_FLAG_*).
const (
	flagWindowScale = 0x01
	flagLiberal     = 0x08
	flagMaxAck      = 0x20
)

// scale returns the shift of the windows of a direction. Conntrack does not know it if it has not seen the connection
// begin, and is liberal then: it may be the largest one of RFC 7323.
func scale(shift, flags []byte) uint8 {
	if len(shift) == 0 || len(flags) == 0 || flags[0]&flagWindowScale == 0 && flags[0]&flagLiberal != 0 {
		return 14
	}
	return shift[0]
}

// offloadable reports whether the program can forward the connection. Its translation has to be
// that of NAT rules: IPVS translates without conntrack.
func (c *connection) offloadable() bool {
	translated := c.status&(ctnetlink.StatusSNAT|ctnetlink.StatusDNAT) != 0
	switch {
	case c.special, c.status&(ctnetlink.StatusDying|ctnetlink.StatusOffload) != 0, !translated && c.reply != reversed(c.original):
		return false
	case c.original.Protocol == unix.IPPROTO_TCP:
		return c.established && c.status&ctnetlink.StatusAssured != 0
	}
	return c.status&ctnetlink.StatusSeenReply != 0
}

// beLiberal has conntrack accept all sequence numbers of a TCP connection, as it will not see all
// packets. It also forgets the highest acknowledgement, by which it would take a RST for invalid.
func (e *Engine) beLiberal(ctx context.Context, original ctnetlink.Tuple) error {
	flags := []byte{flagLiberal, flagLiberal | flagMaxAck}
	return e.ct.Update(ctx, original, func(a *netlink.AttributeEncoder) {
		a.Nested(nl.CTA_PROTOINFO, func(a *netlink.AttributeEncoder) error {
			a.Nested(nl.CTA_PROTOINFO_TCP, func(a *netlink.AttributeEncoder) error {
				a.Bytes(nl.CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, flags)
				a.Bytes(nl.CTA_PROTOINFO_TCP_FLAGS_REPLY, flags)
				return nil
			})
			return nil
		})
	})
}
