// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// maxElementBytes limits the elements of one message. A nested attribute holds at most
// 64 KiB, because its length is a 16-bit number.
const maxElementBytes = 60 << 10

// Batch is one nf_tables transaction under construction. The zero value is an empty
// batch. A Batch is not safe for concurrent use. Reset allows its memory to be reused.
type Batch struct {
	buf      attrs
	messages []int // offset of each message
	elements int
	err      error // the first expression that cannot be encoded

	// The open element message, if any: consecutive elements of one set
	// and one operation share a message.
	run  runKey
	list int // offset of the run's list of elements

	spill   func() // hands the messages over; see CommitPieces
	spilled int    // bytes that it handed over
}

// runKey is what elements of one message have in common.
type runKey struct {
	msg   uint16
	table Table
	set   string
}

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() {
	*b = Batch{buf: b.buf[:0], messages: b.messages[:0], spill: b.spill}
}

// Empty reports whether the batch has no messages.
func (b *Batch) Empty() bool { return len(b.messages) == 0 }

// Elements is the number of set and map elements the batch adds and deletes.
func (b *Batch) Elements() int { return b.elements }

// Grow allocates space for n more bytes.
func (b *Batch) Grow(n int) { b.buf = slices.Grow(b.buf, n) }

// Len is the size of the batch in bytes.
func (b *Batch) Len() int { return b.spilled + len(b.buf) }

// Wire returns the encoded batch.
func (b *Batch) Wire() []byte {
	b.endRun()
	return b.buf
}

// begin starts a message; end must follow.
func (b *Batch) begin(msg uint16, flags uint16, family Family) {
	b.endRun()
	if b.spill != nil && len(b.buf) >= Pieces {
		b.spill()
	}
	b.messages = append(b.messages, len(b.buf))
	b.buf.message(uint16(unix.NFNL_SUBSYS_NFTABLES)<<8|msg, flags, uint8(family), 0)
}

// end completes the last message.
func (b *Batch) end() {
	at := b.messages[len(b.messages)-1]
	binary.NativeEndian.PutUint32(b.buf[at:], uint32(len(b.buf)-at))
}

// AddTable makes sure that a table exists. The nft command prints the comment.
func (b *Batch) AddTable(t Table, comment string) { b.addTable(t, comment, 0) }

// AddDormantTable creates a table, which must not exist. Its chains are not attached to
// their hooks.
func (b *Batch) AddDormantTable(t Table) { b.addTable(t, "", tableDormant) }

func (b *Batch) addTable(t Table, comment string, flags uint32) {
	b.begin(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, t.Family)
	b.buf.string(unix.NFTA_TABLE_NAME, t.Name)
	b.buf.be32(unix.NFTA_TABLE_FLAGS, flags)
	if comment != "" {
		b.buf.bytes(nftaTableUserdata, userComment(comment))
	}
	b.end()
}

// DeleteTable deletes a table with its content. It must exist.
func (b *Batch) DeleteTable(t Table) {
	b.begin(unix.NFT_MSG_DELTABLE, 0, t.Family)
	b.buf.string(unix.NFTA_TABLE_NAME, t.Name)
	b.end()
}

// AddChain makes sure that a chain exists.
func (b *Batch) AddChain(t Table, c Chain) {
	b.begin(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, t.Family)
	b.buf.string(unix.NFTA_CHAIN_TABLE, t.Name)
	b.buf.string(unix.NFTA_CHAIN_NAME, c.Name)
	if h := c.Hook; h != nil {
		at := b.buf.open(unix.NFTA_CHAIN_HOOK)
		b.buf.be32(unix.NFTA_HOOK_HOOKNUM, h.Num)
		b.buf.be32(unix.NFTA_HOOK_PRIORITY, uint32(h.Priority))
		b.buf.close(at)
		b.buf.be32(unix.NFTA_CHAIN_POLICY, 1) // NF_ACCEPT
		b.buf.string(unix.NFTA_CHAIN_TYPE, h.Type)
	}
	b.end()
}

