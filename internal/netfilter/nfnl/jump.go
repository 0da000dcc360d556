// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// RuleJump is a rule with a jump or goto to another chain. Verdict maps are not included.
type RuleJump struct {
	To     string
	Handle uint64 // of the rule; unique in its table
}

// RuleJumps calls visit with every jump or goto in the rules of a chain. A chain that does
// not exist has none.
func (c *Conn) RuleJumps(t Table, chain string, visit func(RuleJump)) error {
	var a attrs
	a.string(unix.NFTA_RULE_TABLE, t.Name)
	a.string(unix.NFTA_RULE_CHAIN, chain) // a filter in the kernel
	return c.request(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, uint8(t.Family), a, func(body []byte) {
		handle := be64(findAttr(body, unix.NFTA_RULE_HANDLE))
		jumps(findAttr(body, unix.NFTA_RULE_EXPRESSIONS), func(to string) { visit(RuleJump{To: to, Handle: handle}) })
	})
}

// Jumps calls visit with the target of every jump or goto in the rule, like
// [Conn.RuleJumps].
func (r RuleInfo) Jumps(visit func(to string)) { jumps(r.Expressions, visit) }

func jumps(expressions []byte, visit func(to string)) {
	eachAttr(expressions, func(_ uint16, expression []byte) bool {
		if to := verdictChain(expression); to != "" {
			visit(to)
		}
		return true
	})
}

// verdictChain returns the chain of a jump or goto expression, and "" for any other.
func verdictChain(expression []byte) string {
	if cString(findAttr(expression, unix.NFTA_EXPR_NAME)) != "immediate" {
		return ""
	}
	data := findAttr(findAttr(expression, unix.NFTA_EXPR_DATA), unix.NFTA_IMMEDIATE_DATA)
	return cString(findAttr(findAttr(data, unix.NFTA_DATA_VERDICT), unix.NFTA_VERDICT_CHAIN))
}

// DeleteRule deletes a rule, which must exist.
func (b *Batch) DeleteRule(t Table, chain string, handle uint64) {
	b.begin(unix.NFT_MSG_DELRULE, 0, t.Family)
	b.buf.string(unix.NFTA_RULE_TABLE, t.Name)
	b.buf.string(unix.NFTA_RULE_CHAIN, chain)
	b.buf.header(unix.NFTA_RULE_HANDLE, 8)
	b.buf = binary.BigEndian.AppendUint64(b.buf, handle)
	b.end()
}
