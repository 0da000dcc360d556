// SPDX-License-Identifier: Apache-2.0

package see

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/nftables/expr"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/firewall"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// This file sends a probe and has nf_tables trace it: a rule in a table of its own sets the flag
// nftrace of the packet, and the kernel then reports each rule that the packet matches, in all
// tables (NFT_MSG_TRACE). A packet keeps the flag until it leaves the network namespace.

// tracer traces one connection, and adds what it sees to an Explanation.
type tracer struct {
	*Explanation
	ctx      context.Context
	protocol desired.Protocol
	src, dst netip.AddrPort // an invalid address or the port 0 of src is unknown
	fd       int            // the probe's socket; -1 without a probe
	local    bool           // the probe begins in this network namespace
	began    time.Time

	table    nfnl.Table
	conn     *nfnl.Conn // owns the table
	events   *ctnetlink.Events
	bases    []nfnl.BaseChain
	rules    map[string][]nfnl.RuleInfo // by chain
	listings map[string]string          // the nft command's, by chain
	messages []message
	packets  map[uint32]bool          // IDs of traced packets, and whether they are replies
	ends     map[ctnetlink.Tuple]bool // addresses that such packets have had, and the same
	held     map[uint32]message       // a report with headers that is not shown, for the next one
	dropped  bool
	to       map[bool]netip.AddrPort // last destination of the packet, and of the reply (true)
	left     map[bool]string         // interface on which they left
}

// message is a report of the kernel about a traced packet: a rule that it matches, or the end of a
// base chain.
type message struct {
	reply   bool
	table   nfnl.Table
	chain   string
	rule    uint64 // handle; 0 for a policy
	verdict verdict
	header  ctnetlink.Tuple // the packet's, in the first report of each base chain
	out     string          // interface
}

// pollPeriod is the time between two looks at the probe and the trace.
const pollPeriod = 10 * time.Millisecond

// Trace sends a probe for the connection that x explains, if the client is this node or a pod of it,
// or else awaits a packet of such a connection, for a limited time. It adds what the kernel did to
// x, also when ctx ends. It calls wait, with the connection, before it awaits a packet. It runs on the
// node, not in the proxy.
func Trace(ctx context.Context, x *Explanation, timeout time.Duration, wait func(what string)) {
	t := &tracer{Explanation: x, ctx: ctx, fd: -1, rules: map[string][]nfnl.RuleInfo{}, listings: map[string]string{}, packets: map[uint32]bool{}, held: map[uint32]message{}, ends: map[ctnetlink.Tuple]bool{}, to: map[bool]netip.AddrPort{}, left: map[bool]string{}}
	defer x.conclude()
	address, protocol, _ := strings.Cut(x.To, "/")
	var err error
	if t.dst, err = netip.ParseAddrPort(address); err != nil {
		return // there is no such Service
	}
	if t.dst.Addr().IsUnspecified() {
		t.step("Trace", "", "For a trace, give an address of this node in place of %s.", t.dst.Addr())
		return
	}
	t.protocol, _ = protocolOf(protocol)
	t.src = netip.AddrPortFrom(x.Client, 0)
	if err := t.open(); err != nil {
		const title, text = "Trace", "The probe could not be sent: %v."
		if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
			t.stop(NoRoute, false, title, "", text, err)
		} else {
			t.step(title, "", text, err)
		}
		return
	}
	if t.fd >= 0 {
		defer unix.Close(t.fd)
	}
	defer t.disarm()
	if err := t.arm(); err != nil {
		t.step("Trace", "", "The kernel cannot trace the rules of nf_tables: %v.", err)
		if t.fd < 0 {
			return
		}
	}
	if t.fd < 0 {
		wait(fmt.Sprintf("%s from %s to %s", t.protocol, t.From, t.dst))
	}
	t.run(timeout)
}

