// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"hash"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// This file evaluates rules of nf_tables for the first packet of a connection, as far as that is
// known: what a rule compares may depend on more than the packet's addresses. So a rule matches,
// does not match, or may match.

// Packet is the first packet of a connection at one hook, or any one of an established connection, or the first reply.
type Packet struct {
	Protocol    uint8
	Established bool
	Reply       bool           // the first one, of an established connection
	Translated  bool           // its destination has been, so that its connection has the status dnat
	IPv6        bool           // if both addresses are unknown
	Src, Dst    netip.AddrPort // an invalid address or the port 0 is unknown
	In, Out     Link
}

func (p *Packet) isIPv6() bool { return p.IPv6 || p.Src.Addr().Is6() || p.Dst.Addr().Is6() }

// unknownPort is the lowest that a port can be that is not known. That of a client is one that Linux chooses
// (net.ipv4.ip_local_port_range).
func (p *Packet) unknownPort() int {
	if p.Established && !p.Reply {
		return 0
	}
	return 32768
}

// Link is the name of an interface, "" for none.
type Link struct {
	Name  string
	Known bool
}

// field is a value with the bytes of it that are known.
type field struct{ value, known []byte }

func knownField(b []byte) field { return field{b, bytes.Repeat([]byte{0xff}, len(b))} }
func unknownField(n int) field  { return field{make([]byte, n), make([]byte, n)} }

// length is an attribute with the length of a field, of which registers have no more than 64 bytes.
func length(b []byte, typ uint16) int { return int(min(nfnl.Num(b, typ), 64)) }

// header returns the network header or the transport header, by the base of a payload expression.
func (p *Packet) header(base uint32) (h field) {
	h = unknownField(64)
	set := func(at int, b ...byte) {
		copy(h.value[at:], b)
		copy(h.known[at:], bytes.Repeat([]byte{0xff}, len(b)))
	}
	switch ipv6 := p.isIPv6(); base {
	case unix.NFT_PAYLOAD_NETWORK_HEADER:
		protocolAt, src, dst := 9, 12, 16
		if ipv6 {
			protocolAt, src, dst = 6, 8, 24
		}
		set(protocolAt, p.Protocol)
		set(dst, p.Dst.Addr().AsSlice()...) // none of an invalid address
		set(src, p.Src.Addr().AsSlice()...)
	case unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		for at, port := range map[int]uint16{0: p.Src.Port(), 2: p.Dst.Port()} {
			if low := p.unknownPort(); port != 0 {
				set(at, binary.BigEndian.AppendUint16(nil, port)...)
			} else if low > 0 {
				h.value[at], h.known[at] = byte(low>>8), byte(low>>8)
			}
		}
		const fin, syn, rst, ack = 1, 2, 4, 16
		switch {
		case p.Protocol != unix.IPPROTO_TCP:
		case p.Reply:
			set(13, syn|ack)
		case p.Established:
			h.value[13], h.known[13] = ack, fin|syn|rst|ack // others take the slow path, or are invalid
		default:
			set(13, syn)
		}
	}
	return h
}

func (p *Packet) meta(key uint32) field {
	name := func(l Link) field {
		if !l.Known {
			return unknownField(unix.IFNAMSIZ)
		}
		return knownField(append([]byte(l.Name), make([]byte, unix.IFNAMSIZ-len(l.Name))...))
	}
	index := func(l Link) field {
		i, err := net.InterfaceByName(l.Name)
		if !l.Known || err != nil {
			return unknownField(4)
		}
		return knownField(binary.NativeEndian.AppendUint32(nil, uint32(i.Index)))
	}
	family, ethernet := byte(unix.NFPROTO_IPV4), uint16(unix.ETH_P_IP)
	if p.isIPv6() {
		family, ethernet = unix.NFPROTO_IPV6, unix.ETH_P_IPV6
	}
	switch key {
	case unix.NFT_META_L4PROTO:
		return knownField([]byte{p.Protocol})
	case unix.NFT_META_NFPROTO:
		return knownField([]byte{family})
	case unix.NFT_META_PROTOCOL:
		return knownField(binary.BigEndian.AppendUint16(nil, ethernet))
	case unix.NFT_META_IIFNAME:
		return name(p.In)
	case unix.NFT_META_OIFNAME:
		return name(p.Out)
	case unix.NFT_META_IIF:
		return index(p.In)
	case unix.NFT_META_OIF:
		return index(p.Out)
	}
	return unknownField(unix.IFNAMSIZ)
}

