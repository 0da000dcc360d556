// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// AddRule appends a rule, which consists of parts, to a chain. The nft command prints the
// comment. Commit returns an error if an expression cannot be encoded.
func (b *Batch) AddRule(t Table, chain, comment string, parts ...[]expr.Any) {
	b.begin(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, t, chain)
	list := b.buf.open(unix.NFTA_RULE_EXPRESSIONS)
	for _, e := range slices.Concat(parts...) {
		b.expression(unix.NFTA_LIST_ELEM, t, e)
	}
	b.buf.close(list)
	b.buf.comment(unix.NFTA_RULE_USERDATA, comment)
	b.end()
}

// expression writes an attribute with an expression.
func (b *Batch) expression(typ uint16, t Table, e expr.Any) {
	encoded, err := encode(t.Family, e)
	if err != nil && b.err == nil {
		b.err = fmt.Errorf("table %s %s: expression %T: %w", t.Family, t.Name, e, err)
	}
	b.buf.bytes(typ|unix.NLA_F_NESTED, encoded)
}

// AddRuleInfo appends a rule, as read by Conn.Rules, to its chain.
func (b *Batch) AddRuleInfo(t Table, r RuleInfo) {
	b.begin(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, t, r.Chain)
	b.buf.bytes(unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, r.Expressions)
	if len(r.Comment) > 0 {
		b.buf.bytes(unix.NFTA_RULE_USERDATA, r.Comment)
	}
	b.end()
}

// DeleteRule deletes a rule, which must exist.
func (b *Batch) DeleteRule(t Table, chain string, handle uint64) {
	b.begin(unix.NFT_MSG_DELRULE, 0, t, chain)
	b.buf.bytes(unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, handle))
	b.end()
}

// FlushTable deletes all rules of a table, but not its chains and sets.
func (b *Batch) FlushTable(t Table) { b.message(unix.NFT_MSG_DELRULE, 0, t, "") }

// FlushChain deletes all rules of a chain.
func (b *Batch) FlushChain(t Table, name string) { b.message(unix.NFT_MSG_DELRULE, 0, t, name) }

// RuleInfo is a rule as read. It can be added again.
type RuleInfo struct {
	Chain                string
	Handle               uint64 // unique in the table
	Expressions, Comment []byte // in the kernel's encoding, which is equal for equal rules
}

// Rules returns the rules of a chain in order, or those of all chains for "". A chain that does not exist has none.
func (c *Conn) Rules(t Table, chain string) ([]RuleInfo, error) {
	return list(c, unix.NFT_MSG_GETRULE, t, chain, func(body []byte) RuleInfo { return ruleInfo(bytes.Clone(body)) })
}

func ruleInfo(body []byte) RuleInfo {
	return RuleInfo{
		Chain:       Text(body, unix.NFTA_RULE_CHAIN),
		Handle:      be64(Attr(body, unix.NFTA_RULE_HANDLE)),
		Expressions: Attr(body, unix.NFTA_RULE_EXPRESSIONS),
		Comment:     Attr(body, unix.NFTA_RULE_USERDATA),
	}
}

// Text returns the rule's comment as the nft command prints it, "" if there is none.
func (r RuleInfo) Text() string { return parseComment(r.Comment) }

// each calls visit with the data of the rule's expressions with a name.
func (r RuleInfo) each(name string, visit func(data []byte)) {
	for _, e := range Attributes(r.Expressions) {
		if cString(Attr(e, unix.NFTA_EXPR_NAME)) == name {
			visit(Attr(e, unix.NFTA_EXPR_DATA))
		}
	}
}

// Jumps returns the targets of the rule's jumps and gotos. Verdict maps are not included.
func (r RuleInfo) Jumps() (to []string) {
	r.each("immediate", func(data []byte) {
		verdict := Attr(Attr(data, unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT)
		if chain := cString(Attr(verdict, unix.NFTA_VERDICT_CHAIN)); chain != "" {
			to = append(to, chain)
		}
	})
	return to
}

// Counted returns the number of packets that the rule's counters have counted.
func (r RuleInfo) Counted() (packets uint64) {
	r.each("counter", func(data []byte) { packets += be64(Attr(data, nftaCounterPackets)) })
	return packets
}