// open opens the probe's socket in the network namespace of the client, if that can be found.
func (t *tracer) open() error {
	kind, known := map[desired.Protocol]int{desired.TCP: unix.SOCK_STREAM, desired.UDP: unix.SOCK_DGRAM}[t.protocol]
	if !known || t.Class == "outside" && !t.Client.IsValid() {
		return nil
	}
	netns := 0
	if t.local = !t.Client.IsValid() || hasAddress(t.Client); !t.local {
		f := namespaceOf(t.Client)
		if f == nil {
			return nil
		}
		defer f.Close()
		netns = int(f.Fd())
	}
	return dataplane.Inside(netns, func() error {
		from := t.Client
		if !from.IsValid() {
			c, err := net.Dial("udp", t.dst.String()) // sends nothing
			if err != nil {
				return err
			}
			from = c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
			c.Close()
		}
		family := unix.AF_INET
		if from.Is6() {
			family = unix.AF_INET6
		}
		fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		var bound unix.Sockaddr
		if err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(from, 0))); err == nil {
			bound, err = unix.Getsockname(fd)
		}
		if err != nil {
			unix.Close(fd)
			return fmt.Errorf("bind to %s: %w", from, err)
		}
		switch a := bound.(type) {
		case *unix.SockaddrInet4:
			t.src = netip.AddrPortFrom(from, uint16(a.Port))
		case *unix.SockaddrInet6:
			t.src = netip.AddrPortFrom(from, uint16(a.Port))
		}
		t.fd = fd
		return nil
	})
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

// hasAddress reports whether the network namespace of the thread has an address.
func hasAddress(want netip.Addr) bool {
	all, _ := net.InterfaceAddrs()
	return slices.ContainsFunc(all, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && p.Addr() == want
	})
}

// namespaceOf returns the network namespace with an address, among those of processes and those with
// a name; nil if there is none, or if it cannot be entered. One to which an interface of this node leads is preferred:
// containers that are no pods of this node may have the same address.
func namespaceOf(a netip.Addr) (found *os.File) {
	links, _ := netlink.LinkList()
	all, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	named, _ := filepath.Glob("/run/netns/*")
	seen := map[uint64]bool{}
	for _, path := range append(all, named...) {
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		has := false
		if info, err := f.Stat(); err == nil {
			if id := info.Sys().(*syscall.Stat_t).Ino; !seen[id] {
				seen[id] = true
				_ = dataplane.Inside(int(f.Fd()), func() error { has = hasAddress(a); return nil })
			}
		}
		if has && found == nil {
			found = f
		}
		if id, err := netlink.GetNetNsIdByFd(int(f.Fd())); has && err == nil && id >= 0 && slices.ContainsFunc(links, func(l netlink.Link) bool { return l.Attrs().NetNsID == id }) {
			return f
		}
		if f != found {
			f.Close()
		}
	}
	return found
}

// Chains of the table. The others only show that a packet has passed a hook.
const (
	chainBegin = "begin"
	chainReply = "reply-"
)

