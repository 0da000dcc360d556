// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Attributes of the data of a counter (enum nft_counter_attributes).
const (
	nftaCounterBytes   = 1
	nftaCounterPackets = 2
)

// AddCounter makes sure that a named counter exists. An existing counter is not reset.
func (b *Batch) AddCounter(t Table, name string) {
	b.begin(unix.NFT_MSG_NEWOBJ, unix.NLM_F_CREATE, t.Family)
	b.buf.string(unix.NFTA_OBJ_TABLE, t.Name)
	b.buf.string(unix.NFTA_OBJ_NAME, name)
	b.buf.be32(unix.NFTA_OBJ_TYPE, unix.NFT_OBJECT_COUNTER)
	b.buf.close(b.buf.open(unix.NFTA_OBJ_DATA))
	b.end()
}

// CountIn returns the expression that counts a packet in a named counter.
func CountIn(name string) []expr.Any {
	return []expr.Any{&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: name}}
}

// Counted returns the number of packets that the rule's counters have counted.
func (r RuleInfo) Counted() (packets uint64) {
	eachAttr(r.Expressions, func(_ uint16, e []byte) bool {
		if cString(findAttr(e, unix.NFTA_EXPR_NAME)) == "counter" {
			packets += be64(findAttr(findAttr(e, unix.NFTA_EXPR_DATA), nftaCounterPackets))
		}
		return true
	})
	return packets
}

// Counter reads a named counter. If it does not exist, the error wraps ENOENT.
func (c *Conn) Counter(t Table, name string) (packets, bytes uint64, err error) {
	var a attrs
	a.string(unix.NFTA_OBJ_TABLE, t.Name)
	a.string(unix.NFTA_OBJ_NAME, name)
	a.be32(unix.NFTA_OBJ_TYPE, unix.NFT_OBJECT_COUNTER)
	err = c.request(unix.NFT_MSG_GETOBJ, 0, uint8(t.Family), a, func(body []byte) {
		data := findAttr(body, unix.NFTA_OBJ_DATA)
		packets, bytes = be64(findAttr(data, nftaCounterPackets)), be64(findAttr(data, nftaCounterBytes))
	})
	return packets, bytes, err
}
