// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// A tree is how a packet finds the rule of its frontend among many: a binary tree over the
// bits of address, protocol and port. Where frontends differ in a bit, a rule sends those that
// have it set to another chain (goto), and the chain goes on with the others. So each bit
// costs one rule, and on average a packet meets two rules for each chain on its way. Bits in
// which no two frontends differ are not tested.
//
// In the words of iptables, a rule matches a prefix of the address, or the whole address and
// a protocol, or also a range of ports. The rule of a frontend matches its whole key.
//
// The order of rules in a chain is the tree's invariant (layout): a rule may match packets of
// frontends that an earlier rule of the chain has matched, but no packet of a frontend that a
// later rule leads to. So of two rules whose prefixes contain each other, the longer is first.
//
// Names and rules of all chains follow from the keys alone: a tree that was changed often is
// the same as one made at once. A change of a frontend rewrites the chain that has its rule,
// and seldom one that leads there.

const (
	// bucket is how many rules of frontends follow each other in a chain.
	bucket = 4

	// nf_tables allows 16 chains on the way of a packet, including those left by a
	// goto. These are the numbers that are left for branches below a tree's first chain.
	clusterBranches  = 10
	externalBranches = 7
	nodeBranches     = 6

	// x_tables allows any number. There is a bit for each.
	anyBranches = 8 * len(treeKey{})
)

// branches is how many branches may follow each other: in the tree of ClusterIPs and
// those that are entered as late, in those of external addresses, and in those of NodePorts.
func branches(v Variant) (cluster, external, node int) {
	if v == Legacy {
		return anyBranches, anyBranches, anyBranches
	}
	return clusterBranches, externalBranches, nodeBranches
}

// tree is one tree.
type tree struct {
	name      string // of its first chain
	head      string // rules before its own in that chain
	direction string // "-d" or "-s": which address it is about; "" for a protocol and a port alone
	branches  int    // at most

	leaves []leaf // in order
	edits  []edit // not written yet
	root   *branch
}

// leaf is the rule for one key.
type leaf struct {
	key  treeKey
	rule string
}

// branch is a chain of a tree.
type branch struct {
	name  string
	bits  int // how many of the key's first bits lead to it
	key   treeKey
	below []*branch

	from, to int // its leaves; only while it is being written
}

// edit sets or deletes the leaf of a key.
type edit struct {
	leaf
	gone bool
}

func (t *tree) edit(key treeKey, rule string, gone bool) {
	t.edits = append(t.edits, edit{leaf{key, rule}, gone})
}

// write makes edits, of which the last one for a key counts, and writes chains that differ.
func (t *tree) write(out *script) {
	if len(t.edits) == 0 && t.root != nil {
		return
	}
	slices.SortStableFunc(t.edits, func(a, b edit) int { return a.key.compare(b.key) })
	t.leaves = merge(t.leaves, t.edits)
	if t.root == nil {
		t.root = &branch{name: t.name}
	}
	t.root.from, t.root.to = 0, len(t.leaves)
	t.writeBranch(out, t.root, t.branches)
	t.edits = nil
}

// merge returns the leaves after edits. Both are in order.
func merge(leaves []leaf, edits []edit) []leaf {
	out := make([]leaf, 0, len(leaves)+len(edits))
	for i, e := range edits {
		if i+1 < len(edits) && edits[i+1].key == e.key {
			continue
		}
		n := sort.Search(len(leaves), func(i int) bool { return leaves[i].key.compare(e.key) >= 0 })
		out, leaves = append(out, leaves[:n]...), leaves[n:]
		if len(leaves) > 0 && leaves[0].key == e.key {
			leaves = leaves[1:]
		}
		if !e.gone {
			out = append(out, e.leaf)
		}
	}
	return append(out, leaves...)
}

// writeBranch writes a chain and those below it that edits are about.
func (t *tree) writeBranch(out *script, b *branch, left int) {
	var text bytes.Buffer
	if b == t.root {
		text.WriteString(t.head)
	}
	former := b.below
	b.below = t.layout(&text, b.from, b.to, left)
	out.chain(b.name, text.Bytes())
	for i, now := range b.below {
		if was := slices.IndexFunc(former, func(f *branch) bool { return f.name == now.name }); was >= 0 {
			former[was].from, former[was].to = now.from, now.to
			now = former[was]
			b.below[i] = now
			former = slices.Delete(former, was, was+1)
			first, last := now.key.upTo(now.bits, false), now.key.upTo(now.bits, true)
			at := sort.Search(len(t.edits), func(i int) bool { return t.edits[i].key.compare(first) >= 0 })
			if at == len(t.edits) || t.edits[at].key.compare(last) > 0 { // none is about keys of the branch
				continue
			}
		}
		t.writeBranch(out, now, left-1)
	}
	for _, gone := range former {
		gone.drop(out)
	}
}

func (b *branch) drop(out *script) {
	out.drop(b.name)
	for _, c := range b.below {
		c.drop(out)
	}
}

