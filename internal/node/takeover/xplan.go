// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"encoding/binary"
	"fmt"
)

// hookNames are the built-in chains by number of the hook (NF_INET_PRE_ROUTING ...).
var hookNames = [xHooks]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

// xPlan is what is left of a table when an owner's chains are gone.
type xPlan struct {
	table  *xTable
	left   []int // indices of the entries that stay
	chains int   // how many go
	jumps  int   // how many of its rules in others' chains go
	kept   []keptChain
}

// any says whether something goes.
func (p *xPlan) any() bool { return p.chains > 0 || p.jumps > 0 }

// xChain is a chain: entries first to last, of which those of a chain that somebody made
// have its name in the first.
type xChain struct {
	name        string
	first, last int
}

// chains are the table's chains, in the order of the blob. What ends the blob is one
// entry named ERROR.
func (t *xTable) chains() (all []xChain) {
	begins := map[int]string{}
	for h, name := range hookNames {
		if t.validHooks&(1<<h) != 0 {
			begins[int(t.hookEntry[h])] = name
		}
	}
	for i, e := range t.entries {
		name := e.head
		if name == "" {
			name = begins[e.at]
		}
		if name != "" {
			all = append(all, xChain{name, i, i})
		}
		if len(all) > 0 {
			all[len(all)-1].last = i
		}
	}
	return all
}

// planX says what goes from a table.
func planX(t *xTable, owner *Owner) *xPlan {
	p := &xPlan{table: t}
	chains := t.chains()
	at := map[int]string{} // chain by where jumps lead
	index := map[string]xChain{}
	for _, c := range chains {
		index[c.name] = c
		if t.entries[c.first].head != "" {
			at[t.entries[c.first].next] = c.name
		}
	}
	keep := keeper{}
	gone := make([]bool, len(t.entries))
	for _, c := range chains {
		if owner.Chain(c.name) {
			continue
		}
		for i := c.first; i <= c.last; i++ {
			to := at[t.entries[i].jump]
			switch {
			case !owner.Chain(to):
			case owner.jump(c.name, to):
				gone[i] = true
				p.jumps++
			default:
				p.kept = append(p.kept, keptChain{to, c.name})
				keep.add(to)
			}
		}
	}
	_ = keep.follow(func(chain string, visit func(string)) error {
		c := index[chain]
		for i := c.first; i <= c.last; i++ {
			if to := at[t.entries[i].jump]; to != "" {
				visit(to)
			}
		}
		return nil
	})
	for _, c := range chains {
		if !owner.Chain(c.name) || keep.keep[c.name] {
			continue
		}
		p.chains++
		for i := c.first; i <= c.last; i++ {
			gone[i] = true
		}
	}
	for i := range t.entries {
		if !gone[i] {
			p.left = append(p.left, i)
		}
	}
	return p
}

// relocate is the blob of the entries that stay, and for each offset of an entry of the
// old blob where that is now; of one that goes, where the next one is that stays.
func (p *xPlan) relocate() (blob []byte, offset map[int]int, err error) {
	t := p.table
	offset = make(map[int]int, len(t.entries))
	size, left := 0, p.left
	for i, e := range t.entries {
		offset[e.at] = size
		if len(left) > 0 && left[0] == i {
			size += e.next - e.at
			left = left[1:]
		}
	}
	blob = make([]byte, 0, size)
	for _, i := range p.left {
		e := t.entries[i]
		begin := len(blob)
		blob = append(blob, t.blob[e.at:e.next]...)
		if e.verdict == 0 {
			continue
		}
		verdict := blob[begin+e.verdict-e.at:]
		if v := int32(native32(verdict)); v >= 0 {
			to, ok := offset[int(v)]
			if !ok {
				return nil, nil, fmt.Errorf("cannot be understood: a jump to offset %d, where there is no entry", v)
			}
			binary.NativeEndian.PutUint32(verdict, uint32(to))
		}
	}
	return blob, offset, nil
}
