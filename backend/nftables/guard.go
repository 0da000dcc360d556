// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/slipstream-proxy/slipstream/backend"
	"github.com/slipstream-proxy/slipstream/backend/nftables/nfnl"
	"github.com/slipstream-proxy/slipstream/desired"
	"golang.org/x/sys/unix"
)

// guard notices when somebody else changes our tables.
//
// The kernel counts the ruleset's transactions. As long as the count is what
// our own commits make it, nothing can have happened, and the check is one
// small request. (Being notified of changes would cost more: with a listener,
// the kernel reports every element of our own transactions too.) When the count
// is off, somebody has changed something, mostly some other table, and a look
// at ours tells: whether they are the same tables, have all their rules, and
// still hold a sample of the elements.
type guard struct {
	generation uint32 // as of the last look, plus our commits since
	handles    [len(schemas)]uint64
	rules      int // of each table
	sample     int // where in the list of pools the next sample starts
}

// sampleSize is how many pools are looked up when somebody has changed
// something.
const sampleSize = 16

func (g *guard) committed() { g.generation++ }

// reset makes what is there now the norm.
func (g *guard) reset(b *Backend) (err error) {
	if g.generation, err = b.conn.Generation(); err != nil {
		return fmt.Errorf("reading the ruleset's generation: %w", err)
	}
	for f := range schemas {
		info, err := b.conn.Table(schemas[f].table)
		if errors.Is(err, unix.ENOENT) {
			info.Handle = 0 // gone already; the next Check will see it
		} else if err != nil {
			return fmt.Errorf("reading table %s %s: %w", schemas[f].table.Family, tableName, err)
		}
		g.handles[f] = info.Handle
	}
	return nil
}

// Check implements backend.Backend. It finds missing tables, missing rules and
// emptied sets for certain, and single missing elements by and by.
func (b *Backend) Check() error {
	if !b.valid {
		return fmt.Errorf("%w: the last change failed", backend.ErrDamaged)
	}
	generation, err := b.conn.Generation()
	if err != nil {
		return fmt.Errorf("reading the ruleset's generation: %w", err)
	}
	if generation == b.guard.generation {
		return nil
	}
	for f := range schemas {
		if err := b.checkTable(f); err != nil {
			return err
		}
	}
	b.guard.generation = generation
	return nil
}

func (b *Backend) checkTable(f int) error {
	s := &schemas[f]
	damaged := func(what string) error {
		return fmt.Errorf("%w: table %s %s: %s", backend.ErrDamaged, s.table.Family, tableName, what)
	}
	info, err := b.conn.Table(s.table)
	switch {
	case errors.Is(err, unix.ENOENT):
		return damaged("it is gone")
	case err != nil:
		return fmt.Errorf("reading table %s %s: %w", s.table.Family, tableName, err)
	case info.Handle != b.guard.handles[f]:
		return damaged("it has been replaced")
	}
	rules, err := b.countRules(s)
	if err != nil {
		return err
	}
	if rules != b.guard.rules {
		return damaged(fmt.Sprintf("it has %d rules instead of %d", rules, b.guard.rules))
	}
	return b.checkSample(f, damaged)
}

func (b *Backend) countRules(s *schema) (n int, err error) {
	if err := b.conn.Rules(s.table, func(string) { n++ }); err != nil {
		return n, fmt.Errorf("reading the rules of table %s %s: %w", s.table.Family, tableName, err)
	}
	return n, nil
}

// checkSample looks up the elements of a few pools.
func (b *Backend) checkSample(f int, damaged func(string) error) error {
	s := &schemas[f]
	seen := 0
	for n := 0; n < len(b.pools) && seen < sampleSize; n++ {
		b.guard.sample = (b.guard.sample + 1) % len(b.pools)
		id := b.guard.sample
		p := b.pools[id]
		if p == nil || int(p.family) != f {
			continue
		}
		seen++
		there, err := b.hasPool(s, id, p)
		if err != nil {
			return fmt.Errorf("reading table %s %s: %w", s.table.Family, tableName, err)
		}
		if !there {
			return damaged(fmt.Sprintf("elements of Service %s are missing", p.service))
		}
	}
	return nil
}

// hasPool looks up one element of each kind on the way from a frontend to a
// backend of the pool.
func (b *Backend) hasPool(s *schema, id int, p *pool) (bool, error) {
	type element struct {
		set *nfnl.Set
		key []byte
	}
	all := []element{{s.pools, word(uint32(id))}}
	if n := len(p.slots); n > 0 {
		all = append(all, element{s.endpoints, s.endpointKey(nil, desired.PoolID(id), n-1)})
	}
	if f := p.frontend; f.IsValid() {
		all = append(all, element{s.frontends, s.frontendKey(nil, f)}, element{s.clusterIPs, s.addrKey(nil, f.Addr())})
	}
	for _, e := range all {
		if there, err := b.conn.Has(s.table, e.set.Name, e.key); err != nil || !there {
			return false, err
		}
	}
	return true, nil
}

// firstNumber is the number that a key of pools or endpoints starts with.
func firstNumber(key []byte) (uint32, bool) {
	if len(key) < 4 {
		return 0, false
	}
	return binary.NativeEndian.Uint32(key), true
}