// arm creates the table.
func (t *tracer) arm() (err error) {
	family, addr := nfnl.IPv4, []uint32{12, 16}
	if t.dst.Addr().Is6() {
		family, addr = nfnl.IPv6, []uint32{8, 24}
	}
	t.table = nfnl.Table{Family: family, Name: fmt.Sprintf("slipstream-trace-%d", os.Getpid())}
	if t.conn, err = nfnl.Dial(0); err != nil {
		return err
	}
	if t.events, err = ctnetlink.Listen(0, nil, unix.NFNLGRP_NFTRACE); err != nil {
		return err
	}
	for _, f := range []nfnl.Family{family, nfnl.INET} {
		some, failed := t.conn.BaseChains(f)
		t.bases, err = append(t.bases, some...), errors.Join(err, failed)
	}
	if err != nil {
		return err
	}
	const register = unix.NFT_REG32_00
	equal := func(load expr.Any, value []byte) []expr.Any {
		return []expr.Any{load, &expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: value}}
	}
	port := func(p uint16) []byte { return binary.BigEndian.AppendUint16(nil, p) }
	header := func(base expr.PayloadBase, offset uint32, value []byte) []expr.Any {
		return equal(&expr.Payload{DestRegister: register, Base: base, Offset: offset, Len: uint32(len(value))}, value)
	}
	is := equal(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}, []byte{byte(t.protocol)})
	// One packet of each direction. The limit's next token is due after a week.
	trace := []expr.Any{
		&expr.Limit{Type: expr.LimitTypePkts, Rate: 1, Unit: expr.LimitTimeWeek, Burst: 1},
		&expr.Immediate{Register: register, Data: []byte{1}},
		&expr.Meta{Key: expr.MetaKeyNFTRACE, SourceRegister: true, Register: register},
	}
	to := slices.Concat(header(expr.PayloadBaseNetworkHeader, addr[1], t.dst.Addr().AsSlice()), header(expr.PayloadBaseTransportHeader, 2, port(t.dst.Port())))
	if t.src.Addr().IsValid() {
		to = append(to, header(expr.PayloadBaseNetworkHeader, addr[0], t.src.Addr().AsSlice())...)
	}
	switch {
	case t.src.Port() != 0:
		to = append(to, header(expr.PayloadBaseTransportHeader, 0, port(t.src.Port()))...)
	case t.protocol == desired.TCP: // a new connection: SYN without ACK
		const flags, syn, ack = 13, 2, 16
		to = append(to,
			&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: flags, Len: 1},
			&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 1, Mask: []byte{syn | ack}, Xor: []byte{0}},
			&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: []byte{syn}})
	}
	var b nfnl.Batch
	b.AddOwnedTable(t.table)
	chain := func(name string, hook uint32, priority int32) {
		b.AddChain(t.table, nfnl.Chain{Name: name, Hook: &nfnl.Hook{Type: "filter", Num: hook, Priority: priority}})
	}
	first := uint32(unix.NF_INET_PRE_ROUTING)
	if t.local {
		first = unix.NF_INET_LOCAL_OUT
	}
	chain(chainBegin, first, math.MinInt32)
	b.AddRule(t.table, chainBegin, "", is, to, trace)
	if t.fd >= 0 {
		// Behind NAT, a masqueraded reply has another header, and behind a bridge the kernel also gives it another ID.
		const afterConntrack, afterNAT = -199, firewall.PriorityDNAT + 1
		for name, at := range map[string]nfnl.Hook{
			"prerouting": {Num: unix.NF_INET_PRE_ROUTING, Priority: afterConntrack}, "output": {Num: unix.NF_INET_LOCAL_OUT, Priority: afterConntrack},
			"translated": {Num: unix.NF_INET_PRE_ROUTING, Priority: afterNAT},
		} {
			chain(chainReply+name, at.Num, at.Priority)
			b.AddRule(t.table, chainReply+name, "", is,
				equal(&expr.Ct{Key: expr.CtKeyDIRECTION, Register: register}, []byte{nfnl.Reply}),
				equal(nfnl.CtSource.Load(family, nfnl.Original, register), t.src.Addr().AsSlice()),
				equal(nfnl.CtSourcePort.Load(family, nfnl.Original, register), port(t.src.Port())),
				nfnl.OriginalDestination(family, register), []expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: t.dst.Addr().AsSlice()}},
				trace)
		}
	}
	for _, hook := range []uint32{unix.NF_INET_LOCAL_IN, unix.NF_INET_POST_ROUTING} {
		chain(hooks[hook], hook, math.MaxInt32-1)
	}
	return t.conn.Commit(0, &b)
}

// disarm closes the socket that owns the table, so that the kernel deletes it.
func (t *tracer) disarm() {
	if t.events != nil {
		t.events.Close()
	}
	if t.conn != nil {
		t.conn.Close()
	}
}

