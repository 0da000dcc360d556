// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// ReadFrontend implements dataplane.Reader. It looks up single elements: what it costs depends on the
// frontend's slots, not on the sizes of the sets.
func (b *Dataplane) ReadFrontend(ctx context.Context, want *desired.Change) (*dataplane.Content, error) {
	f := want.Frontends[0].New
	r := tableReader{schema: &schemasFor[f.IsRange() || f.Shared][desired.FamilyOf(f.Addr())], conn: b.conn, content: dataplane.NewContent()}
	if r.frontend(ctx, f, want.Pools); r.err != nil {
		return nil, fmt.Errorf("reading table %s %s: %w", r.table.Family, tableName, r.err)
	}
	return r.content, nil
}

// element looks up an element.
func (r *tableReader) element(set *nfnl.Set, key []byte) (e nfnl.Element, has bool) {
	if r.err == nil {
		e, has, r.err = r.conn.Element(r.table, set.Name, key)
		e.Key, e.Value, e.Comment = key, slices.Clone(e.Value), slices.Clone(e.Comment) // the buffer is used again
	}
	return e, has
}

func (r *tableReader) frontend(ctx context.Context, f *desired.Frontend, pools []desired.PoolChange) {
	key := r.frontendKey(nil, f.FrontendKey)
	r.init()
	for _, part := range f.PartsOf() {
		if e, has := r.element(r.ranges, r.partKey(f, part.First)); has && bytes.Equal(e.Value[4:4*rangePools], key[r.addrLen:]) {
			r.portRange(e, r.partKey(f, part.Last))
		}
	}
	for _, scope := range []desired.Scope{desired.Cluster, desired.Local} {
		d := r.setsOf(f.FrontendKey, scope)
		e, has := r.toPool[scope][string(key)]
		if !f.IsRange() {
			e, has = r.element(d.frontends, key)
		}
		if !has {
			continue
		}
		var sticky []desired.Backend
		if i := slices.IndexFunc(pools, func(p desired.PoolChange) bool { return p.Scope == scope && p.Sticky }); i >= 0 {
			sticky = pools[i].Added
		}
		r.pool(ctx, d, firstNumber(e.Value[4:]), sticky)
		if scope == desired.Cluster {
			r.readFrontendElement(scope, e)
		} else {
			r.localFrontend(e)
		}
	}
	if e, has := r.element(r.setsOf(f.FrontendKey, desired.Cluster).sticky, key); has {
		seconds := firstNumber(e.Value[12:])
		_, r.remembers[seconds] = r.element(r.remember, number(nil, seconds))
		r.sticky(e)
	}
	if f.OnNode() {
		return
	}
	if e, has := r.element(r.external, key); has {
		r.setExternal(e)
	}
	r.rangesOf(f, key)
}

// pool looks up a pool that a frontend leads to. Backends with session affinity cannot be listed
// without a dump: it looks for those that the pool should have.
func (r *tableReader) pool(ctx context.Context, d *scopeSets, id uint32, sticky []desired.Backend) {
	e, has := r.element(d.pools, number(nil, id))
	if !has {
		return
	}
	r.readPool(e)
	selector := uint32(r.selectors[id])
	key := number(nil, r.keys[id])
	_, r.picks[d.picks][firstNumber(key)] = r.element(d.picks, key)
	_, r.picks[d.stickyPicks][selector] = r.element(d.stickyPicks, number(nil, selector))
	for slot := uint32(0); ; slot++ {
		if r.err = errors.Join(r.err, ctx.Err()); r.err != nil {
			return
		}
		e, has := r.element(d.endpoints, number(number(nil, id), slot))
		if !has {
			break
		}
		r.endpoint(int(d.scope), e)
	}
	for _, b := range sticky {
		if r.keys[id]&sharedSelector != 0 && r.ranged {
			if e, has := r.element(r.partners, r.partnerKey(nil, id, b)); has && !slices.Contains(r.members[id], r.backend(e.Value, e.Value[r.addrLen:])) {
				r.partner(e)
			}
			continue
		}
		if _, has := r.element(r.schema.members, r.memberKey(nil, id, b)); has {
			r.members[id] = append(r.members[id], b)
		}
	}
}

// rangesOf looks for the source ranges that a frontend should have.
func (r *tableReader) rangesOf(f *desired.Frontend, key []byte) {
	e, has := r.element(r.restricted, key)
	if !has {
		return
	}
	sources := []netip.Prefix{}
	if f.Sources != nil {
		for _, p := range f.Sources.All() {
			first, _ := nfnl.Bounds(p)
			if _, has := r.element(r.schema.sources, slices.Concat(key, first)); has {
				sources = append(sources, p)
			}
		}
	}
	r.update(e, "restriction", func(t *dataplane.Target) { t.Sources = sources })
}
