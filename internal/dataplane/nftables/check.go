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

// detector detects modifications of the tables by other processes.
//
// While the generation (see [nfnl.Conn.Generation]) does not change, no other process has
// committed, and a check is one small request. (Notifications would cost more: with a
// listener, the kernel also reports every element of this process's transactions.) If the
// generation differs, another process has committed, usually to other tables. Then the
// handles and rules of the tables are compared at once, and the elements of all pools are
// looked up, spread over the next checks.
type detector struct {
	generation uint32               // 0 if unknown
	tables     [len(schemas)]uint64 // handles, which differ when a table is created again

	nextSample int // index in the list of pools
	unchecked  int // number of pools to check after a commit by another process
}

// sampleSize is how many pools of each family are looked up in one Check.
const sampleSize = 16

// reset records the state after a commit for a generation as the expected state. For
// tables whose rules were written, it commits the fingerprint of the rules. If another
// process has committed meanwhile it does not, and the next Check finds no fingerprint.
func (d *detector) reset(b *Backend, generation uint32, written [len(schemas)]bool) error {
	d.generation, d.unchecked = 0, 0
	var batch nfnl.Batch
	for f := range b.served {
		handle, o, err := b.identify(f)
		if errors.Is(err, unix.ENOENT) {
			generation = 0 // deleted by another process; the next Check reports it
		} else if err != nil {
			return err
		}
		d.tables[f] = handle
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
		}
	}
	d.generation = generation
	return nil
}

// identify reads a table's handle and outline. Where there is no table, the error wraps
// ENOENT.
func (b *Backend) identify(f int) (handle uint64, o outline, err error) {
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

var errDormant = errors.New("the table is dormant")

// Check implements dataplane.Dataplane. It finds missing and replaced tables,
// missing and replaced rules and emptied sets at once, and single missing
// elements within several calls.
func (b *Backend) Check(ctx context.Context) error {
	if err := b.sequence.Check(); err != nil {
		return err
	}
	generation, err := b.conn.Generation()
	if err != nil {
		return fmt.Errorf("reading the ruleset's generation: %w", err)
	}
	if generation != b.detector.generation {
		for f := range b.served {
			if err := b.checkTable(f); err != nil {
				return err
			}
		}
		b.detector.generation, b.detector.unchecked = generation, len(b.pools)
	}
	if b.detector.unchecked > 0 {
		return b.checkSample()
	}
	return nil
}

func damaged(s *schema, what string) error {
	return fmt.Errorf("%w: table %s %s: %s", dataplane.ErrDamaged, s.table.Family, tableName, what)
}

func (b *Backend) checkTable(f int) error {
	s := &schemas[f]
	handle, o, err := b.identify(f)
	switch {
	case errors.Is(err, unix.ENOENT):
		return damaged(s, "the table was deleted")
	case errors.Is(err, errDormant):
		return damaged(s, "the table is dormant")
	case err != nil:
		return err
	case handle != b.detector.tables[f]:
		return damaged(s, "the table was replaced")
	case !o.intact():
		return damaged(s, "rules were modified")
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
		if o.remembered[rememberChain(seconds)] != rememberRules {
			return damaged(s, "chain "+rememberChain(seconds)+" was modified")
		}
		if err := b.checkElement(s, s.remember, word(seconds), "an element of remember"); err != nil {
			return err
		}
	}
	return nil
}

// checkElement returns an error unless an element exists.
func (b *Backend) checkElement(s *schema, set *nfnl.Set, key []byte, what string) error {
	exists, err := b.conn.Has(s.table, set.Name, key)
	if err != nil {
		return fmt.Errorf("reading table %s %s: %w", s.table.Family, tableName, err)
	}
	if !exists {
		return damaged(s, what+" is missing")
	}
	return nil
}

// checkSample looks up elements of the next few pools.
func (b *Backend) checkSample() error {
	for n := len(schemas) * sampleSize; n > 0 && b.detector.unchecked > 0; {
		b.detector.unchecked--
		b.detector.nextSample = (b.detector.nextSample + 1) % len(b.pools)
		p := b.pools[b.detector.nextSample]
		if p == nil {
			continue
		}
		n--
		if err := b.checkPool(desired.PoolID(b.detector.nextSample), p); err != nil {
			return err
		}
	}
	return nil
}

// checkPool looks up one element of each kind that leads from a frontend to a backend of
// the pool.
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

// checkFrontend looks up all elements of a frontend except its source ranges.
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
