// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"encoding/binary"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/sock"
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

	// The open element message, if any: consecutive elements of one set and one operation share a message.
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

// begin starts a message about a table, or about an object in it; end must follow.
func (b *Batch) begin(msg, flags uint16, t Table, object string) {
	b.endRun()
	if b.spill != nil && len(b.buf) >= Pieces {
		b.spill()
	}
	b.messages = append(b.messages, len(b.buf))
	b.buf.message(uint16(unix.NFNL_SUBSYS_NFTABLES)<<8|msg, flags, uint8(t.Family), 0)
	b.buf.string(tableName, t.Name)
	if object != "" {
		b.buf.string(objectName(msg), object)
	}
}

// tableName is the attribute with the table in all messages.
const tableName = 1

// objectName returns the attribute with the name of a set, flowtable or counter, or of a rule's
// or an element's chain or set.
func objectName(msg uint16) uint16 {
	if msg == unix.NFT_MSG_NEWCHAIN || msg == unix.NFT_MSG_DELCHAIN {
		return unix.NFTA_CHAIN_NAME
	}
	return 2
}

// message writes a message without further attributes.
func (b *Batch) message(msg, flags uint16, t Table, object string) {
	b.begin(msg, flags, t, object)
	b.end()
}

// end completes the last message.
func (b *Batch) end() {
	at := b.messages[len(b.messages)-1]
	binary.NativeEndian.PutUint32(b.buf[at:], uint32(len(b.buf)-at))
}

// Written returns what the batch adds to a table, as if it had been read, and the elements by set. They share its memory.
func (b *Batch) Written() (t Contents, elements map[string][]Element) {
	elements = map[string][]Element{}
	for h, payload := range sock.Messages(b.Wire()) {
		switch body := payload[nfgenHeaderLen:]; h.Type &^ (uint16(unix.NFNL_SUBSYS_NFTABLES) << 8) {
		case unix.NFT_MSG_NEWCHAIN:
			t.Chains = append(t.Chains, chainInfo(body))
		case unix.NFT_MSG_NEWSET:
			t.Sets = append(t.Sets, setInfo(body))
		case unix.NFT_MSG_NEWRULE:
			t.Rules = append(t.Rules, ruleInfo(body))
		case unix.NFT_MSG_NEWSETELEM:
			set := Text(body, objectName(unix.NFT_MSG_NEWSETELEM))
			for _, e := range Attributes(Attr(body, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
				elements[set] = append(elements[set], parseElement(e))
			}
		}
	}
	return t, elements
}

// AddTable makes sure that a table exists. The nft command prints the comment.
func (b *Batch) AddTable(t Table, comment string) { b.addTable(t, comment, 0) }

// AddDormantTable creates a table, which must not exist. Its chains are not attached to their hooks.
func (b *Batch) AddDormantTable(t Table) { b.addTable(t, "", tableDormant) }

// AddOwnedTable creates a table that belongs to the socket of the Conn which commits the batch (Linux
// 5.12). Nobody else can change it, and the kernel deletes it when the socket is closed, also when
// the process is killed.
func (b *Batch) AddOwnedTable(t Table) { b.addTable(t, "", tableOwner) }

func (b *Batch) addTable(t Table, comment string, flags uint32) {
	b.begin(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, t, "")
	b.buf.be32(unix.NFTA_TABLE_FLAGS, flags)
	b.buf.comment(nftaTableUserdata, comment)
	b.end()
}

// DeleteTable deletes a table with its content. It must exist.
func (b *Batch) DeleteTable(t Table) { b.message(unix.NFT_MSG_DELTABLE, 0, t, "") }

// AddChain makes sure that a chain exists.
func (b *Batch) AddChain(t Table, c Chain) {
	b.begin(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, t, c.Name)
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
func (b *Batch) DeleteChain(t Table, name string) { b.message(unix.NFT_MSG_DELCHAIN, 0, t, name) }

// AddSet makes sure that a set or map exists. A set of the same name and another type is an error (EEXIST).
func (b *Batch) AddSet(t Table, s *Set) {
	flags := s.Flags
	if s.isMap() {
		flags |= unix.NFT_SET_MAP
	}
	b.begin(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, t, s.Name)
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

// DeleteSet deletes a set or map, which must exist and which no rule may use.
func (b *Batch) DeleteSet(t Table, name string) { b.message(unix.NFT_MSG_DELSET, 0, t, name) }

// FlushSet deletes all elements of a set or map, which must exist.
func (b *Batch) FlushSet(t Table, s *Set) { b.message(unix.NFT_MSG_DELSETELEM, 0, t, s.Name) }

// AddCounter makes sure that a named counter exists. An existing counter is not reset.
func (b *Batch) AddCounter(t Table, name string) {
	b.begin(unix.NFT_MSG_NEWOBJ, unix.NLM_F_CREATE, t, name)
	b.buf.be32(unix.NFTA_OBJ_TYPE, unix.NFT_OBJECT_COUNTER)
	b.buf.close(b.buf.open(unix.NFTA_OBJ_DATA))
	b.end()
}
