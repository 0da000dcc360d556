// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// AddElement adds an element to a set, or an element with a value to a map. The comment may be empty. If the element
// exists with the same value, it is not changed. If it exists with another value, the batch fails (EEXIST).
func (b *Batch) AddElement(t Table, s *Set, key, value []byte, comment string) {
	at := b.element(unix.NFT_MSG_NEWSETELEM, t, s, key)
	b.value(value)
	b.buf.comment(unix.NFTA_SET_ELEM_USERDATA, comment)
	b.buf.close(at)
}

func (b *Batch) value(value []byte) {
	if len(value) > 0 {
		data := b.buf.open(unix.NFTA_SET_ELEM_DATA)
		b.buf.bytes(unix.NFTA_DATA_VALUE, value)
		b.buf.close(data)
	}
}

// AddElementWith adds an element with a stateful expression, such as a limit, to a set with the
// flag NFT_SET_EVAL. Commit returns an error if the expression cannot be encoded.
func (b *Batch) AddElementWith(t Table, s *Set, key []byte, e expr.Any) {
	at := b.element(unix.NFT_MSG_NEWSETELEM, t, s, key)
	b.expression(unix.NFTA_SET_ELEM_EXPR, t, e)
	b.buf.close(at)
}

// AddElementFor adds an element that the kernel deletes after a time of at least a millisecond, to a set with the flag
// NFT_SET_TIMEOUT. An existing element keeps its timeout.
func (b *Batch) AddElementFor(t Table, s *Set, key []byte, d time.Duration) {
	at := b.element(unix.NFT_MSG_NEWSETELEM, t, s, key)
	ms := uint64(max(d.Milliseconds(), 1))
	b.buf.bytes(unix.NFTA_SET_ELEM_TIMEOUT, binary.BigEndian.AppendUint64(nil, ms))
	b.buf.close(at)
}

// Verdict says what happens to a packet, such as how an element of a verdict map enters its chain.
type Verdict int32

// Verdicts. The first two name a chain.
const (
	Goto   Verdict = unix.NFT_GOTO // does not return
	Jump   Verdict = unix.NFT_JUMP
	Drop   Verdict = 0 // NF_DROP
	Accept Verdict = 1 // NF_ACCEPT
)

// AddVerdict adds an element with a chain to a verdict map.
func (b *Batch) AddVerdict(t Table, s *Set, key []byte, v Verdict, chain string) {
	at := b.element(unix.NFT_MSG_NEWSETELEM, t, s, key)
	data := b.buf.open(unix.NFTA_SET_ELEM_DATA)
	verdict := b.buf.open(unix.NFTA_DATA_VERDICT)
	b.buf.be32(unix.NFTA_VERDICT_CODE, uint32(v))
	b.buf.string(unix.NFTA_VERDICT_CHAIN, chain)
	b.buf.close(verdict)
	b.buf.close(data)
	b.buf.close(at)
}

// AddInterval adds an interval of keys to a set with the flag NFT_SET_INTERVAL:
// from the first to the last, taken as numbers in network byte order, with the value of a map. Intervals
// may touch but not overlap (else EEXIST or ENOTEMPTY).
func (b *Batch) AddInterval(t Table, s *Set, first, last []byte, value ...byte) {
	b.interval(unix.NFT_MSG_NEWSETELEM, t, s, first, last, value)
}

// DeleteInterval deletes an interval as it was added (else ENOENT).
func (b *Batch) DeleteInterval(t Table, s *Set, first, last []byte) {
	b.interval(unix.NFT_MSG_DELSETELEM, t, s, first, last, nil)
}

// interval writes the kernel's two elements of an interval: its first key, and the key after its last, with a flag. An
// interval up to the largest key has no second element. Both are in one message: Linux 7.0 takes a first key at the end
// of a message for an interval without an end, and refuses it with EEXIST.
func (b *Batch) interval(msg uint16, t Table, s *Set, first, last, value []byte) {
	if most := 4 * (len(first) + len(value) + 32); len(b.buf)-b.list > maxElementBytes-most {
		b.endRun()
	}
	start := b.element(msg, t, s, first)
	b.value(value)
	b.buf.close(start)
	end, ok := after(last)
	if !ok {
		return
	}
	at := b.element(msg, t, s, end)
	b.buf.be32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
	b.buf.close(at)
}

// after returns the following key, or false if there is none.
func after(key []byte) ([]byte, bool) {
	next := slices.Clone(key)
	for i := len(next) - 1; i >= 0; i-- {
		if next[i]++; next[i] != 0 {
			return next, true
		}
	}
	return nil, false
}

// Before returns the preceding key, and that of the largest number for 0.
func Before(key []byte) []byte {
	prev := slices.Clone(key)
	for i := len(prev) - 1; i >= 0; i-- {
		if prev[i]--; prev[i] != 0xff {
			break
		}
	}
	return prev
}

// Bounds returns the first and the last address of a range.
func Bounds(p netip.Prefix) (first, last []byte) {
	first = p.Masked().Addr().AsSlice()
	last = slices.Clone(first)
	for i := p.Bits(); i < len(last)*8; i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	return first, last
}

// DeleteElement deletes an element, which must exist (else ENOENT).
func (b *Batch) DeleteElement(t Table, s *Set, key []byte) {
	b.buf.close(b.element(unix.NFT_MSG_DELSETELEM, t, s, key))
}

// element opens an element with its key. It continues the open message if the element
// belongs there and fits, and starts a new message otherwise.
func (b *Batch) element(msg uint16, t Table, s *Set, key []byte) int {
	run := runKey{msg, t, s.Name}
	if b.run != run || len(b.buf)-b.list > maxElementBytes {
		flags := uint16(0)
		if msg == unix.NFT_MSG_NEWSETELEM {
			flags = unix.NLM_F_CREATE
		}
		b.begin(msg, flags, t, s.Name)
		b.list = b.buf.open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		b.run = run
	}
	b.elements++
	at := b.buf.open(unix.NFTA_LIST_ELEM)
	k := b.buf.open(unix.NFTA_SET_ELEM_KEY)
	b.buf.bytes(unix.NFTA_DATA_VALUE, key)
	b.buf.close(k)
	return at
}

// endRun completes the open element message.
func (b *Batch) endRun() {
	if b.run.set == "" {
		return
	}
	b.run = runKey{}
	b.buf.close(b.list)
	b.end()
}

// Comments are user data to the kernel: a type, a length and the text with its NUL, as libnftnl writes them. Tables,
// rules and elements all number them 0 (NFTNL_UDATA_TABLE_COMMENT, _RULE_COMMENT, _SET_ELEM_COMMENT).
const (
	udataComment = 0
	MaxComment   = 127 // nft refuses longer ones (NFTNL_UDATA_COMMENT_MAXLEN less the NUL)
)

// parseComment returns the comment in user data, or "".
func parseComment(udata []byte) string {
	for len(udata) >= 2 {
		n := int(udata[1])
		if len(udata) < 2+n {
			return ""
		}
		if udata[0] == udataComment {
			return cString(udata[2 : 2+n])
		}
		udata = udata[2+n:]
	}
	return ""
}