// DeleteChain deletes a chain, which must have no rules and no references.
func (b *Batch) DeleteChain(t Table, name string) {
	b.begin(unix.NFT_MSG_DELCHAIN, 0, t.Family)
	b.buf.string(unix.NFTA_CHAIN_TABLE, t.Name)
	b.buf.string(unix.NFTA_CHAIN_NAME, name)
	b.end()
}

// FlushTable deletes all rules of a table, but not its chains and sets.
func (b *Batch) FlushTable(t Table) {
	b.begin(unix.NFT_MSG_DELRULE, 0, t.Family)
	b.buf.string(unix.NFTA_RULE_TABLE, t.Name)
	b.end()
}

// FlushChain deletes all rules of a chain.
func (b *Batch) FlushChain(t Table, name string) {
	b.begin(unix.NFT_MSG_DELRULE, 0, t.Family)
	b.buf.string(unix.NFTA_RULE_TABLE, t.Name)
	b.buf.string(unix.NFTA_RULE_CHAIN, name)
	b.end()
}

// AddRule appends a rule, which consists of parts, to a chain. The nft command prints the
// comment. Commit returns an error if an expression cannot be encoded.
func (b *Batch) AddRule(t Table, chain, comment string, parts ...[]expr.Any) {
	b.begin(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, t.Family)
	b.buf.string(unix.NFTA_RULE_TABLE, t.Name)
	b.buf.string(unix.NFTA_RULE_CHAIN, chain)
	list := b.buf.open(unix.NFTA_RULE_EXPRESSIONS)
	for _, e := range slices.Concat(parts...) {
		encoded, err := encode(t.Family, e)
		if err != nil && b.err == nil {
			b.err = fmt.Errorf("rule in chain %s of table %s %s: %T: %w", chain, t.Family, t.Name, e, err)
		}
		b.buf.bytes(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, encoded)
	}
	b.buf.close(list)
	if comment != "" {
		b.buf.bytes(unix.NFTA_RULE_USERDATA, userComment(comment))
	}
	b.end()
}

// AddRuleInfo appends a rule, as read by Conn.Rules, to its chain.
func (b *Batch) AddRuleInfo(t Table, r RuleInfo) {
	b.begin(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, t.Family)
	b.buf.string(unix.NFTA_RULE_TABLE, t.Name)
	b.buf.string(unix.NFTA_RULE_CHAIN, r.Chain)
	b.buf.bytes(unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, r.Expressions)
	if len(r.Comment) > 0 {
		b.buf.bytes(unix.NFTA_RULE_USERDATA, r.Comment)
	}
	b.end()
}

// AddSet makes sure that a set or map exists. A set of the same name and
// another type is an error (EEXIST).
func (b *Batch) AddSet(t Table, s *Set) {
	flags := s.Flags
	if s.isMap() {
		flags |= unix.NFT_SET_MAP
	}
	b.begin(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, t.Family)
	b.buf.string(unix.NFTA_SET_TABLE, t.Name)
	b.buf.string(unix.NFTA_SET_NAME, s.Name)
	b.buf.be32(unix.NFTA_SET_ID, uint32(len(b.messages)))
	b.buf.be32(unix.NFTA_SET_FLAGS, flags)
	b.buf.be32(unix.NFTA_SET_KEY_TYPE, uint32(s.KeyType))
	b.buf.be32(unix.NFTA_SET_KEY_LEN, s.KeyLen)
	if s.isMap() {
		b.buf.be32(unix.NFTA_SET_DATA_TYPE, uint32(s.DataType))
		if s.DataType != TypeVerdict {
			b.buf.be32(unix.NFTA_SET_DATA_LEN, s.DataLen)
		}
	}
	if s.Size != 0 {
		desc := b.buf.open(unix.NFTA_SET_DESC)
		b.buf.be32(unix.NFTA_SET_DESC_SIZE, s.Size)
		b.buf.close(desc)
	}
	if u := s.userdata(); u != "" {
		b.buf.bytes(unix.NFTA_SET_USERDATA, []byte(u))
	}
	b.end()
}

// FlushSet deletes all elements of a set or map, which must exist.
func (b *Batch) FlushSet(t Table, s *Set) {
	b.begin(unix.NFT_MSG_DELSETELEM, 0, t.Family)
	b.buf.string(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
	b.buf.string(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
	b.end()
}
