// SPDX-License-Identifier: Apache-2.0

package load

import (
	"encoding/binary"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// filter is the program that the kernel runs for each event. It passes the events of connections that begin, that are answered,
// or that conntrack forgets. To count loads, it passes those that are closed or reset, too. Otherwise, answered connections
// are forgotten without an event. By their status, translated ones can be told, but not those of IPVS.
func filter(ipvs, loads bool) []bpf.RawInstruction {
	status := slices.Concat(start(), find(bpf.ExtNetlinkAttr, nl.CTA_STATUS), load(4))
	var parts [][]bpf.Instruction
	if !ipvs {
		parts = append(parts, status, unless(bpf.JumpBitsSet, ctnetlink.StatusDNAT, discard))
	}
	if !loads {
		parts = append(parts, status, []bpf.Instruction{bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: ctnetlink.StatusSeenReply, SkipTrue: 3}},
			header(4), unless(bpf.JumpNotEqual, bigEndian(ctnetlink.MsgDelete), discard))
	}
	parts = append(parts,
		header(4), // nlmsg_type
		unless(bpf.JumpNotEqual, bigEndian(ctnetlink.MsgDelete), pass),
		header(6), // nlmsg_flags
		unless(bpf.JumpBitsNotSet, bigEndian(unix.NLM_F_CREATE), pass),
		start(),
		find(bpf.ExtNetlinkAttr, nl.CTA_TUPLE_ORIG), find(bpf.ExtNetlinkAttrNested, nl.CTA_TUPLE_PROTO), find(bpf.ExtNetlinkAttrNested, nl.CTA_PROTO_NUM),
		load(1), unless(bpf.JumpNotEqual, unix.IPPROTO_UDP, pass), // its status says what the state of TCP does
		start(), find(bpf.ExtNetlinkAttr, nl.CTA_PROTOINFO),
		find(bpf.ExtNetlinkAttrNested, nl.CTA_PROTOINFO_TCP),
		find(bpf.ExtNetlinkAttrNested, nl.CTA_PROTOINFO_TCP_STATE),
		load(1),
		unless(bpf.JumpNotEqual, synRecv, pass))
	if !loads {
		return assemble(append(parts, []bpf.Instruction{discard})...)
	}
	// An event has the state at the time of its report. While both ends close on two processors, none may have one
	// before TIME_WAIT, which all such connections reach.
	return assemble(append(parts, unless(bpf.JumpGreaterOrEqual, finWait, discard), unless(bpf.JumpNotEqual, lastAck, discard), []bpf.Instruction{pass})...)
}

var discard, pass = bpf.RetConstant{Val: 0}, bpf.RetConstant{Val: 1 << 16}

// start loads the offset of the first attribute.
func start() []bpf.Instruction {
	const offset = unix.NLMSG_HDRLEN + 4 // struct nfgenmsg
	return []bpf.Instruction{bpf.LoadConstant{Dst: bpf.RegA, Val: offset}}
}

// find loads the offset of an attribute: one at or behind the loaded offset, or one nested in
// the attribute there. It discards the event if there is none.
func find(where bpf.Extension, typ uint32) []bpf.Instruction {
	return append([]bpf.Instruction{
		bpf.LoadConstant{Dst: bpf.RegX, Val: typ},
		bpf.LoadExtension{Num: where},
	}, unless(bpf.JumpNotEqual, 0, discard)...)
}

// load loads the value of the attribute at the loaded offset.
func load(size int) []bpf.Instruction {
	return []bpf.Instruction{bpf.TAX{}, bpf.LoadIndirect{Off: unix.NLA_HDRLEN, Size: size}}
}

// header loads a field of the netlink header.
func header(offset uint32) []bpf.Instruction {
	return []bpf.Instruction{bpf.LoadAbsolute{Off: offset, Size: 2}}
}

// unless ends the program with a result unless a condition holds.
func unless(c bpf.JumpTest, value uint32, result bpf.Instruction) []bpf.Instruction {
	return []bpf.Instruction{bpf.JumpIf{Cond: c, Val: value, SkipTrue: 1}, result}
}

// bigEndian is a field in the machine's byte order as the program loads it.
func bigEndian(n uint16) uint32 {
	return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, n)))
}

func assemble(parts ...[]bpf.Instruction) []bpf.RawInstruction {
	raw, err := bpf.Assemble(slices.Concat(parts...))
	if err != nil {
		panic(err) // the program is constant
	}
	return raw
}
