// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// A table has a seal: an empty, unused chain. Its name is a hash of the skeleton as it was
// sent, and of the chains and rules as the kernel returns them. By the seal, the process that
// wrote the rules detects when they are modified, and the next one, perhaps of another version
// or with another configuration, recognizes its own rules. Chains for session affinity are
// not part of it, because they depend on Services.

const sealPrefix = "rules-"

// seal returns the name of the chain for the current rules of a table.
func seal(t *nfnl.Contents, skeleton uint64) string {
	rules := t.Fingerprint(func(chain string) bool { return isRememberChain(chain) || strings.HasPrefix(chain, sealPrefix) })
	return fmt.Sprintf("%s%016x", sealPrefix, skeleton^rules)
}

// sealed reports whether a table has the rules of a skeleton.
func sealed(t *nfnl.Contents, skeleton uint64) bool { return hasChain(t, seal(t, skeleton)) }

func hasChain(t *nfnl.Contents, name string) bool {
	return slices.ContainsFunc(t.Chains, func(c nfnl.ChainInfo) bool { return c.Name == name })
}

// countRules returns the number of rules of a chain.
func countRules(t *nfnl.Contents, chain string) (n int) {
	for _, r := range t.Rules {
		if r.Chain == chain {
			n++
		}
	}
	return n
}
