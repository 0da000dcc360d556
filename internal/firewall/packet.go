// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
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
		if p.Dst.Addr().IsValid() {
			set(dst, p.Dst.Addr().AsSlice()...)
		}
		if p.Src.Addr().IsValid() {
			set(src, p.Src.Addr().AsSlice()...)
		}
	case unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		for at, port := range map[int]uint16{0: p.Src.Port(), 2: p.Dst.Port()} {
			if low := p.unknownPort(); port != 0 {
				set(at, binary.BigEndian.AppendUint16(nil, port)...)
			} else if low > 0 {
				h.value[at], h.known[at] = byte(low>>8), byte(low>>8)
			}
		}
		const syn, ack = 2, 16
		switch {
		case p.Protocol != unix.IPPROTO_TCP:
		case p.Reply:
			set(13, syn|ack)
		case p.Established:
			h.known[13] = syn
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
	nat      bool    // only first packets pass it
}

// rule is a rule of nf_tables or of iptables-legacy.
type rule struct {
	text string
	eval func() (match matching, v verdict, effect string) // for the walker's packet
}

// walker sends packets through the chains of one table.
type walker struct {
	rules  map[string][]rule // by chain
	packet *Packet
	drops  []Dropping
	skips  []Skip // rules with effects beside verdicts

	conn  *nfnl.Conn // of a table of nf_tables
	table nfnl.Table
	sets  []nfnl.Set
}

// Dropping is a rule or a policy that drops or rejects the packet, or may do so, or keeps Slipstream from
// translating it.
type Dropping struct {
	Rule    string
	Certain bool
	Diverts Diversion
}

// Diversion is how a rule keeps Slipstream from translating a packet: by a priority before which it has to be.
type Diversion int32

const (
	NotTracked Diversion = -200 // priorityConntrack
	Redirected Diversion = PriorityDNAT
)

// PriorityDNAT is the priority at which Slipstream and others translate destinations.
const PriorityDNAT = -100

// Drops returns what drops a packet in a base chain: nothing in one of the proxy's own.
func (c *Chain) Drops(p *Packet) []Dropping {
	w := c.walker
	if w == nil {
		return nil
	}
	w.packet, w.drops, w.skips = p, nil, nil
	if ends := w.chain(c.Name, true, 0); c.Policy && ends != yes {
		w.drops = append(w.drops, Dropping{Rule: "the policy of chain " + c.Name, Certain: ends == no})
	}
	for i := range w.drops {
		w.drops[i].Rule = c.Table + ": " + w.drops[i].Rule
	}
	w.drops = slices.DeleteFunc(w.drops, func(d Dropping) bool {
		begins := !p.Established && (c.Hook == unix.NF_INET_PRE_ROUTING || c.Hook == unix.NF_INET_LOCAL_OUT)
		return d.Diverts != 0 && (!begins || c.Priority >= int32(d.Diverts))
	})
	return w.drops
}

// newWalker reads a table of nf_tables.
func newWalker(conn *nfnl.Conn, t nfnl.Table) (*walker, error) {
	w := &walker{conn: conn, table: t, rules: map[string][]rule{}}
	all, err := conn.Rules(t, "")
	if err != nil {
		return nil, err
	}
	for i := range all {
		r := &all[i]
		text := fmt.Sprintf("chain %s, rule with handle %d", r.Chain, r.Handle)
		if r.Text() != "" {
			text += fmt.Sprintf(", %q", r.Text())
		}
		w.rules[r.Chain] = append(w.rules[r.Chain], rule{
			fmt.Sprintf("%s (nft -a list chain %s %s %s)", text, t.Family, t.Name, r.Chain),
			func() (matching, verdict, string) { return w.rule(r) },
		})
	}
	w.sets, err = conn.Sets(t)
	return w, err
}

// maxDepth is more than the kernel's limit of nested jumps.
const maxDepth = 20

// chain sends the packet through a chain, which it reaches for certain or may reach. It returns
// whether its way through the base chain ends there.
func (w *walker) chain(name string, certain bool, depth int) (ends matching) {
	switch {
	case strings.HasPrefix(name, OurChains):
		return no // of iptables mode
	case depth > maxDepth:
		return maybe
	}
	for _, r := range w.rules[name] {
		match, v, effect := r.eval()
		if match == no {
			continue
		}
		if effect != "" {
			w.skips = append(w.skips, Skip{r.text, effect})
		}
		here := certain && match == yes
		if v.diverts != 0 {
			w.drops = append(w.drops, Dropping{r.text, here, v.diverts})
		}
		switch v.code {
		case unix.NFT_CONTINUE:
			continue
		case unix.NFT_RETURN:
			if match == yes {
				return ends
			}
			certain, ends = false, maybe
			continue
		case unix.NFT_JUMP, unix.NFT_GOTO:
			inner := w.chain(v.chain, here, depth+1)
			if match == yes && (inner == yes || v.code == unix.NFT_GOTO) {
				return max(inner, ends)
			}
			if inner != no || v.code == unix.NFT_GOTO {
				certain, ends = false, maybe
			}
			continue
		case int32(nfnl.Drop):
			w.drops = append(w.drops, Dropping{Rule: r.text, Certain: here})
		}
		if match == yes { // dropped or accepted
			return yes
		}
		certain, ends = false, maybe
	}
	return ends
}

