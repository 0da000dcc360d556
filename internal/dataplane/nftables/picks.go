// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"math/bits"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// A backend is picked by a random slot number. In nf_tables, the upper bound of a random
// number is a constant of the rule, so each size of a pool would need its own rule. New rules
// are expensive (see the package's documentation). So there is a fixed set of chains: one for
// each size up to exactSizes, and one for each power of two above. A chain for a power of two
// draws again if the slot is beyond the pool's end, which has a probability below one half.
// All backends remain equally likely. Growing and shrinking a pool usually changes only its
// slots.

const (
	// exactSizes is the size up to which a draw always hits.
	exactSizes = 8

	// maxSize is the largest number of backends of a pool that are used.
	maxSize = 1 << 16

	// draws is how often a chain for a power of two draws at most. After that,
	// with a probability of 2^-draws or less, it draws from the first half, where
	// no slot is empty.
	draws = 14
)

// pickSizes lists the sizes that have a chain.
var pickSizes = func() (all []int) {
	for n := 1; n < exactSizes; n++ {
		all = append(all, n)
	}
	for n := exactSizes; n <= maxSize; n *= 2 {
		all = append(all, n)
	}
	return all
}()

// pickSize returns the size of the chain for a pool of n backends.
func pickSize(n int) int {
	if n <= exactSizes {
		return n
	}
	return min(1<<bits.Len(uint(n-1)), maxSize)
}

// Names of the chains of a side.
func (d *side) pickChain(size int) string { return fmt.Sprintf("%spick-%d", d.prefix, size) }

// drawChain draws once. It returns if the slot is empty.
func (d *side) drawChain(size int) string { return fmt.Sprintf("%sdraw-%d", d.prefix, size) }

// stickyChain tries the client's previous backend before it picks one.
func (d *side) stickyChain(size int) string { return fmt.Sprintf("%ssticky-%d", d.prefix, size) }

// chainNames lists the names of all chains of a side.
func (d *side) chainNames() (all []string) {
	all = append(all, d.prefix+chainAffinity)
	for _, size := range pickSizes {
		all = append(all, d.drawChain(size), d.pickChain(size), d.stickyChain(size))
	}
	return all
}

// picks writes a side's chains for all sizes.
func (w *ruleWriter) picks(d *side) {
	for _, size := range pickSizes {
		w.draw(d, size)
		w.pick(d, size)
		w.rule(d.stickyChain(size), "", jump(d.prefix+chainAffinity))
		w.rule(d.stickyChain(size), "", goTo(d.pickChain(size)))
	}
}

// draw writes the chain that draws one slot below a size.
func (w *ruleWriter) draw(d *side, size int) {
	w.rule(d.drawChain(size), "@"+d.endpoints.Name+"[pool of the frontend . random slot]", nfnl.AsTCP(), w.pool(d), w.dnat(d, size))
}

// pick writes the chain for pools of a size.
func (w *ruleWriter) pick(d *side, size int) {
	chain := d.pickChain(size)
	tries := 2 // the pool's number may change meanwhile; see Reconcile
	if size > exactSizes {
		tries = draws
	}
	for range tries {
		w.rule(chain, "", jump(d.drawChain(size)))
	}
	if size > exactSizes {
		w.rule(chain, "", jump(d.drawChain(size/2)))
	}
	// The pool may have shrunk since its size was looked up. Slot 0 is never
	// empty in a pool with backends.
	if size > 1 {
		w.rule(chain, "the pool shrank meanwhile", jump(d.drawChain(1)))
	}
	w.rule(chain, "the pool was deleted meanwhile", drop())
}

// writePicks fills the map picks of a side.
func (s *schema) writePicks(c dataplane.Config, batch *nfnl.Batch, d *side) {
	drop, elsewhere := int32(dropDraw), int32(elsewhereDraw)
	if c.VirtualServers {
		batch.AddVerdict(s.table, d.picks, word(uint32(elsewhere)), nfnl.Goto, chainElsewhere)
	}
	batch.AddVerdict(s.table, d.picks, word(0), nfnl.Goto, chainReject)
	batch.AddVerdict(s.table, d.picks, word(uint32(drop)), nfnl.Goto, chainDrop)
	for _, size := range pickSizes {
		batch.AddVerdict(s.table, d.picks, word(uint32(size)), nfnl.Goto, d.pickChain(size))
		batch.AddVerdict(s.table, d.picks, word(uint32(size|stickyDraw)), nfnl.Goto, d.stickyChain(size))
	}
}