// run sends the probe, or awaits a packet, and describes what happened.
func (t *tracer) run(timeout time.Duration) {
	t.began = time.Now()
	deadline := t.began.Add(timeout)
	sent, answered, result := false, false, error(unix.EAGAIN)
	var seen time.Time
	for time.Now().Before(deadline) && t.ctx.Err() == nil {
		if t.fd >= 0 && errors.Is(result, unix.EAGAIN) {
			result = t.poll(!sent)
			sent = true
		}
		over := t.fd >= 0 && !errors.Is(result, unix.EAGAIN)
		t.read()
		if len(t.messages) > 0 && seen.IsZero() {
			seen = time.Now()
		}
		if t.fd < 0 && !seen.IsZero() {
			_, answered = t.translation()
			over = answered || time.Since(seen) > time.Second
		}
		if over || t.dropped && time.Since(seen) > 10*pollPeriod { // the kernel may still refuse the connection
			break
		}
		time.Sleep(pollPeriod)
	}
	took := time.Since(t.began)
	if t.read(); t.fd < 0 && !seen.IsZero() {
		took = time.Since(seen)
	}
	if t.fd >= 0 {
		t.step("Trace", "", "A probe was sent: %s from %s to %s.", t.protocol, t.src, t.dst)
	} else {
		t.step("Trace", "", "No probe was sent, as the client is not this node, and no pod that can be reached from here. A packet to %s was awaited.", t.dst)
	}
	if families, err := os.ReadFile("/proc/net/" + strings.Replace(firewall.Command(t.table.Family == nfnl.IPv6), "tables", "_tables_names", 1)); err == nil && len(families) > 0 {
		t.step("Trace", "", "The kernel does not trace rules of iptables-legacy, which this node has (tables %s).", strings.Join(strings.Fields(string(families)), ", "))
	}
	t.show()
	if t.fd < 0 && len(t.messages) == 0 {
		t.step("Trace", "", "No packet of a new connection arrived within %s.", took.Round(time.Millisecond))
		return
	}
	t.Unchecked = nil
	text, answered := t.translation()
	t.step("Conntrack", "", "%s", text)
	t.answer(result, answered, took)
}