// matching says whether a rule matches, or whether a chain decides about the packet: no, perhaps or yes.
type matching uint8

const (
	no matching = iota
	maybe
	yes
)

// Chain is a chain that the kernel calls at a hook, of nf_tables or of iptables-legacy.
type Chain struct {
	Table    string // as it is printed
	Name     string
	Hook     uint32
	Priority int32
	Policy   bool    // packets are dropped at the end
	walker   *walker // nil for the proxy's own chains
}

// rule is a rule of nf_tables or of iptables-legacy.
type rule struct {
	text string
	eval func() []outcome // for the walker's packet: one for each that is possible
}

// walker sends packets through the chains of one table.
type walker struct {
	rules  map[string][]rule // by chain
	packet *Packet
	drops  []Dropping
	skips  []Skip // rules with effects beside verdicts

	steps  []Step
	judges bool        // see Established
	varies bool        // whether packets got here is no property of their connection
	early  bool        // in the hook prerouting
	hash   hash.Hash64 // of the rules that were met, if not nil

	conn   *nfnl.Conn // of a table of nf_tables
	table  nfnl.Table
	sets   []nfnl.Set
	filled map[string]bool // sets that packets fill
}

// Dropping is a rule or a policy that drops or rejects the packet, or may do so, or keeps Slipstream from
// translating it.
type Dropping struct {
	Rule    string
	Certain bool
	Diverts Diversion
	Zone    uint16 // of Zoned
}

// Diversion is how a rule keeps Slipstream from translating a packet, or may lead it astray: by a priority before which it has to be.
type Diversion int32

const (
	Zoned      Diversion = -201 // its connection is in a zone of conntrack; replies have to be in it, too
	NotTracked Diversion = -200 // priorityConntrack
	Redirected Diversion = PriorityDNAT
	Marked     Diversion = math.MaxInt32 // rules of routing may select by the mark
)

// PriorityDNAT is the priority at which Slipstream and others translate destinations.
const PriorityDNAT = -100

// Drops returns what drops a packet in a base chain: nothing in one of the proxy's own.
func (c *Chain) Drops(p *Packet) []Dropping {
	w := c.walker
	if w == nil {
		return nil
	}
	w.packet, w.drops, w.skips, w.steps, w.judges, w.varies = p, nil, nil, nil, false, false
	w.early = c.Hook == unix.NF_INET_PRE_ROUTING
	w.note([]byte(c.Name), []byte(strconv.FormatBool(c.Policy)))
	if ends := w.chain(c.Name, path{certain: true, whole: true}, 0); c.Policy && ends != yes {
		w.drop("the policy of chain "+c.Name, path{certain: ends == no})
	}
	for i := range w.drops {
		w.drops[i].Rule = c.Table + ": " + w.drops[i].Rule
	}
	w.drops = slices.DeleteFunc(w.drops, func(d Dropping) bool {
		begins := (!p.Established || d.Diverts == Zoned) && (c.Hook == unix.NF_INET_PRE_ROUTING || c.Hook == unix.NF_INET_LOCAL_OUT)
		return d.Diverts != 0 && (!begins || c.Priority >= int32(d.Diverts))
	})
	return w.drops
}

