// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"math/bits"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// A backend is picked at random by the number of its slot. nf_tables draws
// random numbers below a constant, so each size that a pool can have would need
// a rule of its own. Creating one while Services run is expensive: a new rule
// that uses a map makes the kernel walk the whole map (nf_tables_bind_set), and
// a new verdict makes it validate the whole table (nft_table_validate). Having
// many is expensive too: every element that is added is checked against every
// rule that uses its map.
//
// So there is a small number of rules, all there from the start: a chain for
// each size up to exactSizes, and above that for each power of two. A chain for
// a power of two draws again when the slot it drew is beyond the pool's end,
// which is less than every second time, and which leaves all backends equally
// likely. Growing and shrinking a pool mostly changes nothing but slots.

const (
	// exactSizes is the size up to which a draw always hits.
	exactSizes = 8

	// maxSize is the largest number of backends of a pool that are used.
	maxSize = 1 << 16

	// draws is how often a chain for a power of two draws at the most. The
	// last resort after that, reached once in 2^draws connections or more
	// seldom, is a draw among the first half, where no slot is empty.
	draws = 14
)

// pickSizes are the sizes that have a chain.
var pickSizes = func() (all []int) {
	for n := 1; n < exactSizes; n++ {
		all = append(all, n)
	}
	for n := exactSizes; n <= maxSize; n *= 2 {
		all = append(all, n)
	}
	return all
}()

// pickSize is the size whose chain serves a pool of n backends.
func pickSize(n int) int {
	if n <= exactSizes {
		return n
	}
	return min(1<<bits.Len(uint(n-1)), maxSize)
}

// Names of the chains of a side.
func (d *side) pickChain(size int) string { return fmt.Sprintf("%spick-%d", d.prefix, size) }

// drawChain draws once; it returns when it hits no backend.
func (d *side) drawChain(size int) string { return fmt.Sprintf("%sdraw-%d", d.prefix, size) }

// stickyChain looks for the client's backend before it picks one.
func (d *side) stickyChain(size int) string { return fmt.Sprintf("%ssticky-%d", d.prefix, size) }

// chainNames are the names of all chains of a side.
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

// draw writes the chain that draws once below a size.
func (w *ruleWriter) draw(d *side, size int) {
	w.rule(d.drawChain(size), "@"+d.endpoints.Name+"[pool of the frontend . random slot]", w.pool(d), w.dnat(d, size))
}

// pick writes the chain for pools of a size.
func (w *ruleWriter) pick(d *side, size int) {
	chain := d.pickChain(size)
	tries := 2 // a pool's number may just have changed; see Reconcile
	if size > exactSizes {
		tries = draws
	}
	for range tries {
		w.rule(chain, "", jump(d.drawChain(size)))
	}
	if size > exactSizes {
		w.rule(chain, "", jump(d.drawChain(size/2)))
	}
	// A pool can shrink after the packet came here. No pool that has
	// backends is without the first slot.
	if size > 1 {
		w.rule(chain, "the pool has just shrunk", jump(d.drawChain(1)))
	}
	w.rule(chain, "the pool has just gone", drop())
}

// writePicks fills the map picks of a side.
func (s *schema) writePicks(batch *nfnl.Batch, d *side) {
	drop := int32(dropDraw)
	batch.AddVerdict(s.table, d.picks, word(0), nfnl.Goto, chainReject)
	batch.AddVerdict(s.table, d.picks, word(uint32(drop)), nfnl.Goto, chainDrop)
	for _, size := range pickSizes {
		batch.AddVerdict(s.table, d.picks, word(uint32(size)), nfnl.Goto, d.pickChain(size))
		batch.AddVerdict(s.table, d.picks, word(uint32(size|stickyDraw)), nfnl.Goto, d.stickyChain(size))
	}
}