// poll begins to connect, or looks for an answer. It returns EAGAIN while there is none.
func (t *tracer) poll(begin bool) error {
	if begin {
		err := unix.Connect(t.fd, sockaddr(t.dst))
		if err == nil && t.protocol == desired.UDP {
			_, err = unix.Write(t.fd, nil)
		}
		if err != nil && !errors.Is(err, unix.EINPROGRESS) {
			return err
		}
	}
	events := int16(unix.POLLOUT)
	if t.protocol == desired.UDP {
		events = unix.POLLIN
	}
	fds := []unix.PollFd{{Fd: int32(t.fd), Events: events}}
	if n, err := unix.Poll(fds, 0); err != nil || n == 0 {
		return unix.EAGAIN
	}
	if errno, err := unix.GetsockoptInt(t.fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || errno != 0 {
		return errors.Join(err, unix.Errno(errno))
	}
	return nil
}

// read reads the kernel's reports.
func (t *tracer) read() {
	if t.events == nil {
		return
	}
	_, _ = t.events.Read(func(raw []byte) {
		const headers = unix.NLMSG_HDRLEN + 4
		if len(raw) < headers || binary.NativeEndian.Uint16(raw[4:]) != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_TRACE {
			return
		}
		b := raw[headers:]
		m := message{
			table: nfnl.Table{Family: nfnl.Family(raw[unix.NLMSG_HDRLEN]), Name: nfnl.Text(b, unix.NFTA_TRACE_TABLE)},
			chain: nfnl.Text(b, unix.NFTA_TRACE_CHAIN), header: headerOf(b), out: linkName(int(nfnl.Num(b, unix.NFTA_TRACE_OIF))),
		}
		if handle := nfnl.Attr(b, unix.NFTA_TRACE_RULE_HANDLE); len(handle) == 8 {
			m.rule = binary.BigEndian.Uint64(handle)
		}
		id := nfnl.Num(b, unix.NFTA_TRACE_ID)
		reply, known := t.packets[id]
		switch again, had := t.ends[m.header]; {
		case m.table == t.table && m.rule != 0:
			reply, known = strings.HasPrefix(m.chain, chainReply), true
		case !known: // a packet on lo gets another ID; other packets may be traced by somebody else
			reply, known = again, had
		}
		if !known {
			return
		}
		t.packets[id] = reply
		if m.header.Protocol != 0 {
			t.ends[m.header] = reply
		}
		m.reply = reply
		switch v, typ := nfnl.Attr(b, unix.NFTA_TRACE_VERDICT), nfnl.Num(b, unix.NFTA_TRACE_TYPE); {
		case typ == unix.NFT_TRACETYPE_POLICY:
			m.verdict.code = int32(nfnl.Num(b, unix.NFTA_TRACE_POLICY))
		case typ == unix.NFT_TRACETYPE_RULE && m.rule != 0:
			m.verdict = verdict{code: int32(nfnl.Num(v, unix.NFTA_VERDICT_CODE)), chain: nfnl.Text(v, unix.NFTA_VERDICT_CHAIN)}
		default: // the end of a chain's rules
			if m.header.Protocol != 0 {
				t.held[id] = m
			}
			return
		}
		if h, has := t.held[id]; has && m.header.Protocol == 0 {
			m.header, m.out = h.header, h.out
		}
		delete(t.held, id)
		t.dropped = t.dropped || m.verdict.code == int32(nfnl.Drop)
		t.messages = append(t.messages, m)
	})
}

// headerOf returns the addresses and ports of a report, if it has the packet's headers.
func headerOf(b []byte) (t ctnetlink.Tuple) {
	network, transport := nfnl.Attr(b, unix.NFTA_TRACE_NETWORK_HEADER), nfnl.Attr(b, unix.NFTA_TRACE_TRANSPORT_HEADER)
	if len(transport) < 4 || len(network) < 20 {
		return t
	}
	var src, dst netip.Addr
	if network[0]>>4 == 4 {
		src, _ = netip.AddrFromSlice(network[12:16])
		dst, _ = netip.AddrFromSlice(network[16:20])
		t.Protocol = network[9]
	} else if len(network) >= 40 {
		src, _ = netip.AddrFromSlice(network[8:24])
		dst, _ = netip.AddrFromSlice(network[24:40])
		t.Protocol = network[6]
	}
	t.Src, t.Dst = netip.AddrPortFrom(src, binary.BigEndian.Uint16(transport)), netip.AddrPortFrom(dst, binary.BigEndian.Uint16(transport[2:]))
	return t
}

// show adds the reports as steps.
func (t *tracer) show() {
	hook, at, ended := "", ctnetlink.Tuple{}, map[bool]bool{}
	for _, m := range t.messages {
		packet := map[bool]string{true: "The reply", false: "The packet"}[m.reply]
		if h := m.header; h.Protocol != 0 && h != at {
			if at = h; t.src.Port() == 0 && !m.reply {
				t.src = h.Src // of a packet that was awaited
			}
			t.step("Trace", "", "%s goes from %s to %s.", packet, h.Src, h.Dst)
			t.to[m.reply] = h.Dst
		}
		if m.table == t.table {
			switch {
			case m.chain == hooks[unix.NF_INET_LOCAL_IN]:
				ended[m.reply] = true
				t.step("Trace", "", "%s is delivered to this node itself.", packet)
			case m.chain == hooks[unix.NF_INET_POST_ROUTING]:
				ended[m.reply] = true
				t.left[m.reply] = m.out
				t.step("Trace", "", "%s leaves on %s.", packet, m.out)
			}
			continue
		}
		for _, c := range t.bases {
			if c.Table == m.table && c.Name == m.chain {
				hook = hooks[c.Hook]
			}
		}
		name := fmt.Sprintf("table %s %s chain %s", m.table.Family, m.table.Name, m.chain)
		does := fmt.Sprintf("%s: %s.", name, m.verdict)
		switch {
		case m.verdict.code != int32(nfnl.Drop):
			t.step(hook, t.rule(&m), "%s", does)
		case m.table.Name == firewall.OurTable, m.table.Name == firewall.LimitsTable:
			ended[m.reply] = true
			t.step(hook, t.rule(&m), "Slipstream refuses or drops the packet here. %s", does)
		default:
			ended[m.reply] = true
			t.stop(Firewall, false, hook, t.rule(&m), "%s is dropped here. %s", packet, does)
		}
	}
	if t.left[false] != "" && t.to[false] == t.dst && !t.Stops() {
		t.stop(Firewall, false, "Trace", "", "The packet leaves untranslated. A rule of another table keeps it from being tracked (notrack), or Slipstream does not serve %s.", t.dst)
	}
	if len(t.messages) > 0 && !ended[false] {
		t.stop(NoRoute, true, "Trace", "", "The packet was neither dropped by these rules, nor did it leave the node. Routing may have dropped it (no route, rp_filter, forwarding), or a rule of iptables-legacy, or a program of eBPF has taken it.")
	}
	if len(t.messages) == 0 && t.fd >= 0 && t.events != nil {
		t.step("Trace", "", "The kernel has traced no packet of the probe on this node.")
	}
}

type verdict struct {
	code  int32
	chain string
}

// String is the verdict as the nft command prints it.
func (v verdict) String() string {
	return cmp.Or(map[int32]string{
		unix.NFT_CONTINUE: "continue", unix.NFT_BREAK: "break", unix.NFT_JUMP: "jump " + v.chain, unix.NFT_GOTO: "goto " + v.chain, unix.NFT_RETURN: "return",
		int32(nfnl.Drop): "drop", int32(nfnl.Accept): "accept", 2: "stolen", 3: "queue", 4: "repeat",
	}[v.code], fmt.Sprint("verdict ", v.code))
}

// rule returns a rule as text: its comment, or what the nft command prints, if it is installed.
func (t *tracer) rule(m *message) string {
	if m.rule == 0 {
		return "the policy of the chain"
	}
	handle := fmt.Sprintf("handle %d", m.rule)
	key := fmt.Sprintf("%s %s %s", m.table.Family, m.table.Name, m.chain)
	if _, read := t.rules[key]; !read {
		t.rules[key], _ = t.conn.Rules(m.table, m.chain)
	}
	for _, r := range t.rules[key] {
		if r.Handle == m.rule && r.Text() != "" {
			return fmt.Sprintf("%s, %q", handle, r.Text())
		}
	}
	if m.table.Name == firewall.OurTable {
		return handle // nft would read all elements
	}
	if _, listed := t.listings[key]; !listed {
		const listTimeout = 5 * time.Second // of an nft command that lists a chain
		ctx, cancel := context.WithTimeout(t.ctx, listTimeout)
		defer cancel()
		out, _ := exec.CommandContext(ctx, "nft", "-a", "-s", "-t", "list", "chain", m.table.Family.String(), m.table.Name, m.chain).Output()
		t.listings[key] = string(out)
	}
	for line := range strings.Lines(t.listings[key]) {
		if text, ok := strings.CutSuffix(strings.TrimSpace(line), " # "+handle); ok {
			return handle + ": " + text
		}
	}
	return handle
}

// translation describes the entry of conntrack, and whether a reply was seen.
func (t *tracer) translation() (text string, answered bool) {
	if t.src.Port() == 0 && len(t.messages) > 0 {
		t.src = t.messages[0].header.Src
	}
	c, err := ctnetlink.Dial(0)
	if err != nil {
		return fmt.Sprintf("The entry could not be read: %v.", err), false
	}
	defer c.Close()
	e, err := c.Get(t.ctx, ctnetlink.Tuple{Protocol: uint8(t.protocol), Src: t.src, Dst: t.dst})
	if errors.Is(err, unix.ENOENT) && slices.ContainsFunc(t.messages, func(m message) bool { return m.reply }) {
		return "The connection has no entry any more, as it was refused.", false
	} else if errors.Is(err, unix.ENOENT) {
		return "The connection has no entry: its first packet did not leave, or is not tracked.", false
	} else if err != nil {
		return fmt.Sprintf("The entry could not be read: %v.", err), false
	}
	if answered = e.Status&ctnetlink.StatusSeenReply != 0; answered {
		text = "A reply was seen."
	} else {
		text = "No reply was seen."
	}
	if e.Reply.Src == t.dst {
		return fmt.Sprintf("The destination %s is not translated. %s", t.dst, text), answered
	}
	seen := "with the client's address"
	if e.Reply.Dst != t.src {
		seen = "masqueraded as " + e.Reply.Dst.String()
	}
	return fmt.Sprintf("%s is translated to endpoint %s, %s. %s", t.dst, e.Reply.Src, seen, text), answered
}

// answer adds the result of the probe, or of the awaited connection.
func (t *tracer) answer(result error, answered bool, took time.Duration) {
	switch took := took.Round(10 * time.Microsecond); {
	case t.fd >= 0 && result == nil || t.fd < 0 && answered:
		t.Answered = true
		t.step("Answer", "", "The connection was answered within %s.", took)
	case t.fd < 0:
		t.step("Answer", "", "The connection was not answered yet.")
	case errors.Is(result, unix.EAGAIN) && t.protocol == desired.UDP && !t.dropped:
		t.step("Answer", "", "No answer within %s to an empty datagram, which many servers do not answer.", took)
	case t.dropped: // the cause is known
		t.step("Answer", "", "%s", noAnswer(result, took))
	case t.Stops():
		t.step("Answer", "", "%s%s", noAnswer(result, took), t.howFar())
	case len(t.messages) == 0 && errors.Is(result, unix.ENETUNREACH):
		t.stop(NoRoute, false, "Answer", "", "The client itself has no route to %s: %v.", t.dst.Addr(), result)
	case errors.Is(result, unix.ECONNREFUSED):
		t.stop(NotListening, false, "Answer", "", "%s", noAnswer(result, took))
	case errors.Is(result, unix.EHOSTUNREACH), errors.Is(result, unix.ENETUNREACH):
		t.stop(NoRoute, false, "Answer", "", "%s", noAnswer(result, took))
	default:
		t.stop(NoAnswer, false, "Answer", "", "%s%s", noAnswer(result, took), t.howFar())
	}
}

// howFar says where an unanswered packet was seen last.
func (t *tracer) howFar() string {
	_, replied := t.to[true]
	switch {
	case t.left[true] != "":
		return fmt.Sprintf(" The reply has left this node on %s, but has not reached the client: look there.", t.left[true])
	case replied:
		return " The endpoint has replied, but the reply was lost on this node: look at what is shown of it last."
	case t.left[false] != "":
		return fmt.Sprintf(" The packet has left this node on %s for endpoint %s: look inside it (its process, its firewall), and at the network between.", t.left[false], t.to[false])
	case len(t.messages) > 0:
		return " The packet has reached this node, but has not left it, and no rule of nf_tables has dropped it: look at the node's routes, 'ip rule', rp_filter, 'ip xfrm policy', iptables-legacy and eBPF."
	case t.events != nil:
		return " The packet has not reached the node's chains: look at the client's interfaces, and at rules of bridges and netdev, tc and eBPF there."
	}
	return ""
}

func noAnswer(result error, took time.Duration) string {
	if errors.Is(result, unix.EAGAIN) {
		return fmt.Sprintf("No answer within %s.", took)
	}
	if errors.Is(result, unix.ECONNREFUSED) {
		return fmt.Sprintf("The connection was refused after %s.", took)
	}
	return fmt.Sprintf("The connection failed after %s: %v.", took, result)
}
