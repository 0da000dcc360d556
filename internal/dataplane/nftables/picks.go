// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"math/bits"

	"github.com/google/nftables/expr"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// A backend is picked by a random slot number. In nf_tables, the upper bound of a random number is a constant of the
// rule, so each size of a pool would need its own rule. New rules are expensive (see the package's documentation). So
// there is a fixed set of chains: one for each size up to exactSizes, and one for each power of two above. A chain for
// a power of two draws again if the slot is beyond the pool's end, which has a probability below one half. All backends
// remain equally likely. Growing and shrinking a pool usually changes only its slots.

const (
	// exactSizes is the size up to which a draw always hits.
	exactSizes = 8

	// startSize is the largest size that has both chains from the start. A transaction takes the
	// longer, the more chains there are (see the package's documentation). So chains for larger
	// pools, which are rare, are created when they are first needed (balance.go).
	startSize = 64

	// maxSize is the largest number of backends of a pool that are used.
	maxSize = 1 << 16

	// draws is how often a chain for a power of two draws at most. After that, with a probability of 2^-draws or less,
	// it draws from the first half, or startSize, where no slot is empty.
	draws = 14
)

// startSizes lists the sizes that have chains from the start.
var startSizes = func() (all []int) {
	for n := 1; n < exactSizes; n++ {
		all = append(all, n)
	}
	for n := exactSizes; n <= startSize; n *= 2 {
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

// pickChain is the name of a scope's chain for pools of a size.
func (d *scopeSets) pickChain(size int) string { return d.chain("pick", size) }

// drawChain is the name of the chain, for a size above exactSizes, that draws once. It returns if the slot is empty. All
// are there from the start, but those of ranges.
func (d *scopeSets) drawChain(size int) string {
	if d.inRange {
		return d.chain("draw", size)
	}
	return fmt.Sprintf("%sdraw-%d", d.prefix, size)
}

func (d *scopeSets) chain(does string, size int) string {
	if !d.starts(size) {
		does = onDemandPrefix + does
	}
	return fmt.Sprintf("%s%s-%d", d.prefix, does, size)
}

// starts reports whether a size has chains from the start. Of ranges only the smallest has: the first one adds few rules.
func (d *scopeSets) starts(size int) bool { return size <= d.startSizes[len(d.startSizes)-1] }

// scope writes all chains of a scope that are created at the start, and the map that leads to them.
func (w *ruleWriter) scope(c dataplane.Config, d *scopeSets) {
	for size := 2 * exactSizes; size <= maxSize && !d.inRange; size *= 2 {
		w.batch.AddChain(w.table, nfnl.Chain{Name: d.drawChain(size)})
		w.selector(d.drawChain(size), d, size)
	}
	for _, size := range d.startSizes {
		w.batch.AddChain(w.table, nfnl.Chain{Name: d.pickChain(size)})
		w.pick(d, size)
	}
	if !d.inRange { // those of ranges are created when they are first needed
		w.batch.AddChain(w.table, nfnl.Chain{Name: d.chainOf(stickySelector)})
		w.affinity(d, stickySelector)
	}
	w.writePicks(c, w.batch, d)
}

// selector writes a rule that selects a random slot below a size.
func (w *ruleWriter) selector(chain string, d *scopeSets, size int) {
	w.slot(chain, "random slot", d, []expr.Any{&expr.Numgen{Register: regSlot, Modulus: uint32(size), Type: unix.NFT_NG_RANDOM}})
}

// slot writes a rule that sends the packet to the backend in a slot, which what computes.
func (w *ruleWriter) slot(chain, what string, d *scopeSets, slot []expr.Any) {
	w.rule(chain, "@"+d.endpoints.Name+"[pool of the frontend . "+what+"]", nfnl.AsTCP(), w.pool(d), slot, []expr.Any{
		lookup(d.endpoints, regValueWord, regKey), w.dnatTo(d, regKey, regKey+w.addrLen/4),
	})
}

// pick writes the rules for pools of a size.
func (w *ruleWriter) pick(d *scopeSets, size int) {
	chain := d.pickChain(size)
	if size > exactSizes {
		if d.inRange {
			w.selector(d.drawChain(size), d, size)
		}
		for range draws {
			w.rule(chain, "", jump(d.drawChain(size)))
		}
		if !d.inRange && !d.starts(size) { // a rule with the map of endpoints would have the kernel walk it
			w.rule(chain, "", goTo(d.pickChain(startSize)))
			return
		}
		size /= 2
	}
	w.selector(chain, d, size)
	if size > 1 {
		// Since its size was looked up, the pool may have shrunk, or have got another number
		// (see Reconcile). Slot 0 is never empty in a pool with backends.
		w.rule(chain, "the pool was changed meanwhile", goTo(d.pickChain(1)))
		return
	}
	w.selector(chain, d, size)
	w.rule(chain, "the pool was deleted meanwhile", drop())
}

// writePicks fills the map picks of a scope.
func (s *schema) writePicks(c dataplane.Config, batch *nfnl.Batch, d *scopeSets) {
	selectors := []int{0, dropSelector, stickySelector}
	if d.inRange {
		selectors = selectors[:2]
	} else if c.IPVS {
		selectors = append(selectors, ipvsSelector)
	}
	for _, selector := range selectors {
		batch.AddVerdict(s.table, d.picks, word(uint32(selector)), nfnl.Goto, d.chainOf(selector))
	}
	for _, size := range d.startSizes {
		s.writeSelector(batch, d, size, d.pickChain(size))
	}
}

// writeSelector makes a value in the map pools lead to a chain, with session affinity after the chain for that.
func (s *schema) writeSelector(batch *nfnl.Batch, d *scopeSets, selector int, chain string) {
	batch.AddVerdict(s.table, d.picks, word(uint32(selector)), nfnl.Goto, chain)
	batch.AddVerdict(s.table, d.stickyPicks, word(uint32(selector|stickySelector)), nfnl.Goto, chain)
}
