// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	"golang.org/x/sys/unix"
)

// Table is a table as it was read: entries, one after the other, each a rule, or the first
// or last of a chain. A chain of a hook begins where the hook enters; any other begins
// with an entry that has its name (target ERROR). Both end with an entry that has the
// policy, which is RETURN for the latter. Jumps are offsets in the table.
type Table struct {
	Name string
	Info

	family  *Family
	blob    []byte
	entries []entry
	chains  []Chain
	names   map[uint32]string // of chains, by the offset that jumps to them have
}

// Chain is a chain: entries First to Last, by index.
type Chain struct {
	Name        string
	First, Last int
	Hook        bool // it is one that iptables itself has
}

// Rules is the number of rules in the chain, without those that begin and end it.
func (c *Chain) Rules() int {
	if c.Hook {
		return c.Last - c.First
	}
	return c.Last - c.First - 1
}

type entry struct {
	at, next uint32
	verdict  uint32 // the offset of a standard target's verdict; 0 of other targets
}

// Of struct xt_entry_target and struct xt_error_target, in bytes.
const (
	targetLen     = 32
	targetNameAt  = 2
	targetNameLen = 29
	errorNameLen  = 30
)

// hookNames are the chains of hooks by number (NF_INET_PRE_ROUTING ...).
var hookNames = [Hooks]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

// parse finds entries and chains.
func (t *Table) parse() error {
	hooks := map[uint32]string{}
	for h, name := range hookNames {
		if t.ValidHooks&(1<<h) != 0 {
			hooks[t.HookEntry[h]] = name
		}
	}
	t.names = map[uint32]string{}
	for at := 0; at < len(t.blob); {
		rest := t.blob[at:]
		if len(rest) < t.family.entryLen {
			return errors.New("cannot parse table: it ends within an entry")
		}
		target := int(binary.NativeEndian.Uint16(rest[t.family.targetOffset:]))
		length := int(binary.NativeEndian.Uint16(rest[t.family.targetOffset+2:]))
		if target < t.family.entryLen || length < target+targetLen || length > len(rest) {
			return fmt.Errorf("cannot parse table: an entry has its target at %d and its end at %d", target, length)
		}
		e := entry{at: uint32(at), next: uint32(at + length)}
		body := rest[target:length]
		head, isHook := hooks[e.at]
		switch unix.ByteSliceToString(body[targetNameAt : targetNameAt+targetNameLen]) {
		case "": // the standard target, which has a verdict
			if len(body) >= targetLen+4 {
				e.verdict = e.at + uint32(target+targetLen)
			}
		case "ERROR":
			head = unix.ByteSliceToString(body[targetLen:min(targetLen+errorNameLen, len(body))])
			t.names[e.next] = head
		}
		i := len(t.entries)
		t.entries = append(t.entries, e)
		switch at += length; {
		case at == len(t.blob): // the end of the table looks like a chain
		case head != "":
			t.chains = append(t.chains, Chain{Name: head, First: i, Last: i, Hook: isHook})
		case len(t.chains) > 0:
			t.chains[len(t.chains)-1].Last = i
		}
	}
	return nil
}

// Chains are the table's chains, in their order.
func (t *Table) Chains() []Chain { return t.chains }

// Idle reports whether all packets pass the table without meeting a rule.
func (t *Table) Idle() bool {
	const accept = -2 // - NF_ACCEPT - 1
	for h := range Hooks {
		if t.ValidHooks&(1<<h) == 0 {
			continue
		}
		i := slices.IndexFunc(t.entries, func(e entry) bool { return e.at == t.Underflow[h] })
		if t.HookEntry[h] != t.Underflow[h] || i < 0 || t.entries[i].verdict == 0 || t.verdictOf(t.entries[i]) != accept {
			return false
		}
	}
	return true
}

// Hash is a hash of the entries, without their counters.
func (t *Table) Hash() uint64 {
	sum, done := fnv.New64a(), 0
	for _, e := range t.entries {
		after := int(e.at) + t.family.entryLen
		sum.Write(t.blob[done : after-counterLen])
		done = after
	}
	sum.Write(t.blob[done:])
	return sum.Sum64()
}

// Jump is the chain to which an entry jumps or goes; "" of all others.
func (t *Table) Jump(entry int) string {
	e := t.entries[entry]
	if v := t.verdictOf(e); e.verdict != 0 && v >= 0 && uint32(v) != e.next {
		return t.names[uint32(v)]
	}
	return ""
}

// Packets is how many packets have matched an entry.
func (t *Table) Packets(entry int) uint64 {
	return binary.NativeEndian.Uint64(t.blob[int(t.entries[entry].at)+t.family.entryLen-counterLen:])
}

// verdictOf is an offset, or negative for a verdict that ends the traversal.
func (t *Table) verdictOf(e entry) int32 {
	return int32(binary.NativeEndian.Uint32(t.blob[e.verdict:]))
}

// without is the table without some of its entries: the indices of those that stay, their
// blob, and for the offset of each entry where it is now, or where the next one is that stays.
func (t *Table) without(remove func(int) bool) (left []int, blob []byte, offset map[uint32]uint32, err error) {
	offset = make(map[uint32]uint32, len(t.entries))
	size := uint32(0)
	for i, e := range t.entries {
		offset[e.at] = size
		if !remove(i) {
			left = append(left, i)
			size += e.next - e.at
		}
	}
	blob = make([]byte, 0, size)
	for _, i := range left {
		e := t.entries[i]
		begin := uint32(len(blob))
		blob = append(blob, t.blob[e.at:e.next]...)
		if v := t.verdictOf(e); e.verdict != 0 && v >= 0 {
			to, ok := offset[uint32(v)]
			if !ok {
				return nil, nil, nil, fmt.Errorf("cannot parse table: a jump to offset %d, where there is no entry", v)
			}
			binary.NativeEndian.PutUint32(blob[begin+e.verdict-e.at:], to)
		}
	}
	return left, blob, offset, nil
}
