// SPDX-License-Identifier: Apache-2.0

package see

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

// packet is the first packet of a connection at one hook, or any one of an established connection, or the first reply.
type packet struct {
	protocol    uint8
	established bool
	reply       bool           // the first one, of an established connection
	ipv6        bool           // if both addresses are unknown
	src, dst    netip.AddrPort // an invalid address or the port 0 is unknown
	in, out     link
}

func (p *packet) isIPv6() bool { return p.ipv6 || p.src.Addr().Is6() || p.dst.Addr().Is6() }

// unknownPort is the lowest that a port can be that is not known. That of a client is one that Linux chooses
// (net.ipv4.ip_local_port_range).
func (p *packet) unknownPort() int {
	if p.established && !p.reply {
		return 0
	}
	return 32768
}

// link is the name of an interface, "" for none.
type link struct {
	name  string
	known bool
}

// field is a value with the bytes of it that are known.
type field struct{ value, known []byte }

func knownField(b []byte) field { return field{b, bytes.Repeat([]byte{0xff}, len(b))} }
func unknownField(n int) field  { return field{make([]byte, n), make([]byte, n)} }

// length is an attribute with the length of a field, of which registers have no more than 64 bytes.
func length(b []byte, typ uint16) int { return int(min(num(b, typ), 64)) }

// header returns the network header or the transport header, by the base of a payload expression.
func (p *packet) header(base uint32) (h field) {
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
		set(protocolAt, p.protocol)
		if p.dst.Addr().IsValid() {
			set(dst, p.dst.Addr().AsSlice()...)
		}
		if p.src.Addr().IsValid() {
			set(src, p.src.Addr().AsSlice()...)
		}
	case unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		for at, port := range map[int]uint16{0: p.src.Port(), 2: p.dst.Port()} {
			if low := p.unknownPort(); port != 0 {
				set(at, binary.BigEndian.AppendUint16(nil, port)...)
			} else if low > 0 {
				h.value[at], h.known[at] = byte(low>>8), byte(low>>8)
			}
		}
		const syn, ack = 2, 16
		switch {
		case p.protocol != unix.IPPROTO_TCP:
		case p.reply:
			set(13, syn|ack)
		case p.established:
			h.known[13] = syn
		default:
			set(13, syn)
		}
	}
	return h
}

