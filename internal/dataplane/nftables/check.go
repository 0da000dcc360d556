// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"k8s.io/klog/v2"
)

// detector detects modifications of the tables by other processes.
//
// While the generation (see [nfnl.Conn.Generation]) does not change, no other process has committed, and a check is one
// small request. At rest, the kernel tells of the next transaction ([nfnl.Conn.Watch]). If the generation differs, another
// process has committed, usually to other tables. Then the handles and rules of the tables are compared at once, and an
// element of each set is looked up. Elements of all pools, and all of their slots, are looked up, spread over the next
// checks.
type detector struct {
	generation uint32 // 0 if unknown
	tables     [len(schemas)]programmed

	nextSample int // index in the list of pools
	unchecked  int // number of pools to check after a commit by another process

	nextPool, nextSlot int // the slot to look up next
	unseen             int // number of pools of which not all slots have been looked up since

	untold bool // the kernel does not tell of transactions
}

// programmed is a table that was programmed.
type programmed struct {
	handle   uint64 // which differs when the table is created again
	skeleton uint64 // hash
}

// sampleSize is how many pools, and how many slots, of each family are looked up in one Check.
const sampleSize = 16

// reset records the state after a commit for a generation as the expected state. It seals tables whose rules were
// written. If another process has committed meanwhile it does not, and the next Check finds no seal.
func (d *detector) reset(b *Dataplane, generation uint32, skeletons *skeletons, written [len(schemas)]bool) error {
	d.generation, d.unchecked, d.unseen = 0, 0, 0
	var batch nfnl.Batch
	for f := range b.served {
		t, err := b.conn.Contents(schemas[f].table)
		if err != nil {
			return err
		}
		if t == nil {
			return nil // deleted by another process; the next Check reports it
		}
		d.tables[f] = programmed{t.Handle, skeletons[f].hash}
		if written[f] {
			batch.AddChain(schemas[f].table, nfnl.Chain{Name: seal(t, skeletons[f].hash)})
		}
	}
	if generation != 0 && !batch.Empty() {
		switch err := b.conn.Commit(generation, &batch); {
		case errors.Is(err, nfnl.ErrGeneration):
			return nil
		case err != nil:
			return err
		}
	}
	d.generation = generation
	return nil
}

// Check implements dataplane.Dataplane. It finds missing and replaced tables, missing and replaced rules and emptied
// sets at once, and single missing or modified elements within several calls: one of a frontend while it looks up some
// of each pool, 32 in a call; one of a slot while it looks up all, another 32 in a call.
func (b *Dataplane) Check(ctx context.Context) error {
	if err := b.sequence.Check(); err != nil {
		return err
	}
	for f := range b.served {
		if k := &b.limits[f]; k.err != nil && time.Since(k.tried) >= limitsAgain {
			b.rewriteLimits(f)
		}
	}
	generation, err := b.conn.Generation()
	if err != nil {
		return fmt.Errorf("reading the ruleset's generation: %w", err)
	}
	if b.unsealed != nil && generation == b.detector.generation {
		return b.sealRanges(generation)
	}
	if generation != b.detector.generation {
		for f := range b.served {
			if err := cmp.Or(b.checkTable(f), b.checkLimits(f)); err != nil {
				return err
			}
		}
		b.detector.generation = generation
		b.detector.checkPools(len(b.pools))
	}
	return cmp.Or(b.checkSample(), b.checkSlots())
}

// Watch, after a Check, returns a channel that is closed when the next one is due. It returns nil while something is left
// to check, while something changes between two calls, and if the kernel does not tell.
func (b *Dataplane) Watch(ctx context.Context) (told <-chan struct{}) {
	d := &b.detector
	if d.untold || d.generation == 0 || d.unchecked+d.unseen > 0 || b.unsealed != nil || b.limits[0].err != nil || b.limits[1].err != nil {
		return nil
	}
	told, err := b.conn.Watch()
	if d.untold = err != nil; d.untold {
		klog.FromContext(ctx).V(2).Info("Looking for modifications at rest too", "reason", err.Error())
	}
	return told
}

// checkPools has the next Checks look up elements of all pools.
func (d *detector) checkPools(n int) { d.unchecked, d.unseen = n, n }

func damaged(s *schema, what string) error {
	return fmt.Errorf("%w: table %s %s: %s", dataplane.ErrDamaged, s.table.Family, tableName, what)
}

func (b *Dataplane) checkTable(f int) error {
	s, want := b.schemas[f], b.detector.tables[f]
	t, err := b.conn.Contents(s.table)
	switch {
	case err != nil:
		return err
	case t == nil:
		return damaged(s, "the table was deleted")
	case t.Dormant:
		return damaged(s, "the table is dormant")
	case t.Handle != want.handle:
		return damaged(s, "the table was replaced")
	case !sealed(t, want.skeleton):
		return damaged(s, "rules were modified")
	}
	var created nfnl.Batch
	for d := range s.eachScopeSets {
		s.writePicks(b.config, &created, d)
		for selector := range b.onDemand[f][d.place].chains {
			s.writeOnDemand(&created, d, selector)
		}
	}
	for set, keys := range b.writer.keys[f] {
		n := 0
		for key, value := range keys { // in another order each time
			if n++; n > sampleSize {
				break
			}
			created.AddElement(s.table, set, []byte(key), []byte(value), "")
		}
	}
	for seconds, users := range b.timeouts[f] {
		if users != emptied {
			s.writeRemember(&created, seconds)
		}
	}
	if err := b.has(s, &created, "rules"); err != nil {
		return err
	}
	special, _ := created.Written()
	if all := t.Differing(&special, s.isCreated, s.isCreated); len(all) > 0 {
		return damaged(s, all[0])
	}
	return nil
}