// newWalker reads a table of nf_tables.
func newWalker(conn *nfnl.Conn, t nfnl.Table) (*walker, error) {
	w := &walker{conn: conn, table: t, rules: map[string][]rule{}, filled: map[string]bool{}}
	all, err := conn.Rules(t, "")
	if err != nil {
		return nil, err
	}
	for i := range all {
		r := &all[i]
		for _, e := range nfnl.Attributes(r.Expressions) {
			if nfnl.Text(e, unix.NFTA_EXPR_NAME) == "dynset" {
				w.filled[nfnl.Text(nfnl.Attr(e, unix.NFTA_EXPR_DATA), unix.NFTA_DYNSET_SET_NAME)] = true
			}
		}
		text := fmt.Sprintf("chain %s, rule with handle %d", r.Chain, r.Handle)
		if r.Text() != "" {
			text += fmt.Sprintf(", %q", r.Text())
		}
		w.rules[r.Chain] = append(w.rules[r.Chain], rule{
			fmt.Sprintf("%s (nft -a list chain %s %s %s)", text, t.Family, t.Name, r.Chain),
			func() []outcome { return w.rule(r) },
		})
	}
	w.sets, err = conn.Sets(t)
	return w, err
}

// chain sends the packet through a chain, which it reaches by a path. It returns whether its way through the
// base chain ends there.
func (w *walker) chain(name string, p path, depth int) (ends matching) {
	const maxDepth = 20 // more than the kernel's limit of nested jumps
	switch {
	case strings.HasPrefix(name, OurChains):
		return no // of iptables mode
	case depth > maxDepth:
		w.step(p, true)
		return maybe
	}
	all := yes // how many packets are left to a rule that matches all
	for _, r := range w.rules[name] {
		for _, o := range r.eval() {
			if o.match == no {
				continue
			}
			here := p.through(&o)
			if o.effect != "" && (o.effect != "marks" || !w.early || w.varies || here.varies) {
				w.skips = append(w.skips, Skip{r.text, o.effect, true})
				w.step(here, true)
			}
			if o.v.diverts != 0 {
				w.drops = append(w.drops, Dropping{r.text, here.certain, o.v.diverts, o.v.zone})
			} else if o.effect == "marks" {
				w.drops = append(w.drops, Dropping{Rule: r.text, Certain: here.certain, Diverts: Marked})
			}
			switch o.v.code {
			case unix.NFT_CONTINUE:
				continue
			case unix.NFT_RETURN:
				if o.match == yes {
					return min(ends, all)
				}
				w.varies = w.varies || here.varies
				p.certain, p.whole, all, ends = false, false, maybe, maybe
				continue
			case unix.NFT_JUMP, unix.NFT_GOTO:
				inner, jump := w.chain(o.v.chain, here, depth+1), o.v.code == unix.NFT_JUMP
				if o.match == yes && (inner == yes || !jump) {
					return min(max(inner, ends), all)
				}
				if inner != no || !jump {
					p.certain, ends = false, maybe
				}
				p.whole = p.whole && (jump || inner == yes && here.whole)
				if !jump && inner != yes {
					all = maybe
				}
				continue
			case int32(nfnl.Drop):
				w.drop(r.text, here)
			default:
				w.varies = w.varies || here.varies
			}
			w.step(here, false)
			if o.match == yes { // dropped or accepted
				return all
			}
			p.certain, ends = false, maybe
		}
	}
	return ends
}

// drop notes what drops packets. Where that is no property of their connection, each has to pass it.
func (w *walker) drop(rule string, p path) {
	does, varies := "may drop", w.varies || p.varies
	if p.certain {
		does = "drops"
	}
	w.drops = append(w.drops, Dropping{Rule: rule, Certain: p.certain})
	w.skips = append(w.skips, Skip{rule, does, varies})
	if w.judges = w.judges || !varies; varies {
		w.step(p, true)
	}
}

type verdict struct {
	code    int32
	chain   string
	diverts Diversion // 0 if it does not
	zone    uint16    // of Zoned
}

