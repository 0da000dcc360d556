// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// Algorithms other than a random choice differ from it in the slot that they look up. The
// pool's value in the map pools leads to a chain with a rule that computes the slot:
//
//   - from the client's address, by a hash modulo the number of slots. The slots are a Maglev
//     table.
//   - from a counter (numgen inc) modulo the number of slots, for round robin.
//
// Such a chain is created when a pool first needs it, like those for timeouts of session
// affinity and for pools above startSize, and then stays until Reconcile. So a node whose Services
// have the default algorithm does not need the kernel's expression hash.
//
// The kernel has counters only in rules. (A map from pools to their next slot, in which rules
// delete and add elements, was tried: a deleted element stays in its hash bucket until the next
// garbage collection, and a connection took 0.5 ms after a few hundred.) So each pool with round
// robin has a rule of its own while it has that number of slots. There are at most MaxCounters
// such rules on each side; further pools choose at random. Pools do not share a counter: two
// Services that are used in alternation would each get every second slot only.
//
// Processors that execute the rule at the same time get different numbers. A connection that
// fails to find its slot, because a transaction is just replacing it, is sent to a random one.

// Flags of a pool's value in the map pools, besides stickyDraw, with the number of slots.
const (
	hashDraw = 1 << 21 // the slot is a hash of the client's address,
	portDraw = 1 << 22 // and port
	turnDraw = 1 << 23 // the next slot, by the counter whose number is above

	turnShift = 24
	sizeMask  = 1<<17 - 1
)

// MaxCounters is the number of pools with round robin on each side, which is a family and a scope.
// Further ones choose at random.
const MaxCounters = 64

const hashSeed = 0x736c6970

// pool is the record of a pool in the kernel.
type pool struct {
	dataplane.Pool
	turn turn // counter that the pool has
}

// turn is a counter's rule: it is counter number number-1 modulo size; none if number is 0.
type turn struct{ size, number int32 }

// special are the chains of the sides of a scope that were created when they were first needed, by the value
// in the map pools without stickyDraw, and the counters that pools have, as bits, by size.
type special struct {
	draws map[int]bool
	turns map[int]uint64
}

func (x *special) numberOfTurns() (n int) {
	for draw := range x.draws {
		if draw&turnDraw != 0 {
			n++
		}
	}
	return n
}

// takeTurn gives a pool the counter that it needs, and takes back the former one.
func (x *special) takeTurn(p *pool, gone bool) {
	size := len(p.Slots)
	needs := !gone && p.Algorithm == desired.RoundRobin && size > 1 && size <= maxSize
	if needs && int(p.turn.size) == size {
		return
	}
	if p.turn.number > 0 {
		x.turns[int(p.turn.size)] &^= 1 << (p.turn.number - 1)
	}
	p.turn = turn{}
	if !needs {
		return
	}
	free := bits.TrailingZeros64(^x.turns[size])
	t := turn{int32(size), int32(free + 1)}
	if free == MaxCounters || !x.draws[t.draw()] && x.numberOfTurns() == MaxCounters {
		return
	}
	x.turns[size] |= 1 << free
	p.turn = t
}

func (t turn) draw() int { return int(t.size) | turnDraw | int(t.number-1)<<turnShift }

// specialPrefix begins the names of these chains, after the side's prefix.
const specialPrefix = "slot-"

// specialChain is a chain that is created when it is first needed, and its number of rules.
type specialChain struct {
	name  string
	rules int
}

// specialChains returns the chains for a value in the map pools, which leads to the first.
func (d *side) specialChains(draw int) []specialChain {
	size := draw & sizeMask
	if !ordered(draw) {
		return []specialChain{{d.pickChain(size), draws + 2}, {d.drawChain(size), 1}}
	}
	name := fmt.Sprintf("%s%shash-%d", d.prefix, specialPrefix, size)
	switch {
	case draw&turnDraw != 0:
		name = fmt.Sprintf("%s%snext-%d-%d", d.prefix, specialPrefix, size, draw>>turnShift)
	case draw&portDraw != 0:
		name += "-port"
	}
	return []specialChain{{name, 3}}
}