// layout writes the rules of a chain for the leaves in [from, to), in the order that the tree
// needs, and returns the branches that the chain goes to. Left is how many more branches may
// follow each other.
//
// Each round takes the leaves at the end of the range, those with the first bit set in which
// the range differs. Their rule tests no later bit, so it matches no leaf before them.
func (t *tree) layout(text *bytes.Buffer, from, to, left int) (below []*branch) {
	for to-from > bucket && left > 0 {
		middle, end, part := t.split(from, to), to, ""
		// If going right every time takes more branches than are left, the right half of
		// the right half gets a branch of its own, before that of the rest, which has a
		// shorter prefix. For two bits that makes two and a half rules on average
		// instead of two.
		if (to-from)>>left > 3 && to-middle > bucket {
			end, part = t.split(middle, to), "half"
			below = append(below, t.goTo(text, middle, end, to, ""))
		}
		below = append(below, t.goTo(text, from, middle, end, part))
		to = middle
	}
	for _, l := range t.leaves[from:to] {
		text.WriteString(l.rule)
		text.WriteByte('\n')
	}
	return below
}

// split returns where the leaves of [from, to) begin that have the first differing bit set.
func (t *tree) split(from, to int) int {
	bit := firstDifference(t.leaves[from].key, t.leaves[to-1].key)
	return from + sort.Search(to-from, func(i int) bool { return t.leaves[from+i].key.bit(bit) })
}

// goTo writes the rule for the branch of the leaves in [from, to). The bits that it tests end
// with the first in which they differ from those in [before, from). Part is not empty if an
// earlier rule has some of the leaves with these bits; the branch has another name then.
func (t *tree) goTo(text *bytes.Buffer, before, from, to int, part string) *branch {
	b := &branch{key: t.leaves[from].key, from: from, to: to}
	b.bits = firstDifference(t.leaves[before].key, b.key) + 1
	b.key = b.key.upTo(b.bits, false)
	b.name = branchPrefix + hashOf(t.name, string(b.key[:]), strconv.Itoa(b.bits), part)
	text.WriteString(b.key.test(b.bits, t.direction))
	text.WriteString(" -g ")
	text.WriteString(b.name)
	text.WriteByte('\n')
	return b
}

// treeKey is what a tree is ordered by, as a string of bits: an address in 16 bytes,
// a protocol's code, and a port. A tree of addresses has zeros for the last two.
type treeKey [19]byte

const (
	addrBits  = 128
	protoBits = addrBits + 8 // of which the last two matter
	v4Bits    = addrBits - 32
)

// protocols by their codes: the first bit tells SCTP from the others, the second UDP
// from TCP.
var protocols = [...]desired.Protocol{0: desired.TCP, 1: desired.UDP, 2: desired.SCTP}

func frontendTreeKey(f desired.FrontendKey) (k treeKey) {
	k = addrTreeKey(f.Addr())
	for code, p := range protocols {
		if p == f.Protocol {
			k[16] = byte(code)
		}
	}
	binary.BigEndian.PutUint16(k[17:], f.Port())
	return k
}

func addrTreeKey(a netip.Addr) (k treeKey) {
	ip := a.As16()
	copy(k[:], ip[:])
	return k
}

func (k treeKey) compare(l treeKey) int { return bytes.Compare(k[:], l[:]) }

func (k treeKey) addr() netip.Addr { return netip.AddrFrom16([16]byte(k[:16])).Unmap() }

// bit is the bit at a position, from the front.
func (k treeKey) bit(i int) bool { return k[i/8]&(0x80>>(i%8)) != 0 }

// upTo is the key's first bits, and zeros or ones after them.
func (k treeKey) upTo(n int, ones bool) treeKey {
	for i := n / 8; i < len(k); i++ {
		mask := byte(0xff)
		if i == n/8 {
			mask >>= n % 8
		}
		if ones {
			k[i] |= mask
		} else {
			k[i] &^= mask
		}
	}
	return k
}

// firstDifference is the first bit in which two keys differ.
func firstDifference(a, b treeKey) int {
	for i := range a {
		if x := a[i] ^ b[i]; x != 0 {
			return i*8 + bits.LeadingZeros8(x)
		}
	}
	return len(a) * 8
}

// test matches packets whose key has the same first bits as k. Direction is as in tree.
func (k treeKey) test(n int, direction string) string {
	first := k.upTo(n, false)
	addr, bits := first.addr(), min(n, addrBits)
	if addr.Is4() {
		bits -= v4Bits
	}
	match := ""
	if direction != "" {
		match = fmt.Sprintf("%s %s/%d ", direction, addr, bits)
	}
	switch {
	case n <= addrBits:
		return strings.TrimSpace(match)
	case n <= protoBits:
		return match + "-p " + protocolName(k.protocol())
	}
	return fmt.Sprintf("%s%s --dport %d:%d", match, matchProtocol(k.protocol()), first.port(), k.upTo(n, true).port())
}

func (k treeKey) protocol() desired.Protocol { return protocols[k[16]] }

func (k treeKey) port() uint16 { return binary.BigEndian.Uint16(k[17:]) }

// protocolName is the protocol as iptables writes it.
func protocolName(p desired.Protocol) string { return strings.ToLower(p.String()) }

// matchProtocol begins a match of ports.
func matchProtocol(p desired.Protocol) string {
	name := protocolName(p)
	return "-p " + name + " -m " + name
}

// matchFrontend matches packets to a frontend.
func matchFrontend(f desired.FrontendKey) string {
	match := fmt.Sprintf("%s --dport %d", matchProtocol(f.Protocol), f.Port())
	if !f.OnNode() {
		match = fmt.Sprintf("-d %s/%d %s", f.Addr(), f.Addr().BitLen(), match)
	}
	return match
}