// origin is what a register has been loaded with.
type origin struct {
	field  Field
	mask   []byte // of its first bytes; nil for all
	varies bool   // packets of one connection differ in it
}

// register are registers by their offset in bytes: 16 for the verdict, then 16 of 4.
type registers struct {
	field
	origins map[int]origin
}

func newRegisters() registers { return registers{unknownField(4 * 20), map[int]origin{}} }

// registerAt returns the offset of the register that an attribute names.
func registerAt(data []byte, typ uint16) int {
	if n := int(nfnl.Num(data, typ)); n >= unix.NFT_REG32_00 && n <= unix.NFT_REG32_15 {
		return 16 + (n-unix.NFT_REG32_00)*4
	} else if n <= unix.NFT_REG_4 {
		return n * 16
	}
	return 0
}

func (r *registers) store(at int, f field, from origin) {
	copy(r.value[at:], f.value)
	copy(r.known[at:], f.known)
	for i := at + len(f.value); i%4 != 0 && i < len(r.value); i++ { // the kernel clears the rest of a register
		r.value[i], r.known[i] = 0, 0xff
	}
	for i := 0; i < len(f.value); i += 4 {
		r.origins[at+i] = origin{varies: from.varies}
	}
	r.origins[at] = from
}

// load returns a field, with what it is if that is one thing.
func (r *registers) load(from, n int) (f field, is origin) {
	to := min(from+n, len(r.value))
	is = r.origins[from]
	for i := from; i < to; i += 4 {
		o, loaded := r.origins[i]
		is.varies = is.varies || o.varies || !loaded
		if i > from && o.field != Other {
			is.field = Other
		}
	}
	return field{r.value[from:to], r.known[from:to]}, is
}

