// SPDX-License-Identifier: Apache-2.0

package nfnl

import "golang.org/x/sys/unix"

// RuleBody is what a rule does, in the kernel's encoding: it can be added again
// as it was read, and is the same for the same rule.
type RuleBody struct {
	Chain       string
	Expressions []byte
	UserData    []byte // the comment
}

// RuleBodies calls visit with every rule of a table, in order. The slices are
// valid only during the call.
func (c *Conn) RuleBodies(t Table, visit func(RuleBody)) error {
	var a attrs
	a.string(unix.NFTA_RULE_TABLE, t.Name) // the kernel filters by it
	return c.request(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, uint8(t.Family), a, func(body []byte) {
		visit(RuleBody{
			Chain:       cString(findAttr(body, unix.NFTA_RULE_CHAIN)),
			Expressions: findAttr(body, unix.NFTA_RULE_EXPRESSIONS),
			UserData:    findAttr(body, unix.NFTA_RULE_USERDATA),
		})
	})
}

// AddRuleBody appends a rule to its chain.
func (b *Batch) AddRuleBody(t Table, r RuleBody) {
	b.begin(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, t.Family)
	b.buf.string(unix.NFTA_RULE_TABLE, t.Name)
	b.buf.string(unix.NFTA_RULE_CHAIN, r.Chain)
	b.buf.bytes(unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, r.Expressions)
	if len(r.UserData) > 0 {
		b.buf.bytes(unix.NFTA_RULE_USERDATA, r.UserData)
	}
	b.end()
}