type verdict struct {
	code    int32
	chain   string
	diverts Diversion // 0 if it does not
}

// rule evaluates a rule's expressions. The verdict matters unless the rule does not match.
func (w *walker) rule(r *nfnl.RuleInfo) (match matching, v verdict, effect string) {
	match, v = yes, verdict{code: unix.NFT_CONTINUE}
	registers := unknownField(4 * 20) // 16 bytes for the verdict, then 16 registers of 4 bytes
	at := func(data []byte, typ uint16) int {
		if n := int(nfnl.Num(data, typ)); n >= unix.NFT_REG32_00 && n <= unix.NFT_REG32_15 {
			return 16 + (n-unix.NFT_REG32_00)*4
		} else if n <= unix.NFT_REG_4 {
			return n * 16
		}
		return 0
	}
	store := func(data []byte, typ uint16, f field) {
		copy(registers.value[at(data, typ):], f.value)
		copy(registers.known[at(data, typ):], f.known)
	}
	load := func(data []byte, typ uint16, n int) field {
		from := at(data, typ)
		to := min(from+n, len(registers.value))
		return field{registers.value[from:to], registers.known[from:to]}
	}
	for _, e := range nfnl.Attributes(r.Expressions) {
		data, result := nfnl.Attr(e, unix.NFTA_EXPR_DATA), yes
		name := nfnl.Text(e, unix.NFTA_EXPR_NAME)
		effect = cmp.Or(effects[name], effect)
		switch name {
		case "payload":
			h := w.packet.header(nfnl.Num(data, unix.NFTA_PAYLOAD_BASE))
			from, n := int(nfnl.Num(data, unix.NFTA_PAYLOAD_OFFSET)), length(data, unix.NFTA_PAYLOAD_LEN)
			if nfnl.Attr(data, unix.NFTA_PAYLOAD_DREG) == nil {
				effect = "changes"
				break
			}
			if from+n > len(h.value) {
				h, from = unknownField(n), 0
			}
			store(data, unix.NFTA_PAYLOAD_DREG, field{h.value[from : from+n], h.known[from : from+n]})
		case "meta":
			if nfnl.Attr(data, unix.NFTA_META_DREG) != nil {
				store(data, unix.NFTA_META_DREG, w.packet.meta(nfnl.Num(data, unix.NFTA_META_KEY)))
			} else {
				effect = "marks"
			}
		case "ct":
			f := unknownField(16)
			if nfnl.Num(data, unix.NFTA_CT_KEY) == unix.NFT_CT_STATE {
				f = knownField(binary.NativeEndian.AppendUint32(nil, w.packet.state()))
			}
			if nfnl.Attr(data, unix.NFTA_CT_DREG) != nil {
				store(data, unix.NFTA_CT_DREG, f)
			} else {
				effect = "marks"
			}
		case "immediate":
			value := nfnl.Attr(data, unix.NFTA_IMMEDIATE_DATA)
			if inner := nfnl.Attr(value, unix.NFTA_DATA_VERDICT); inner != nil {
				v.code, v.chain = int32(nfnl.Num(inner, unix.NFTA_VERDICT_CODE)), nfnl.Text(inner, unix.NFTA_VERDICT_CHAIN)
			} else {
				store(data, unix.NFTA_IMMEDIATE_DREG, knownField(nfnl.Attr(value, unix.NFTA_DATA_VALUE)))
			}
		case "bitwise":
			n := length(data, unix.NFTA_BITWISE_LEN)
			mask, xor := nfnl.Attr(nfnl.Attr(data, unix.NFTA_BITWISE_MASK), unix.NFTA_DATA_VALUE), nfnl.Attr(nfnl.Attr(data, unix.NFTA_BITWISE_XOR), unix.NFTA_DATA_VALUE)
			f := load(data, unix.NFTA_BITWISE_SREG, n)
			out := unknownField(n)
			if len(mask) == n && len(xor) == n && len(f.value) == n {
				for i := range n {
					out.value[i], out.known[i] = f.value[i]&mask[i]^xor[i], f.known[i]|^mask[i]
				}
			}
			store(data, unix.NFTA_BITWISE_DREG, out)
		case "cmp":
			want := nfnl.Attr(nfnl.Attr(data, unix.NFTA_CMP_DATA), unix.NFTA_DATA_VALUE)
			result = compare(load(data, unix.NFTA_CMP_SREG, len(want)), nfnl.Num(data, unix.NFTA_CMP_OP), want)
		case "lookup":
			result = w.lookup(data, &v, func(n int) field { return load(data, unix.NFTA_LOOKUP_SREG, n) })
			if nfnl.Attr(data, unix.NFTA_LOOKUP_DREG) != nil && at(data, unix.NFTA_LOOKUP_DREG) != 0 {
				store(data, unix.NFTA_LOOKUP_DREG, unknownField(16))
			}
		case "reject":
			v = verdict{code: int32(nfnl.Drop)}
		case "nat", "masq", "redir", "tproxy":
			v = verdict{code: int32(nfnl.Accept)}
			if name := nfnl.Text(e, unix.NFTA_EXPR_NAME); name == "redir" || name == "nat" && nfnl.Num(data, unix.NFTA_NAT_TYPE) == unix.NFT_NAT_DNAT {
				v.diverts = Redirected
			}
		case "notrack":
			v.diverts = NotTracked
		case "target":
			flags := nfnl.Attr(data, unix.NFTA_TARGET_INFO) // of target CT
			v = targetVerdict(nfnl.Text(data, unix.NFTA_TARGET_NAME), len(flags) > 1 && binary.NativeEndian.Uint16(flags)&1 != 0)
			effect = cmp.Or(effects[nfnl.Text(data, unix.NFTA_TARGET_NAME)], effect)
		case "match":
			result = w.packet.xtMatch(nfnl.Text(data, unix.NFTA_MATCH_NAME), nfnl.Attr(data, unix.NFTA_MATCH_INFO))
			effect = cmp.Or(effects[nfnl.Text(data, unix.NFTA_MATCH_NAME)], effect)
		case "counter", "log", "objref", "dynset", "flow_offload", "last":
		default:
			result = maybe
			registers = unknownField(len(registers.value))
		}
		if match = min(match, result); match == no {
			return no, v, ""
		}
	}
	return match, v, effect
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

// compare compares a field with a value, byte by byte from the first one.
func compare(f field, op uint32, want []byte) matching {
	if len(f.value) < len(want) {
		return maybe
	}
	known := true
	for i := range want {
		if f.known[i] != 0xff {
			known = false
			if (f.value[i]^want[i])&f.known[i] != 0 {
				return matchingOf(op == unix.NFT_CMP_NEQ) // the known bits differ
			}
		} else if f.value[i] != want[i] && (op == unix.NFT_CMP_EQ || op == unix.NFT_CMP_NEQ) {
			return matchingOf(op == unix.NFT_CMP_NEQ)
		}
	}
	if !known {
		return maybe
	}
	switch c := bytes.Compare(f.value[:len(want)], want); op {
	case unix.NFT_CMP_EQ:
		return matchingOf(c == 0)
	case unix.NFT_CMP_NEQ:
		return matchingOf(c != 0)
	case unix.NFT_CMP_LT:
		return matchingOf(c < 0)
	case unix.NFT_CMP_LTE:
		return matchingOf(c <= 0)
	case unix.NFT_CMP_GT:
		return matchingOf(c > 0)
	case unix.NFT_CMP_GTE:
		return matchingOf(c >= 0)
	}
	return maybe
}

func matchingOf(b bool) matching {
	if b {
		return yes
	}
	return no
}

// lookup evaluates a look-up in a set or a map, and sets the verdict of a verdict map.
func (w *walker) lookup(data []byte, v *verdict, key func(n int) field) matching {
	name := nfnl.Text(data, unix.NFTA_LOOKUP_SET)
	i := slices.IndexFunc(w.sets, func(s nfnl.Set) bool { return s.Name == name })
	if i < 0 {
		return maybe
	}
	k := key(int(w.sets[i].KeyLen))
	if slices.ContainsFunc(k.known, func(b byte) bool { return b != 0xff }) {
		return maybe
	}
	inverted := nfnl.Num(data, unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0
	if w.sets[i].DataType != nfnl.TypeVerdict {
		has, err := w.conn.Has(w.table, name, k.value)
		if err != nil {
			return maybe
		}
		return matchingOf(has != inverted)
	}
	found := no
	err := nfnl.Undisturbed(func() error {
		return w.conn.Elements(w.table, name, func(e nfnl.Element) {
			if bytes.Equal(e.Key, k.value) && !e.End {
				found, *v = yes, verdict{code: int32(e.Verdict), chain: e.Chain}
			}
		})
	})
	if err != nil || found == no && w.sets[i].Flags&unix.NFT_SET_INTERVAL != 0 {
		return maybe
	}
	return found
}