// rule evaluates a rule's expressions. The verdict of an outcome matters unless it does not match.
func (w *walker) rule(r *nfnl.RuleInfo) []outcome {
	o := outcome{match: yes, v: verdict{code: unix.NFT_CONTINUE}, path: path{whole: true}}
	regs := newRegisters()
	ipv6 := w.packet.isIPv6()
	w.note([]byte(r.Chain))
	for _, e := range nfnl.Attributes(r.Expressions) {
		data, result := nfnl.Attr(e, unix.NFTA_EXPR_DATA), yes
		name := nfnl.Text(e, unix.NFTA_EXPR_NAME)
		o.effect = cmp.Or(effects[name], o.effect)
		if w.note([]byte(name)); name != "counter" && name != "last" && name != "quota" && name != "limit" { // they change
			w.note(data)
		}
		switch name {
		case "payload":
			base, from, n := nfnl.Num(data, unix.NFTA_PAYLOAD_BASE), int(nfnl.Num(data, unix.NFTA_PAYLOAD_OFFSET)), length(data, unix.NFTA_PAYLOAD_LEN)
			h := w.packet.header(base)
			if nfnl.Attr(data, unix.NFTA_PAYLOAD_DREG) == nil {
				o.effect = "changes"
				break
			}
			is := payloadOrigin(base, from, n, ipv6)
			if from+n > len(h.value) {
				h, from = unknownField(n), 0
			}
			regs.store(registerAt(data, unix.NFTA_PAYLOAD_DREG), field{h.value[from : from+n], h.known[from : from+n]}, is)
		case "meta":
			key := nfnl.Num(data, unix.NFTA_META_KEY)
			if nfnl.Attr(data, unix.NFTA_META_DREG) != nil {
				fields := map[uint32]Field{unix.NFT_META_IIFNAME: In, unix.NFT_META_OIFNAME: Out, unix.NFT_META_MARK: mark}
				regs.store(registerAt(data, unix.NFTA_META_DREG), w.packet.meta(key), origin{field: fields[key], varies: !constantMeta[key] && fields[key] == Other})
			} else if f, is := regs.load(registerAt(data, unix.NFTA_META_SREG), 4); is.field != mark && (len(f.value) != 4 || compare(f, unix.NFT_CMP_EQ, make([]byte, 4)) != yes) {
				o.effect = cmp.Or(o.effect, "marks") // packets on the fast path have no mark, which the others keep: to clear one is no effect
			}
		case "ct":
			key := nfnl.Num(data, unix.NFTA_CT_KEY)
			f := unknownField(16)
			switch {
			case key == unix.NFT_CT_STATE:
				f = knownField(binary.NativeEndian.AppendUint32(nil, w.packet.state()))
			case key == unix.NFT_CT_STATUS && (w.packet.Translated || !w.packet.Established):
				const dnat = 1 << 5 // IPS_DST_NAT
				binary.NativeEndian.PutUint32(f.known, dnat)
				if w.packet.Translated {
					copy(f.value, f.known)
				}
			}
			if nfnl.Attr(data, unix.NFTA_CT_DREG) != nil {
				regs.store(registerAt(data, unix.NFTA_CT_DREG), f, origin{varies: varyingCT[key]})
			} else if o.effect = cmp.Or(o.effect, "marks"); key == unix.NFT_CT_ZONE && nfnl.Attr(data, unix.NFTA_CT_DIRECTION) == nil {
				f, _ := regs.load(registerAt(data, unix.NFTA_CT_SREG), 2)
				o.v.diverts, o.v.zone = Zoned, binary.NativeEndian.Uint16(f.value)
			}
		case "immediate":
			value := nfnl.Attr(data, unix.NFTA_IMMEDIATE_DATA)
			if inner := nfnl.Attr(value, unix.NFTA_DATA_VERDICT); inner != nil {
				o.v.code, o.v.chain = int32(nfnl.Num(inner, unix.NFTA_VERDICT_CODE)), nfnl.Text(inner, unix.NFTA_VERDICT_CHAIN)
			} else {
				regs.store(registerAt(data, unix.NFTA_IMMEDIATE_DREG), knownField(nfnl.Attr(value, unix.NFTA_DATA_VALUE)), origin{})
			}
		case "bitwise":
			n := length(data, unix.NFTA_BITWISE_LEN)
			mask, xor := nfnl.Attr(nfnl.Attr(data, unix.NFTA_BITWISE_MASK), unix.NFTA_DATA_VALUE), nfnl.Attr(nfnl.Attr(data, unix.NFTA_BITWISE_XOR), unix.NFTA_DATA_VALUE)
			f, is := regs.load(registerAt(data, unix.NFTA_BITWISE_SREG), n)
			out := unknownField(n)
			if len(mask) == n && len(xor) == n && len(f.value) == n {
				for i := range n {
					out.value[i], out.known[i] = f.value[i]&mask[i]^xor[i], f.known[i]|^mask[i]
				}
			}
			if is.mask = mask; bytes.Count(xor, []byte{0}) != n {
				is.field = Other
			}
			regs.store(registerAt(data, unix.NFTA_BITWISE_DREG), out, is)
		case "cmp", "range":
			first := nfnl.Attr(nfnl.Attr(data, unix.NFTA_CMP_DATA), unix.NFTA_DATA_VALUE)
			last, op := first, nfnl.Num(data, unix.NFTA_CMP_OP)
			if name == "range" {
				first, last = nfnl.Attr(nfnl.Attr(data, unix.NFTA_RANGE_FROM_DATA), unix.NFTA_DATA_VALUE), nfnl.Attr(nfnl.Attr(data, unix.NFTA_RANGE_TO_DATA), unix.NFTA_DATA_VALUE)
			}
			f, is := regs.load(registerAt(data, unix.NFTA_CMP_SREG), len(first))
			if result = compare(f, op, first); name == "range" {
				if result = min(compare(f, unix.NFT_CMP_GTE, first), compare(f, unix.NFT_CMP_LTE, last)); op == unix.NFT_RANGE_NEQ {
					result = yes - result
				}
			}
			if result == maybe {
				o.and(is.compared(op, first, last, ipv6), is.varies)
			}
		case "lookup":
			f, is, ok := w.lookup(data, &o, &regs)
			if !ok {
				return f
			}
			result = is
			if nfnl.Attr(data, unix.NFTA_LOOKUP_DREG) != nil && registerAt(data, unix.NFTA_LOOKUP_DREG) != 0 {
				regs.store(registerAt(data, unix.NFTA_LOOKUP_DREG), unknownField(16), origin{})
			}
		case "reject":
			o.v = verdict{code: int32(nfnl.Drop)}
		case "nat", "masq", "redir", "tproxy":
			o.v = verdict{code: int32(nfnl.Accept)}
			if name == "redir" || name == "nat" && nfnl.Num(data, unix.NFTA_NAT_TYPE) == unix.NFT_NAT_DNAT {
				o.v.diverts = Redirected
			}
		case "notrack":
			o.v.diverts = NotTracked
		case "target":
			target, info := nfnl.Text(data, unix.NFTA_TARGET_NAME), nfnl.Attr(data, unix.NFTA_TARGET_INFO)
			o.v = targetVerdict(target, len(info) > 1 && binary.NativeEndian.Uint16(info)&1 != 0) // flags of target CT
			if len(info) > 3 && target == "CT" && info[0]&0xf == 0 && info[2]|info[3] != 0 {      // for both directions
				o.v.diverts, o.v.zone = Zoned, binary.NativeEndian.Uint16(info[2:])
			}
			if clears := target == "MARK" && len(info) >= 4 && binary.NativeEndian.Uint32(info) == 0; !clears {
				o.effect = cmp.Or(targetEffect(target), o.effect)
			}
		case "match":
			match := nfnl.Text(data, unix.NFTA_MATCH_NAME)
			if result = w.packet.xtMatch(match, nfnl.Attr(data, unix.NFTA_MATCH_INFO)); result == maybe {
				o.and(Condition{}, !constant[match])
			}
			o.effect = cmp.Or(effects[match], o.effect)
		case "objref":
			if typ := nfnl.Num(data, unix.NFTA_OBJREF_IMM_TYPE); typ == unix.NFT_OBJECT_QUOTA || typ == unix.NFT_OBJECT_LIMIT || typ == unix.NFT_OBJECT_CONNLIMIT || typ == 0 {
				o.effect = cmp.Or(o.effect, "limits")
			}
		case "counter", "log", "dynset", "flow_offload", "last":
		default:
			const nftaExthdrSREG = 7
			if result = maybe; nfnl.Attr(data, nftaExthdrSREG) != nil && name == "exthdr" {
				o.effect = "changes"
			}
			former := regs
			regs = newRegisters()
			for at := 0; at < len(regs.value) && constant[name]; at += 4 {
				regs.origins[at] = origin{varies: former.origins[at].varies}
			}
			o.and(Condition{}, !constant[name])
		}
		if o.match = min(o.match, result); o.match == no {
			return nil
		}
	}
	if o.expires && o.v.code != unix.NFT_CONTINUE && o.v.code != int32(nfnl.Drop) {
		o.and(Condition{}, true) // packets may reach later rules once it does not match any more
	}
	return []outcome{o}
}

