// SPDX-License-Identifier: Apache-2.0

package takeover

import "fmt"

// keptChain is a chain that stays because of a rule of somebody else's.
type keptChain struct {
	chain string
	user  string // the chain with that rule
}

func (k keptChain) describe(owner, table string) error {
	return fmt.Errorf("%s's chain %s in %s stays: a rule in chain %s, which is not %[1]s's, leads there", owner, k.chain, table, k.user)
}

// keeper finds out which chains have to stay.
type keeper struct {
	keep  map[string]bool
	queue []string
}

func (k *keeper) add(chain string) {
	if !k.keep[chain] {
		if k.keep == nil {
			k.keep = map[string]bool{}
		}
		k.keep[chain] = true
		k.queue = append(k.queue, chain)
	}
}

// follow adds all chains to which those that stay lead. Where a chain leads is what
// jumps visits.
func (k *keeper) follow(jumps func(chain string, visit func(to string)) error) error {
	for len(k.queue) > 0 {
		chain := k.queue[0]
		k.queue = k.queue[1:]
		if err := jumps(chain, k.add); err != nil {
			return err
		}
	}
	return nil
}

// without is all but the chains that stay.
func (k *keeper) without(all []string) (rest []string) {
	for _, chain := range all {
		if !k.keep[chain] {
			rest = append(rest, chain)
		}
	}
	return rest
}