// has returns an error unless a table has the elements that a batch adds.
func (b *Dataplane) has(s *schema, batch *nfnl.Batch, of string) error {
	lacks, err := b.conn.Lacks(s.table, batch)
	switch {
	case err != nil:
		return fmt.Errorf("reading table %s %s: %w", s.table.Family, tableName, err)
	case lacks != "":
		return damaged(s, of+": "+lacks)
	}
	return nil
}

// checkSample looks up elements of the next few pools.
func (b *Dataplane) checkSample() error {
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

// checkSlots looks up the next few slots.
func (b *Dataplane) checkSlots() error {
	d := &b.detector
	for n := len(schemas) * sampleSize; n > 0 && d.unseen > 0; {
		d.nextPool %= len(b.pools)
		if p := b.pools[d.nextPool]; p != nil && d.nextSlot < len(p.Slots) {
			if err := b.checkSlot(desired.PoolID(d.nextPool), p, d.nextSlot, selectorOf(p)); err != nil {
				return err
			}
			d.nextSlot++
			n--
			continue
		}
		d.unseen--
		d.nextPool, d.nextSlot = d.nextPool+1, 0
	}
	return nil
}

// checkSlot looks up the elements of a slot, and of its pool if that had another selector before.
func (b *Dataplane) checkSlot(id desired.PoolID, p *pool, i, before int) error {
	s := b.schemas[p.Family]
	r := poolUpdate{id: id, schema: s, scopeSets: p.sets, before: before, after: selectorOf(p), shared: p.shared}
	if i < len(p.Slots) && p.rest == nil {
		r.slots = []dataplane.SlotChange{{Slot: i, New: p.Slots[i], Has: true}}
		if p.shared {
			r.added = p.partners[p.Slots[i].Addr()][:1]
		} else if p.Sticky {
			r.added = p.Slots[i : i+1]
		}
	}
	return b.hasOf(s, p.Service, func(w *writer) {
		w.poolUpdates = []poolUpdate{r}
		w.pools(add, s)
	})
}

// hasOf returns an error unless the kernel has the elements of a Service that write writes.
func (b *Dataplane) hasOf(s *schema, service desired.ServicePort, write func(*writer)) error {
	var batch nfnl.Batch
	write(&writer{batch: &batch, base: b.writer.base})
	return b.has(s, &batch, "Service "+service.String())
}

// checkPool looks up one element of each kind that leads from a frontend to a backend of the pool.
func (b *Dataplane) checkPool(id desired.PoolID, p *pool) error {
	err := b.checkSlot(id, p, b.random.IntN(max(len(p.Slots), 1)), noSelector)
	// All of most pools, but a Service may have many thousands.
	from := b.random.IntN(len(p.Frontends) + 1)
	for i := range min(len(p.Frontends), sampleSize) {
		if err == nil {
			err = b.checkFrontend(b.schemas[p.Family], p.Frontends[(from+i)%len(p.Frontends)])
		}
	}
	return err
}

// checkFrontend looks up all elements of a frontend, and one of its source ranges.
func (b *Dataplane) checkFrontend(s *schema, f *desired.Frontend) error {
	return b.hasOf(s, f.Service, func(w *writer) {
		for _, kind := range elementKinds {
			if e := kind(w, s, f); e.set != nil && e.set != s.ranges {
				w.frontend(add, s, f, e)
			}
		}
		if ranges := f.Sources; ranges != nil && len(ranges.All()) > 0 {
			w.sources(add, s, f, ranges.All()[:1])
		}
		w.portRange(add, s, f, nil)
		if f.Kind == desired.ClusterIP {
			w.setMember(add, s, desired.ClusterIPs, desired.Address(f.Addr()))
		}
	})
}

// A table has a seal: an empty, unused chain. Its name is a hash of the skeleton as it was sent, and of the chains and
// rules as the kernel returns them. By the seal, the process that wrote the rules detects when they are modified, and
// the next one, perhaps of another version or with another configuration, recognizes its own rules. Chains that are
// created when Services need them are not part of it.

const sealPrefix = "rules-"

// seal returns the name of the chain for the current rules of a table.
func seal(t *nfnl.Contents, skeleton uint64) string {
	s := &rangedSchemas[desired.IPv4] // the names are the same in all
	rules := t.Fingerprint(s.isCreated)
	return fmt.Sprintf("%s%016x", sealPrefix, skeleton^rules)
}

// sealed reports whether a table has the rules of a skeleton.
func sealed(t *nfnl.Contents, skeleton uint64) bool { return hasChain(t, seal(t, skeleton)) }

func hasChain(t *nfnl.Contents, name string) bool {
	return slices.ContainsFunc(t.Chains, func(c nfnl.ChainInfo) bool { return c.Name == name })
}