// payloadOrigin is what bytes of a packet's headers are.
func payloadOrigin(base uint32, at, n int, ipv6 bool) origin {
	width, source, next := 4, 12, 9
	if ipv6 {
		width, source, next = 16, 8, 6
	}
	switch {
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER && n <= width && at == source:
		return origin{field: Source}
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER && n <= width && at == source+width:
		return origin{field: Destination}
	case base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && n == 2 && at == 0:
		return origin{field: SourcePort}
	case base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && n == 2 && at == 2:
		return origin{field: DestinationPort}
	}
	addresses := base == unix.NFT_PAYLOAD_NETWORK_HEADER && (at == next && n == 1 || at >= source && at+n <= source+2*width)
	return origin{varies: !addresses && !(base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && at+n <= 4)}
}

// compared returns the condition that a comparison with a value, or with a range, is.
func (o origin) compared(op uint32, first, last []byte, ipv6 bool) Condition {
	c := Condition{Field: o.field, Not: op == unix.NFT_CMP_NEQ}
	low, high := make([]byte, len(first)), bytes.Repeat([]byte{0xff}, len(first))
	switch {
	case o.mask != nil: // of a prefix, or it is no range
		if op > unix.NFT_CMP_NEQ || len(o.mask) != len(first) {
			return Condition{}
		}
		for i, m := range o.mask {
			high[i] = first[i] | ^m
			if rest := ^m; rest&(rest+1) != 0 || i > 0 && m != 0 && o.mask[i-1] != 0xff {
				return Condition{}
			}
		}
		last = high
	case op == unix.NFT_CMP_LTE:
		first, last = low, first
	case op == unix.NFT_CMP_GTE:
		last = high
	case op > unix.NFT_CMP_NEQ:
		return Condition{}
	}
	c.Ranges = c.Field.fills(first, last, ipv6)
	return c
}

