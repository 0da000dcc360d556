// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// Differing describes how chains and rules differ from those that should be there, of the chains that of selects. A chain for
// which spare is true may be there too, without a hook and rules. Hooks are compared of chains that want has as base chains.
func (t *Contents) Differing(want *Contents, of, spare func(chain string) bool) (all []string) {
	byChain := func(t *Contents) map[string][]RuleInfo {
		rules := map[string][]RuleInfo{}
		for _, c := range t.Chains {
			rules[c.Name] = nil
		}
		for _, r := range t.Rules {
			rules[r.Chain] = append(rules[r.Chain], r)
		}
		return rules
	}
	got, wanted := byChain(t), byChain(want)
	bases, wantedBases := t.bases(), want.bases()
	for name, has := range got {
		rules, isWanted := wanted[name]
		switch base, is := bases[name]; {
		case !of(name):
		case !isWanted && (is || !spare(name)):
			all = append(all, fmt.Sprintf("chain %s does not belong there", name))
		case base != wantedBases[name]:
			all = append(all, fmt.Sprintf("chain %s has another hook or policy", name))
		case len(has) != len(rules):
			all = append(all, fmt.Sprintf("chain %s has %d rules instead of %d", name, len(has), len(rules)))
		default:
			for i := range rules {
				// The kernel returns some attributes in another encoding, and adds defaults.
				if !bytes.Equal(has[i].Comment, rules[i].Comment) || normal(has[i].Expressions) != normal(rules[i].Expressions) {
					all = append(all, fmt.Sprintf("rule %d of chain %s is another one", i+1, name))
				}
			}
		}
	}
	for name := range wanted {
		if _, exists := got[name]; !exists {
			all = append(all, fmt.Sprintf("chain %s is missing", name))
		}
	}
	slices.Sort(all)
	return all
}

// OtherSets describes how sets differ from those that should be there.
func (t *Contents) OtherSets(want []Set) (all []string) {
	for i := range want {
		switch at := slices.IndexFunc(t.Sets, func(s Set) bool { return s.Name == want[i].Name }); {
		case at < 0:
			all = append(all, fmt.Sprintf("set %s is missing", want[i].Name))
		case !t.Sets[at].sameType(&want[i]):
			all = append(all, fmt.Sprintf("set %s has another type", want[i].Name))
		}
	}
	for _, s := range t.Sets {
		if !slices.ContainsFunc(want, func(w Set) bool { return w.Name == s.Name }) {
			all = append(all, fmt.Sprintf("set %s does not belong there", s.Name))
		}
	}
	return all
}

// Differences compares a table that was read with what a batch writes into an empty one, and describes what differs: state,
// sets, chains, rules, and elements, except of sets that rules fill or time empties. Name describes an element; spare is as for
// Differing. Elements can be missing in one reading and not in the next (see [Conn.Elements]).
func (c *Conn) Differences(table Table, t *Contents, b *Batch, spare func(chain string) bool, name func(set string, e Element) string) (all []string, err error) {
	want, elements := b.Written()
	if t.Dormant {
		all = append(all, "the table is dormant")
	}
	all = append(all, t.OtherSets(want.Sets)...)
	if len(all) > 0 {
		return all, nil // of such sets the elements cannot be compared
	}
	all = t.Differing(&want, func(string) bool { return true }, spare)
	for _, s := range want.Sets {
		if s.Flags&(unix.NFT_SET_EVAL|unix.NFT_SET_TIMEOUT) != 0 {
			continue
		}
		text := func(e Element) string { return fmt.Sprintf("%s %s", e.content(), e.Comment) }
		missing := map[string]string{}
		for _, e := range elements[s.Name] {
			missing[text(e)] = name(s.Name, e)
		}
		failed := c.Elements(table, s.Name, func(e Element) {
			if _, wanted := missing[text(e)]; wanted {
				delete(missing, text(e))
			} else {
				all = append(all, fmt.Sprintf("set %s has %s", s.Name, name(s.Name, e)))
			}
		})
		if !errors.Is(failed, ErrInterrupted) { // the caller reads again
			err = errors.Join(err, failed)
		}
		for _, what := range missing {
			all = append(all, fmt.Sprintf("set %s lacks %s", s.Name, what))
		}
	}
	slices.Sort(all)
	return all, err
}

func (e *Element) content() string {
	return fmt.Sprintf("%x %t %x %d %s", e.Key, e.End, e.Value, e.Verdict, e.Chain)
}

// Lacks looks up the elements that a batch adds to a table, and describes the first that is
// missing or has another value; "" if none.
func (c *Conn) Lacks(table Table, b *Batch) (string, error) {
	_, all := b.Written()
	for _, set := range slices.Sorted(maps.Keys(all)) { // the same order each time, for simulations
		slices.SortFunc(all[set], func(a, b Element) int { return bytes.Compare(a.Key, b.Key) })
		for _, want := range all[set] {
			if want.End {
				continue
			}
			got, has, err := c.Element(table, set, want.Key)
			switch {
			case err != nil:
				return "", err
			case !has:
				return "an element of " + set + " is missing", nil
			case got.content() != want.content():
				return "an element of " + set + " was modified", nil
			}
		}
	}
	return "", nil
}

// encodings have, for each expression, the attributes with a register, those with nested data, and
// those that are state or the sender's only.
var encodings = map[string]struct{ registers, data, dropped []uint16 }{
	"bitwise":   {registers: []uint16{unix.NFTA_BITWISE_SREG, unix.NFTA_BITWISE_DREG}, data: []uint16{unix.NFTA_BITWISE_MASK, unix.NFTA_BITWISE_XOR}},
	"byteorder": {registers: []uint16{unix.NFTA_BYTEORDER_SREG, unix.NFTA_BYTEORDER_DREG}},
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
	"range":     {registers: []uint16{unix.NFTA_RANGE_SREG}, data: []uint16{unix.NFTA_RANGE_FROM_DATA, unix.NFTA_RANGE_TO_DATA}},
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
			case name == "objref" && typ == unix.NFTA_OBJREF_IMM_NAME, name == "flow_offload": // sent without its end
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
