// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// guard detects external modifications of our tables.
//
// The kernel counts the ruleset's transactions. As long as the count is what
// our own commits make it, nothing can have happened, and the check is one
// small request. (Being notified of changes would cost more: with a listener,
// the kernel reports every element of our own transactions too.) When the count
// is off, another process has committed, mostly to other tables, and ours are
// read to find out whether they are the same tables with the same rules, and then,
// spread over the next checks, whether every pool still has its elements.
type guard struct {
	generation uint32               // as it is when nobody else does anything; 0 when not known
	tables     [len(schemas)]uint64 // handles, unique to each incarnation of a table

	sample   int // where in the list of pools the next sample starts
	unlooked int // pools that no sample has had since somebody changed something
}

// sampleSize is how many pools of each family are looked up in one Check.
const sampleSize = 16

func (g *guard) committed() {
	if g.generation != 0 {
		g.generation = nfnl.NextGeneration(g.generation)
	}
}

// reset makes what was just committed, for a generation, the norm. Rules that were
// written with it are given their fingerprint, unless another process has committed
// meanwhile: the next Check then finds that they have none.
func (g *guard) reset(b *Backend, generation uint32, written [len(schemas)]bool) error {
	g.generation, g.unlooked = 0, 0
	if generation != 0 {
		generation = nfnl.NextGeneration(generation)
	}
	var batch nfnl.Batch
	for f := range b.served {
		handle, o, err := b.mark(f)
		if errors.Is(err, unix.ENOENT) {
			generation = 0 // it is gone already, which the next Check is to see
		} else if err != nil {
			return err
		}
		g.tables[f] = handle
		if written[f] {
			batch.AddChain(schemas[f].table, nfnl.Chain{Name: o.fingerprint.chain()})
		}
	}
	if generation != 0 && !batch.Empty() {
		switch err := b.conn.Commit(generation, &batch); {
		case errors.Is(err, nfnl.ErrGeneration):
			generation = 0
		case err != nil:
			return err
		default:
			generation = nfnl.NextGeneration(generation)
		}
	}
	g.generation = generation
	return nil
}

// mark reads a table's handle and outline. Where there is no table, the error wraps
// ENOENT.
func (b *Backend) mark(f int) (handle uint64, o outline, err error) {
	s := &schemas[f]
	info, err := b.conn.Table(s.table)
	if err == nil && info.Dormant {
		err = errDormant
	}
	if err == nil {
		o, err = b.outline(s)
	}
	if err != nil {
		return 0, o, fmt.Errorf("reading table %s %s: %w", s.table.Family, tableName, err)
	}
	return info.Handle, o, nil
}

var errDormant = errors.New("it is dormant")

// Check implements dataplane.Dataplane. It finds missing and replaced tables,
// missing and replaced rules and emptied sets at once, and single missing
// elements by and by.
func (b *Backend) Check(ctx context.Context) error {
	if err := b.sequence.Check(); err != nil {
		return err
	}
	generation, err := b.conn.Generation()
	if err != nil {
		return fmt.Errorf("reading the ruleset's generation: %w", err)
	}
	if generation != b.guard.generation {
		for f := range b.served {
			if err := b.checkTable(f); err != nil {
				return err
			}
		}
		b.guard.generation, b.guard.unlooked = generation, len(b.pools)
	}
	if b.guard.unlooked > 0 {
		return b.checkSample()
	}
	return nil
}

func damaged(s *schema, what string) error {
	return fmt.Errorf("%w: table %s %s: %s", dataplane.ErrDamaged, s.table.Family, tableName, what)
}

func (b *Backend) checkTable(f int) error {
	s := &schemas[f]
	handle, o, err := b.mark(f)
	switch {
	case errors.Is(err, unix.ENOENT):
		return damaged(s, "it is gone")
	case errors.Is(err, errDormant):
		return damaged(s, "it is dormant")
	case err != nil:
		return err
	case handle != b.guard.tables[f]:
		return damaged(s, "it has been replaced")
	case !o.intact():
		return damaged(s, "it has other rules")
	}
	for i := range s.sides {
		d := &s.sides[i]
		for _, size := range pickSizes {
			if err := b.checkElement(s, d.picks, word(uint32(size)), "an element of "+d.picks.Name); err != nil {
				return err
			}
		}
	}
	for _, seconds := range b.timeouts[f] {
		if o.remembered[rememberChain(seconds)] != 1 {
			return damaged(s, "chain "+rememberChain(seconds)+" has other rules")
		}
		if err := b.checkElement(s, s.remember, word(seconds), "an element of remember"); err != nil {
			return err
		}
	}
	return nil
}

// checkElement returns an error unless an element is there.
func (b *Backend) checkElement(s *schema, set *nfnl.Set, key []byte, what string) error {
	there, err := b.conn.Has(s.table, set.Name, key)
	if err != nil {
		return fmt.Errorf("reading table %s %s: %w", s.table.Family, tableName, err)
	}
	if !there {
		return damaged(s, what+" is missing")
	}
	return nil
}

// checkSample looks up elements of the next few pools.
func (b *Backend) checkSample() error {
	for n := len(schemas) * sampleSize; n > 0 && b.guard.unlooked > 0; {
		b.guard.unlooked--
		b.guard.sample = (b.guard.sample + 1) % len(b.pools)
		p := b.pools[b.guard.sample]
		if p == nil {
			continue
		}
		n--
		if err := b.checkPool(desired.PoolID(b.guard.sample), p); err != nil {
			return err
		}
	}
	return nil
}

// checkPool looks up one element of each kind on the way from a frontend to a
// backend of the pool.
func (b *Backend) checkPool(id desired.PoolID, p *dataplane.Pool) error {
	s, w := &schemas[p.Family], &b.writer
	what := fmt.Sprintf("an element of Service %s", p.Service)
	err := b.checkElement(s, s.pools, w.poolKey(id), what)
	if n := len(p.Slots); err == nil && n > 0 {
		err = b.checkElement(s, s.sides[p.Scope].endpoints, w.endpointKey(id, n-1), what)
		if err == nil && p.Sticky {
			err = b.checkElement(s, s.members, s.memberKey(nil, w.number(id), p.Slots[n-1]), what)
		}
	}
	for _, f := range p.Frontends {
		if err == nil {
			err = b.checkFrontend(s, f, what)
		}
	}
	return err
}

// checkFrontend looks up all elements of a frontend but its ranges of sources.
func (b *Backend) checkFrontend(s *schema, f *desired.Frontend, what string) error {
	key := s.frontendKey(nil, f.FrontendKey)
	err := b.checkElement(s, s.sides[f.Scope].frontends, key, what)
	for _, also := range []struct {
		set *nfnl.Set
		has bool
	}{
		{s.external, f.Kind.External()},
		{s.sides[desired.Local].frontends, f.LocalPool != desired.NoPool},
		{s.sticky, f.Affinity != 0},
		{s.restricted, f.Sources != nil},
	} {
		if err == nil && also.has {
			err = b.checkElement(s, also.set, key, what)
		}
	}
	if err == nil && f.Kind == desired.ClusterIP {
		err = b.checkElement(s, s.clusterIPs, s.addr(nil, f.Addr().As16()), what)
	}
	return err
}
