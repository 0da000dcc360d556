// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Describe implements dataplane.Dataplane.
func (b *Dataplane) Describe(f *desired.Frontend, id desired.PoolID) dataplane.Detail {
	s := b.schemas[desired.FamilyOf(f.Addr())]
	key := fmt.Sprintf("%s . %d", strings.ToLower(f.Protocol.String()), f.Port())
	if !f.OnNode() {
		key = fmt.Sprintf("%s . %s", f.Addr(), key)
	}
	set := s.setsOf(f.FrontendKey, f.Scope).frontends
	if f.IsRange() {
		set, key = s.ranges, fmt.Sprintf("%s-%d", key, f.Last)
	}
	d := dataplane.Detail{Object: fmt.Sprintf("map %s %s %s { %s }", s.table.Family, tableName, set.Name, key)}
	if p := b.pools.Get(id); p != nil {
		d.Scheduler = p.Algorithm.String()
		if p.needsCounter() && p.counter.number == 0 {
			d.Scheduler = desired.Random.String() // no counter was left
		}
	}
	return d
}
