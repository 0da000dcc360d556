// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"bytes"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Same reports whether a rule that was read is one that was sent. The kernel returns some
// attributes in another encoding, and adds defaults.
func (r *RuleInfo) Same(sent *RuleInfo) bool {
	return bytes.Equal(r.Comment, sent.Comment) && normal(r.Expressions) == normal(sent.Expressions)
}

// encodings have, for each expression, the attributes with a register, those with nested data, and
// those that are state or the sender's only.
var encodings = map[string]struct{ registers, data, dropped []uint16 }{
	"bitwise":   {registers: []uint16{unix.NFTA_BITWISE_SREG, unix.NFTA_BITWISE_DREG}, data: []uint16{unix.NFTA_BITWISE_MASK, unix.NFTA_BITWISE_XOR}},
	"cmp":       {registers: []uint16{unix.NFTA_CMP_SREG}, data: []uint16{unix.NFTA_CMP_DATA}},
	"counter":   {dropped: []uint16{nftaCounterBytes, nftaCounterPackets}},
	"ct":        {registers: []uint16{unix.NFTA_CT_DREG, unix.NFTA_CT_SREG}},
	"dynset":    {registers: []uint16{unix.NFTA_DYNSET_SREG_KEY, unix.NFTA_DYNSET_SREG_DATA}, dropped: []uint16{unix.NFTA_DYNSET_SET_ID}},
	"fib":       {registers: []uint16{unix.NFTA_FIB_DREG}},
	"hash":      {registers: []uint16{unix.NFTA_HASH_SREG, unix.NFTA_HASH_DREG}},
	"immediate": {registers: []uint16{unix.NFTA_IMMEDIATE_DREG}, data: []uint16{unix.NFTA_IMMEDIATE_DATA}},
	"lookup":    {registers: []uint16{unix.NFTA_LOOKUP_SREG, unix.NFTA_LOOKUP_DREG}, dropped: []uint16{unix.NFTA_LOOKUP_SET_ID}},
	"meta":      {registers: []uint16{unix.NFTA_META_DREG, unix.NFTA_META_SREG}},
	"nat":       {registers: []uint16{unix.NFTA_NAT_REG_ADDR_MIN, unix.NFTA_NAT_REG_ADDR_MAX, unix.NFTA_NAT_REG_PROTO_MIN, unix.NFTA_NAT_REG_PROTO_MAX}},
	"numgen":    {registers: []uint16{unix.NFTA_NG_DREG}},
	"payload":   {registers: []uint16{unix.NFTA_PAYLOAD_DREG, unix.NFTA_PAYLOAD_SREG}},
}

// normal describes a list of expressions, equal ones with the same text.
func normal(list []byte) string {
	var text []string
	for _, e := range Attributes(list) {
		name, data := Text(e, unix.NFTA_EXPR_NAME), Attr(e, unix.NFTA_EXPR_DATA)
		how, all := encodings[name], map[uint16]string{}
		for typ, value := range Attributes(data) {
			switch {
			case slices.Contains(how.dropped, typ):
			case slices.Contains(how.registers, typ):
				r := be32(value)
				if r >= unix.NFT_REG_1 && r <= unix.NFT_REG_4 {
					r = unix.NFT_REG32_00 + 4*(r-unix.NFT_REG_1)
				}
				all[typ] = fmt.Sprint(r)
			case slices.Contains(how.data, typ):
				verdict := Attr(value, unix.NFTA_DATA_VERDICT)
				all[typ] = fmt.Sprintf("%x %x %s", Attr(value, unix.NFTA_DATA_VALUE), Attr(verdict, unix.NFTA_VERDICT_CODE), Text(verdict, unix.NFTA_VERDICT_CHAIN))
			case name == "dynset" && typ == unix.NFTA_DYNSET_EXPR:
				var wrapped attrs
				wrapped.bytes(unix.NFTA_LIST_ELEM, value)
				all[typ] = normal(wrapped)
			case name == "objref" && typ == unix.NFTA_OBJREF_IMM_NAME: // sent without its end
				all[typ] = cString(value)
			case name == "nat" && typ == unix.NFTA_NAT_FLAGS:
				if flags := be32(value) &^ (unix.NF_NAT_RANGE_MAP_IPS | unix.NF_NAT_RANGE_PROTO_SPECIFIED); flags != 0 {
					all[typ] = fmt.Sprint(flags)
				}
			case len(bytes.Trim(value, "\x00")) > 0: // else it is the default
				all[typ] = fmt.Sprintf("%x", value)
			}
		}
		if name == "nat" {
			for last, first := range map[uint16]uint16{unix.NFTA_NAT_REG_ADDR_MAX: unix.NFTA_NAT_REG_ADDR_MIN, unix.NFTA_NAT_REG_PROTO_MAX: unix.NFTA_NAT_REG_PROTO_MIN} {
				if all[last] == all[first] {
					delete(all, last)
				}
			}
		}
		text = append(text, fmt.Sprint(name, all)) // in the order of the attributes' types
	}
	return fmt.Sprint(text)
}