func (p *packet) meta(key uint32) field {
	name := func(l link) field {
		if !l.known {
			return unknownField(unix.IFNAMSIZ)
		}
		return knownField(append([]byte(l.name), make([]byte, unix.IFNAMSIZ-len(l.name))...))
	}
	index := func(l link) field {
		i, err := net.InterfaceByName(l.name)
		if !l.known || err != nil {
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
		return knownField([]byte{p.protocol})
	case unix.NFT_META_NFPROTO:
		return knownField([]byte{family})
	case unix.NFT_META_PROTOCOL:
		return knownField(binary.BigEndian.AppendUint16(nil, ethernet))
	case unix.NFT_META_IIFNAME:
		return name(p.in)
	case unix.NFT_META_OIFNAME:
		return name(p.out)
	case unix.NFT_META_IIF:
		return index(p.in)
	case unix.NFT_META_OIF:
		return index(p.out)
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

// baseChain is a chain that the kernel calls at a hook, of nf_tables or of iptables-legacy.
type baseChain struct {
	table    string // as it is printed
	name     string
	hook     uint32
	priority int32
	policy   bool    // packets are dropped at the end
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
	packet *packet
	drops  []dropping
	skips  []Skip // rules with effects beside verdicts

	conn  *nfnl.Conn // of a table of nf_tables
	table nfnl.Table
	sets  []nfnl.Set
}

// dropping is a rule or a policy that drops or rejects the packet, or may do so, or keeps Slipstream from
// translating it.
type dropping struct {
	rule    string
	certain bool
	diverts diversion
}

// diversion is how a rule keeps Slipstream from translating a packet: by a priority before which it has to be.
type diversion int32

const (
	notTracked diversion = -200 // priorityConntrack
	redirected diversion = priorityDNAT
)

// drops returns what drops a packet in a base chain.
func (c *baseChain) drops(p *packet) []dropping {
	w := c.walker
	w.packet, w.drops, w.skips = p, nil, nil
	if ends := w.chain(c.name, true, 0); c.policy && ends != yes {
		w.drops = append(w.drops, dropping{rule: "the policy of chain " + c.name, certain: ends == no})
	}
	for i := range w.drops {
		w.drops[i].rule = c.table + ": " + w.drops[i].rule
	}
	w.drops = slices.DeleteFunc(w.drops, func(d dropping) bool {
		begins := !p.established && (c.hook == unix.NF_INET_PRE_ROUTING || c.hook == unix.NF_INET_LOCAL_OUT)
		return d.diverts != 0 && (!begins || c.priority >= int32(d.diverts))
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
	case strings.HasPrefix(name, ourChains):
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
			w.drops = append(w.drops, dropping{r.text, here, v.diverts})
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
			w.drops = append(w.drops, dropping{rule: r.text, certain: here})
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
	diverts diversion // 0 if it does not
}

func attr(b []byte, want uint16) []byte {
	for typ, payload := range nfnl.Attributes(b) {
		if typ == want {
			return payload
		}
	}
	return nil
}

func num(b []byte, typ uint16) uint32 {
	if v := attr(b, typ); len(v) == 4 {
		return binary.BigEndian.Uint32(v)
	}
	return 0
}

func text(b []byte, typ uint16) string { return unix.ByteSliceToString(attr(b, typ)) }

// rule evaluates a rule's expressions. The verdict matters unless the rule does not match.
func (w *walker) rule(r *nfnl.RuleInfo) (match matching, v verdict, effect string) {
	match, v = yes, verdict{code: unix.NFT_CONTINUE}
	registers := unknownField(4 * 20) // 16 bytes for the verdict, then 16 registers of 4 bytes
	at := func(data []byte, typ uint16) int {
		if n := int(num(data, typ)); n >= unix.NFT_REG32_00 && n <= unix.NFT_REG32_15 {
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
		data, result := attr(e, unix.NFTA_EXPR_DATA), yes
		name := text(e, unix.NFTA_EXPR_NAME)
		effect = cmp.Or(effects[name], effect)
		switch name {
		case "payload":
			h := w.packet.header(num(data, unix.NFTA_PAYLOAD_BASE))
			from, n := int(num(data, unix.NFTA_PAYLOAD_OFFSET)), length(data, unix.NFTA_PAYLOAD_LEN)
			if attr(data, unix.NFTA_PAYLOAD_DREG) == nil {
				effect = "changes"
				break
			}
			if from+n > len(h.value) {
				h, from = unknownField(n), 0
			}
			store(data, unix.NFTA_PAYLOAD_DREG, field{h.value[from : from+n], h.known[from : from+n]})
		case "meta":
			if attr(data, unix.NFTA_META_DREG) != nil {
				store(data, unix.NFTA_META_DREG, w.packet.meta(num(data, unix.NFTA_META_KEY)))
			} else {
				effect = "marks"
			}
		case "ct":
			f := unknownField(16)
			if num(data, unix.NFTA_CT_KEY) == unix.NFT_CT_STATE {
				f = knownField(binary.NativeEndian.AppendUint32(nil, w.packet.state()))
			}
			if attr(data, unix.NFTA_CT_DREG) != nil {
				store(data, unix.NFTA_CT_DREG, f)
			} else {
				effect = "marks"
			}
		case "immediate":
			value := attr(data, unix.NFTA_IMMEDIATE_DATA)
			if inner := attr(value, unix.NFTA_DATA_VERDICT); inner != nil {
				v.code, v.chain = int32(num(inner, unix.NFTA_VERDICT_CODE)), text(inner, unix.NFTA_VERDICT_CHAIN)
			} else {
				store(data, unix.NFTA_IMMEDIATE_DREG, knownField(attr(value, unix.NFTA_DATA_VALUE)))
			}
		case "bitwise":
			n := length(data, unix.NFTA_BITWISE_LEN)
			mask, xor := attr(attr(data, unix.NFTA_BITWISE_MASK), unix.NFTA_DATA_VALUE), attr(attr(data, unix.NFTA_BITWISE_XOR), unix.NFTA_DATA_VALUE)
			f := load(data, unix.NFTA_BITWISE_SREG, n)
			out := unknownField(n)
			if len(mask) == n && len(xor) == n && len(f.value) == n {
				for i := range n {
					out.value[i], out.known[i] = f.value[i]&mask[i]^xor[i], f.known[i]|^mask[i]
				}
			}
			store(data, unix.NFTA_BITWISE_DREG, out)
		case "cmp":
			want := attr(attr(data, unix.NFTA_CMP_DATA), unix.NFTA_DATA_VALUE)
			result = compare(load(data, unix.NFTA_CMP_SREG, len(want)), num(data, unix.NFTA_CMP_OP), want)
		case "lookup":
			result = w.lookup(data, &v, func(n int) field { return load(data, unix.NFTA_LOOKUP_SREG, n) })
			if attr(data, unix.NFTA_LOOKUP_DREG) != nil && at(data, unix.NFTA_LOOKUP_DREG) != 0 {
				store(data, unix.NFTA_LOOKUP_DREG, unknownField(16))
			}
		case "reject":
			v = verdict{code: int32(nfnl.Drop)}
		case "nat", "masq", "redir", "tproxy":
			v = verdict{code: int32(nfnl.Accept)}
			if name := text(e, unix.NFTA_EXPR_NAME); name == "redir" || name == "nat" && num(data, unix.NFTA_NAT_TYPE) == unix.NFT_NAT_DNAT {
				v.diverts = redirected
			}
		case "notrack":
			v.diverts = notTracked
		case "target":
			flags := attr(data, unix.NFTA_TARGET_INFO) // of target CT
			v = targetVerdict(text(data, unix.NFTA_TARGET_NAME), len(flags) > 1 && binary.NativeEndian.Uint16(flags)&1 != 0)
			effect = cmp.Or(effects[text(data, unix.NFTA_TARGET_NAME)], effect)
		case "match":
			result = w.packet.xtMatch(text(data, unix.NFTA_MATCH_NAME), attr(data, unix.NFTA_MATCH_INFO))
			effect = cmp.Or(effects[text(data, unix.NFTA_MATCH_NAME)], effect)
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
		return verdict{code: int32(nfnl.Accept), diverts: redirected}
	case "ACCEPT", "SNAT", "MASQUERADE", "NETMAP", "TPROXY":
		return verdict{code: int32(nfnl.Accept)}
	case "CT", "NOTRACK":
		if notrack || name != "CT" {
			return verdict{code: unix.NFT_CONTINUE, diverts: notTracked}
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
	name := text(data, unix.NFTA_LOOKUP_SET)
	i := slices.IndexFunc(w.sets, func(s nfnl.Set) bool { return s.Name == name })
	if i < 0 {
		return maybe
	}
	k := key(int(w.sets[i].KeyLen))
	if slices.ContainsFunc(k.known, func(b byte) bool { return b != 0xff }) {
		return maybe
	}
	inverted := num(data, unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0
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