// targetVerdict returns the verdict of a target of iptables, which may be CT with --notrack.
func targetVerdict(name string, notrack bool) verdict {
	switch name {
	case "REJECT", "DROP":
		return verdict{code: int32(nfnl.Drop)}
	case "DNAT", "REDIRECT":
		return verdict{code: int32(nfnl.Accept), diverts: Redirected}
	case "ACCEPT", "SNAT", "MASQUERADE", "NETMAP", "TPROXY":
		return verdict{code: int32(nfnl.Accept)}
	case "CT", "NOTRACK":
		if notrack || name != "CT" {
			return verdict{code: unix.NFT_CONTINUE, diverts: NotTracked}
		}
	}
	return verdict{code: unix.NFT_CONTINUE} // LOG, MARK and the like
}

// targetEffect is what a target of iptables does beside its verdict; it "may change" packets if it is not known.
func targetEffect(name string) string {
	if e := effects[name]; e != "" {
		return e
	}
	if slices.Contains([]string{
		"", "ERROR", "standard", "REJECT", "DROP", "ACCEPT", "RETURN", "DNAT", "REDIRECT", "SNAT", "MASQUERADE", "NETMAP", "TPROXY", "CT", "NOTRACK",
		"TCPMSS", "CHECKSUM", "RATEEST", "IDLETIMER", "LED", "TRACE", "AUDIT",
	}, name) {
		return ""
	}
	return "may change"
}

// compare compares a field with a value. Of a field that is known in part, it compares the least and the most that it can be.
func compare(f field, op uint32, want []byte) matching {
	if len(f.value) < len(want) {
		return maybe
	}
	least, most, equal := make([]byte, len(want)), make([]byte, len(want)), yes
	for i, known := range f.known[:len(want)] {
		least[i], most[i] = f.value[i]&known, f.value[i]|^known
		if (f.value[i]^want[i])&known != 0 {
			equal = no
		}
	}
	if equal == yes && !bytes.Equal(least, most) {
		equal = maybe
	}
	below := func(limit int) matching { // limit is 0 for less than want, and 1 for want itself, too
		return (matchingOf(bytes.Compare(most, want) < limit) + matchingOf(bytes.Compare(least, want) < limit)) / 2
	}
	switch op {
	case unix.NFT_CMP_EQ:
		return equal
	case unix.NFT_CMP_NEQ:
		return yes - equal
	case unix.NFT_CMP_LT:
		return below(0)
	case unix.NFT_CMP_LTE:
		return below(1)
	case unix.NFT_CMP_GT:
		return yes - below(1)
	case unix.NFT_CMP_GTE:
		return yes - below(0)
	}
	return maybe
}

func matchingOf(b bool) matching {
	if b {
		return yes
	}
	return no
}

