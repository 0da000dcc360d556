// SPDX-License-Identifier: Apache-2.0

package nfnl

import "golang.org/x/sys/unix"

// AddElement adds an element to a set, or to a map with its value. The comment
// may be empty. An element that is there already with the same value is left
// as it is; with another value the batch fails.
func (b *Batch) AddElement(t Table, s *Set, key, value []byte, comment string) {
	at := b.element(unix.NFT_MSG_NEWSETELEM, t, s, key)
	if len(value) > 0 {
		data := b.buf.open(unix.NFTA_SET_ELEM_DATA)
		b.buf.bytes(unix.NFTA_DATA_VALUE, value)
		b.buf.close(data)
	}
	if comment != "" {
		b.elementComment(comment)
	}
	b.buf.close(at)
}

// AddVerdict adds to a verdict map the element that sends its key to a chain
// (goto, so that no return address is kept).
func (b *Batch) AddVerdict(t Table, s *Set, key []byte, chain string) {
	at := b.element(unix.NFT_MSG_NEWSETELEM, t, s, key)
	data := b.buf.open(unix.NFTA_SET_ELEM_DATA)
	verdict := b.buf.open(unix.NFTA_DATA_VERDICT)
	code := int32(unix.NFT_GOTO)
	b.buf.be32(unix.NFTA_VERDICT_CODE, uint32(code))
	b.buf.string(unix.NFTA_VERDICT_CHAIN, chain)
	b.buf.close(verdict)
	b.buf.close(data)
	b.buf.close(at)
}

// DeleteElement deletes an element, which must exist (else ENOENT).
func (b *Batch) DeleteElement(t Table, s *Set, key []byte) {
	b.buf.close(b.element(unix.NFT_MSG_DELSETELEM, t, s, key))
}

// element opens an element with its key, in the message that is open when it
// fits there and belongs there, else in a new one.
func (b *Batch) element(msg uint16, t Table, s *Set, key []byte) int {
	run := runKey{msg, t, s.Name}
	if b.run != run || len(b.buf)-b.list > maxElementBytes {
		flags := uint16(0)
		if msg == unix.NFT_MSG_NEWSETELEM {
			flags = unix.NLM_F_CREATE
		}
		b.begin(msg, flags, t.Family)
		b.buf.string(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
		b.buf.string(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
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

// Comments are user data to the kernel: a type, a length and the text with its
// NUL, as libnftnl writes them. Tables, rules and elements all number them 0
// (NFTNL_UDATA_TABLE_COMMENT, _RULE_COMMENT, _SET_ELEM_COMMENT).
const (
	udataComment = 0
	maxComment   = 127 // nft refuses longer ones (NFTNL_UDATA_COMMENT_MAXLEN less the NUL)
)

func userComment(s string) []byte {
	s = s[:min(len(s), maxComment)]
	b := append([]byte{udataComment, byte(len(s) + 1)}, s...)
	return append(b, 0)
}

// elementComment is userComment without an allocation.
func (b *Batch) elementComment(s string) {
	s = s[:min(len(s), maxComment)]
	b.buf.header(unix.NFTA_SET_ELEM_USERDATA, 2+len(s)+1)
	b.buf = append(b.buf, udataComment, byte(len(s)+1))
	b.buf = append(b.buf, s...)
	b.buf = append(b.buf, 0)
	b.buf.pad()
}

// parseComment is the comment in user data, or nothing.
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