// isSpecial reports whether a chain is one of these.
func (s *schema) isSpecial(name string) bool {
	for d := range s.eachSide {
		if strings.HasPrefix(name, d.prefix+specialPrefix) {
			return true
		}
	}
	return false
}

// hasSpecial reports whether a chain is one that the pools need.
func (b *Backend) hasSpecial(s *schema, name string) bool {
	for d := range s.eachSide {
		for draw := range b.special[s.family][d.scope].draws {
			if slices.ContainsFunc(d.specialChains(draw), func(c specialChain) bool { return c.name == name }) {
				return true
			}
		}
	}
	return false
}

// ordered reports whether a value in the map pools is of an algorithm that needs all slots in
// their order.
func ordered(draw int) bool { return draw > 0 && draw&(hashDraw|turnDraw) != 0 }

// isSpecialDraw reports whether a value in the map pools needs chains that are not there from the
// start.
func isSpecialDraw(draw int) bool { return ordered(draw) || draw > 0 && draw&sizeMask > startSize }

// writeSpecial creates the chains for a value in the map pools, without stickyDraw.
func (s *schema) writeSpecial(batch *nfnl.Batch, d *side, draw int) {
	chains, size := d.specialChains(draw), draw&sizeMask
	for _, c := range chains {
		batch.AddChain(s.table, nfnl.Chain{Name: c.name})
		batch.FlushChain(s.table, c.name)
	}
	w, chain := ruleWriter{s, batch}, chains[0].name
	if !ordered(draw) {
		w.pick(d, size)
	} else {
		if draw&hashDraw != 0 {
			for range 2 { // see dispatch
				w.slot(chain, "hash", d, s.hash(size, draw&portDraw != 0))
			}
		} else {
			w.slot(chain, "next slot", d, []expr.Any{&expr.Numgen{Register: regSlot, Modulus: uint32(size), Type: unix.NFT_NG_INCREMENTAL}})
			w.draw(chain, d, size)
		}
		w.rule(chain, "the pool was changed meanwhile", goTo(d.pickChain(1)))
	}
	s.writeDraw(batch, d, draw, chain)
}

// hash computes a slot from the client's address, and from its port too. The seed is the same on
// every node.
func (s *schema) hash(size int, port bool) []expr.Any {
	source, n := s.loadTo(s.saddr, regKey), s.addrLen
	if port {
		n += 4
		source = append(source, &expr.Payload{DestRegister: regKey + s.addrLen/4, Base: expr.PayloadBaseTransportHeader, Len: 2})
	}
	return append(source, &expr.Hash{
		SourceRegister: regKey, DestRegister: regSlot, Length: n, Modulus: uint32(size), Seed: hashSeed, Type: expr.HashTypeJenkins,
	})
}

// prepareDraw returns the value of a pool in the map pools after a change, and creates the chain
// that it needs.
func (b *Backend) prepareDraw(p *pool) int {
	x := &b.special[p.Family][p.Scope]
	x.takeTurn(p, false)
	draw := drawOf(p)
	if bare := draw &^ stickyDraw; isSpecialDraw(draw) && !x.draws[bare] {
		x.draws[bare] = true
		if s := &schemas[p.Family]; !b.unsupported[p.Family] {
			s.writeSpecial(&b.chains, &s.sides[p.Scope], bare)
			s.writeSpecial(&b.chains, &s.node[p.Scope], bare)
		}
	}
	return draw
}

// Supports returns an error if the kernel lacks an algorithm, once Probe has looked.
func (b *Backend) Supports(a desired.Algorithm) error {
	if a.Hashes() && b.lacksHash != nil {
		return fmt.Errorf("the kernel cannot hash (needs CONFIG_NFT_HASH): %w", b.lacksHash)
	}
	return nil
}

// probeHash tries whether the kernel has the expression hash.
func (b *Backend) probeHash(s schema) {
	var batch nfnl.Batch
	batch.AddDormantTable(s.table)
	s.write(&batch, b.config, &desired.Change{})
	s.writeSpecial(&batch, &s.sides[desired.Cluster], desired.TableSizes()[0]|hashDraw)
	b.lacksHash = b.conn.DryRun(&batch)
}