// lookup evaluates a look-up in a set or a map. If it is in a verdict map and not certain, the outcomes are all, and ok is
// false.
func (w *walker) lookup(data []byte, o *outcome, regs *registers) (all []outcome, result matching, ok bool) {
	name := nfnl.Text(data, unix.NFTA_LOOKUP_SET)
	i := slices.IndexFunc(w.sets, func(s nfnl.Set) bool { return s.Name == name })
	if i < 0 {
		o.and(Condition{}, true)
		return nil, maybe, true
	}
	set := w.sets[i]
	k, is := regs.load(registerAt(data, unix.NFTA_LOOKUP_SREG), int(set.KeyLen))
	inverted := nfnl.Num(data, unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0
	verdicts := set.DataType == nfnl.TypeVerdict
	unknown := slices.ContainsFunc(k.known, func(b byte) bool { return b != 0xff })
	if !unknown && !verdicts {
		has, err := w.conn.Has(w.table, name, k.value)
		if err == nil {
			return nil, matchingOf(has != inverted), true
		}
	}
	var elements []nfnl.Element
	simple := is.mask == nil && is.field != Other && is.field != mark && int(set.KeyLen) == is.field.width(w.packet.isIPv6())
	err := nfnl.Undisturbed(func() error {
		elements = nil
		return w.conn.Elements(w.table, name, func(e nfnl.Element) {
			e.Key = bytes.Clone(e.Key)
			elements = append(elements, e)
		})
	})
	slices.SortFunc(elements, func(a, b nfnl.Element) int { // the end of an interval is before the begin of the next
		return cmp.Or(bytes.Compare(a.Key, b.Key), map[bool]int{true: -1, false: 1}[a.End])
	})
	var ranges []Range
	found, v, targets := no, verdict{}, map[verdict][]Range{}
	const mostElements = 1024 // of a set that are looked at one by one
	simple = simple && len(elements) <= mostElements
	for i, e := range elements {
		w.note(e.Key, []byte(e.Chain), []byte{byte(e.Verdict)})
		if e.End {
			continue
		}
		to := verdict{code: int32(e.Verdict), chain: e.Chain}
		if !unknown && bytes.Equal(e.Key, k.value) {
			found, v = yes, to
		}
		one := Range{e.Key, e.Key}
		if set.Flags&unix.NFT_SET_INTERVAL != 0 {
			if one.Last = bytes.Repeat([]byte{0xff}, len(e.Key)); i+1 < len(elements) {
				one.Last = nfnl.Before(elements[i+1].Key)
			}
		}
		ranges = append(ranges, one)
		targets[to] = append(targets[to], one)
	}
	interval := set.Flags&unix.NFT_SET_INTERVAL != 0
	expires := set.Flags&unix.NFT_SET_TIMEOUT != 0 // elements do, which is no change of the ruleset
	o.expires = o.expires || expires
	varies := is.varies || set.Flags&unix.NFT_SET_EVAL != 0 || w.filled[name] || expires && (inverted || verdicts) || err != nil
	switch {
	case verdicts && found == yes:
		o.v = v
		return nil, yes, true
	case verdicts && !unknown && !interval && err == nil:
		return nil, no, true
	case verdicts:
		for to, keys := range targets {
			one := *o
			one.v, one.match = to, maybe
			one.when = slices.Clone(o.when)
			if !simple || varies {
				keys = nil
			}
			one.and(Condition{Field: is.field, Ranges: keys}, varies)
			all = append(all, one)
		}
		slices.SortFunc(all, func(a, b outcome) int {
			return cmp.Or(cmp.Compare(a.v.chain, b.v.chain), cmp.Compare(a.v.code, b.v.code))
		})
		return all, maybe, false
	case !simple || varies || len(ranges) == 0:
		o.and(Condition{}, varies)
	default:
		o.and(Condition{Field: is.field, Not: inverted, Ranges: ranges}, varies)
	}
	return nil, maybe, true
}
