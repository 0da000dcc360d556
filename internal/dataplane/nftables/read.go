// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

var _ dataplane.Reader = (*Dataplane)(nil)

// Read implements dataplane.Reader. It uses nothing but the kernel's answers.
func (b *Dataplane) Read(ctx context.Context) (*dataplane.Content, error) {
	c := dataplane.NewContent()
	for f := range schemas {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		r := tableReader{schema: &rangedSchemas[f], conn: b.conn, content: c}
		if r.read(); r.err != nil {
			return nil, fmt.Errorf("reading table %s %s: %w", schemas[f].table.Family, tableName, r.err)
		}
	}
	slices.Sort(c.Faults)
	return c, nil
}

// tableReader reads one table.
type tableReader struct {
	*schema
	conn    *nfnl.Conn
	content *dataplane.Content
	err     error

	selectors map[uint32]int                // values of the map pools, by pool
	picks     map[*nfnl.Set]map[uint32]bool // keys of the maps to chains
	slots     [scopes]map[uint32]map[uint32]desired.Backend
	members   map[uint32][]desired.Backend
	keys      map[uint32]uint32               // of picks, that pools lead to
	parts     map[string][]desired.Part       // of ranges, by the keys of frontends
	remembers map[uint32]bool                 // timeouts with a chain
	toPool    [scopes]map[string]nfnl.Element // from ranges, as if they were ports
	stickies  []desired.FrontendKey           // frontends that have a pool with affinity
}

func (r *tableReader) fault(format string, args ...any) {
	r.content.Faults = append(r.content.Faults, fmt.Sprintf("%s: ", r.table.Family)+fmt.Sprintf(format, args...))
}

func (r *tableReader) read() {
	if _, err := r.conn.Table(r.table); errors.Is(err, unix.ENOENT) {
		return
	}
	if err := r.conn.Elements(r.table, r.ranges.Name, func(nfnl.Element) {}); errors.Is(err, unix.ENOENT) {
		r.schema = &schemas[r.family]
	} else if !errors.Is(err, nfnl.ErrInterrupted) {
		r.err = err
	}
	r.init()
	r.elements(r.pools, r.readPool)
	r.elements(r.schema.members, func(e nfnl.Element) {
		id := firstNumber(e.Key)
		r.members[id] = append(r.members[id], r.backend(e.Key[8:], e.Key[4:]))
	})
	if r.ranged {
		r.intervals(r.ranges, r.portRange)
		r.elements(r.schema.partners, r.partner)
		r.elements(r.rangeSets[0].pools, r.readPool)
	}
	r.elements(r.schema.remember, func(e nfnl.Element) {
		seconds := firstNumber(e.Key)
		r.remembers[seconds] = true
		r.checkGoesTo(r.schema.remember, e, nfnl.Jump, rememberChain(seconds))
	})
	for d := range r.eachScopeSets {
		for _, picks := range []*nfnl.Set{d.picks, d.stickyPicks} {
			r.elements(picks, func(e nfnl.Element) {
				selector := firstNumber(e.Key)
				r.picks[picks][selector] = true
				r.checkGoesTo(picks, e, nfnl.Goto, d.chainOf(int(int32(selector))))
			})
		}
		if !d.onNode {
			r.elements(d.endpoints, func(e nfnl.Element) { r.endpoint(int(d.scope), e) })
		}
	}
	frontend := [scopes]func(nfnl.Element){func(e nfnl.Element) { r.readFrontendElement(desired.Cluster, e) }, r.localFrontend}
	for d := range r.eachScopeSets { // first those of the scope Cluster
		if !d.inRange {
			r.elements(d.frontends, frontend[d.scope])
			continue
		}
		for _, e := range r.toPool[d.scope] {
			frontend[d.scope](e)
		}
	}
	r.elements(r.external, r.setExternal)
	r.elements(r.addressSets[0].sticky, r.sticky)
	r.elements(r.schema.nodePortSets[0].sticky, r.sticky)
	r.restrictions()
	r.elements(r.clusterIPs, func(e nfnl.Element) { r.has(desired.ClusterIPs, desired.Address(r.ip(e.Key))) })
	r.elements(r.nodeAddresses, func(e nfnl.Element) { r.has(desired.NodeAddresses, desired.Address(r.ip(e.Key))) })
	r.elements(r.loopback, func(e nfnl.Element) {
		r.has(desired.RefusedNodePorts, desired.PortOf(r.family, desired.Protocol(e.Key[0]), binary.BigEndian.Uint16(e.Key[4:])))
	})
	r.elements(r.hairpin, func(e nfnl.Element) {
		r.has(desired.HairpinIPs, desired.Address(r.ip(e.Key)))
		if r.ip(e.Key) != r.ip(e.Key[r.addrLen:]) {
			r.fault("hairpin of two addresses %x", e.Key)
		}
	})
	r.intervals(r.serviceCIDRs, func(first nfnl.Element, last []byte) {
		r.has(desired.ServiceCIDRs, desired.Range(r.prefix(first.Key, last)))
	})
	r.checkSlots()
	for _, key := range r.stickies {
		if r.content.Frontends[key].Affinity == 0 {
			r.fault("frontend %s has no affinity but its pool has", key)
		}
	}
}

func (r *tableReader) readPool(e nfnl.Element) {
	id := firstNumber(e.Key)
	r.keys[id], r.selectors[id] = firstNumber(e.Value[4:]), int(int32(firstNumber(e.Value[8:])))
}

func (r *tableReader) has(set desired.Set, m desired.Member) { r.content.Sets[set][m] = true }

func (r *tableReader) init() {
	r.keys, r.parts = map[uint32]uint32{}, map[string][]desired.Part{}
	r.selectors, r.members, r.remembers = map[uint32]int{}, map[uint32][]desired.Backend{}, map[uint32]bool{}
	for i := range r.slots {
		r.slots[i], r.toPool[i] = map[uint32]map[uint32]desired.Backend{}, map[string]nfnl.Element{}
	}
	r.picks = map[*nfnl.Set]map[uint32]bool{}
	for d := range r.eachScopeSets {
		r.picks[d.picks], r.picks[d.stickyPicks] = map[uint32]bool{}, map[uint32]bool{}
	}
}

func (r *tableReader) setExternal(e nfnl.Element) {
	r.update(e, "external", func(t *dataplane.Target) { t.External = true })
}

// elements reads a set. It accepts interrupted dumps, because under constant transactions
// every dump is interrupted. The caller reads again to confirm a difference.
func (r *tableReader) elements(set *nfnl.Set, visit func(nfnl.Element)) {
	check := func(e nfnl.Element) {
		unused := len(e.Value) > 0 && set.DataType != r.addressSets[0].endpoints.DataType && firstNumber(e.Value) != 0
		if unused || e.Acts || !set.KeyType.Filled(e.Key) || !set.DataType.Filled(e.Value) {
			r.fault("%s has %x : %x, with bits or expressions that Slipstream does not write", set.Name, e.Key, e.Value)
		}
		visit(e)
	}
	switch err := r.conn.Elements(r.table, set.Name, check); {
	case errors.Is(err, unix.ENOENT):
		r.fault("%s does not exist", set.Name)
	case !errors.Is(err, nfnl.ErrInterrupted):
		r.err = errors.Join(r.err, err)
	}
}

// checkGoesTo reports an element of a map to chains that leads to another chain than it should.
func (r *tableReader) checkGoesTo(set *nfnl.Set, e nfnl.Element, verdict nfnl.Verdict, chain string) {
	if e.Verdict != verdict || e.Chain != chain {
		r.fault("%s leads %d to %q instead of %q", set.Name, int32(firstNumber(e.Key)), e.Chain, chain)
	}
}

// checkSlots reports inconsistent slots and members as faults.
func (r *tableReader) checkSlots() {
	for i := range r.slots {
		for id, slots := range r.slots[i] {
			if _, ok := r.selectors[id]; !ok {
				r.fault("%s of pool %d, which does not exist", r.addressSets[i].endpoints.Name, id)
			}
			for slot := range slots {
				if int(slot) >= len(slots) {
					r.fault("pool %d has slot %d but only %d backends", id, slot, len(slots))
				}
			}
		}
	}
	for id := range r.members {
		if selector := r.selectors[id]; selector < 0 || selector&stickySelector == 0 {
			r.fault("members of pool %d, which has no affinity", id)
		}
	}
}

func (r *tableReader) ip(key []byte) netip.Addr {
	ip, _ := netip.AddrFromSlice(key[:r.addrLen])
	return ip
}

// backend decodes an address and a port.
func (r *tableReader) backend(addr, port []byte) desired.Backend {
	return desired.NewBackend(netip.AddrPortFrom(r.ip(addr), binary.BigEndian.Uint16(port)))
}

func (r *tableReader) endpoint(scopeSets int, e nfnl.Element) {
	id, slot := firstNumber(e.Key), firstNumber(e.Key[4:])
	if r.slots[scopeSets][id] == nil {
		r.slots[scopeSets][id] = map[uint32]desired.Backend{}
	}
	r.slots[scopeSets][id][slot] = r.backend(e.Value, e.Value[r.addrLen:])
}

// choice returns the backends of a frontend's pool.
func (r *tableReader) choice(scope desired.Scope, e nfnl.Element) (key desired.FrontendKey, c dataplane.Choice, sticky, ok bool) {
	key, ok = r.decodeFrontendKey(e.Key)
	id := firstNumber(e.Value[4:])
	selector, exists := r.selectors[id]
	if !ok || !exists {
		r.fault("frontend %x has pool %d, which does not exist", e.Key, id)
		return key, c, false, false
	}
	d := r.setsOf(key, scope)
	sticky = selector > 0 && selector&stickySelector != 0
	shared := r.keys[id]&sharedSelector != 0 && selector > 0
	if want := selectorKey(selector); r.keys[id] != want && !(shared && sticky && r.keys[id] == want|sharedSelector) {
		r.fault("pool %d leads to %#x", id, r.keys[id])
	}
	if !r.picks[d.picks][r.keys[id]] || sticky && !r.picks[d.stickyPicks][uint32(selector)] {
		r.fault("frontend %s draws by %#x, for which there is no chain", key, selector)
	}
	slots := make([]desired.Backend, len(r.slots[scope][id]))
	for i, b := range r.slots[scope][id] {
		if int(i) < len(slots) { // others are a fault already
			slots[i] = b
		}
	}
	var balance desired.Balance
	switch {
	case selector < 0 || selector&hashSelector == 0:
	case selector&portSelector != 0:
		balance.Algorithm = desired.MaglevPort
	default:
		balance.Algorithm = desired.Maglev
	}
	c = dataplane.ChoiceOf(balance, slots)
	switch selector {
	case dropSelector:
		c.IfEmpty = desired.Drop
		if len(c.Backends) > 0 {
			r.fault("frontend %s drops but has backends", key)
		}
		return key, c, false, true
	case passSelector:
		c.IfEmpty = desired.Pass
		return key, c, false, true
	case ipvsSelector:
		c.ByIPVS = true
		return key, c, false, true
	}
	want := len(slots)
	if !ordered(selector) {
		want = pickSize(want)
	}
	if size := selector & sizeMask; size != want {
		r.fault("frontend %s draws below %d for %d slots", key, size, len(slots))
	}
	if sticky { // members can be without a slot because of their weight
		members := slices.SortedFunc(slices.Values(r.members[id]), desired.Backend.Compare)
		if shared { // one for each address
			for _, b := range c.Backends {
				if slices.ContainsFunc(members, func(m desired.Backend) bool { return m.Addr() == b.Addr() }) && !slices.Contains(members, b) {
					members = append(members, b)
				}
			}
			slices.SortFunc(members, desired.Backend.Compare)
		}
		if slices.ContainsFunc(c.Backends, func(b desired.Backend) bool { return !slices.Contains(members, b) }) {
			r.fault("frontend %s has backends %v but members %v", key, c.Backends, members)
		}
		c.Backends = members
	}
	return key, c, sticky, true
}

func (r *tableReader) readFrontendElement(scope desired.Scope, e nfnl.Element) {
	key, c, sticky, ok := r.choice(scope, e)
	if !ok {
		return
	}
	r.content.Frontends[key] = dataplane.Target{Choice: c, External: key.OnNode(), Parts: r.parts[string(e.Key)]}
	if sticky {
		r.stickies = append(r.stickies, key)
	}
}

// update modifies a frontend that was read before.
func (r *tableReader) update(e nfnl.Element, what string, change func(*dataplane.Target)) {
	key, ok := r.decodeFrontendKey(e.Key)
	t, exists := r.content.Frontends[key]
	if !ok || !exists {
		r.fault("%s of frontend %s, which does not exist", what, key)
		return
	}
	change(&t)
	r.content.Frontends[key] = t
}

// localFrontend reads a frontend with a local pool: its only pool, or its pool for traffic from outside.
func (r *tableReader) localFrontend(e nfnl.Element) {
	key, _ := r.decodeFrontendKey(e.Key)
	if _, also := r.content.Frontends[key]; !also {
		r.readFrontendElement(desired.Local, e)
	} else if _, c, _, ok := r.choice(desired.Local, e); ok {
		r.update(e, "local pool", func(t *dataplane.Target) { t.FromOutside = &c })
	}
}

func (r *tableReader) sticky(e nfnl.Element) {
	seconds := firstNumber(e.Value[12:])
	var p desired.ServicePort
	p.Namespace, p.Name, _ = strings.Cut(string(e.Comment), "/")
	p.Name, p.Port, _ = strings.Cut(p.Name, ":")
	key, _ := r.decodeFrontendKey(e.Key)
	is := func(service, port uint32) bool {
		return firstNumber(e.Value[4:]) == service && firstNumber(e.Value[8:]) == port
	}
	whole := len(e.Comment) < nfnl.MaxComment
	r.update(e, "affinity", func(t *dataplane.Target) {
		t.Affinity = seconds % rangeTimeout // without backends, it does not matter
		if len(t.Backends) > 0 && whole && !is(affinityID(p, key.Protocol, false)) && !is(affinityID(p, key.Protocol, true)) {
			r.fault("frontend %s has the clients of another Service than %s", key, p)
		}
	})
	if !r.remembers[seconds] {
		r.fault("no chain for session affinity of %d s", seconds%rangeTimeout)
	}
}

// restrictions reads the source ranges of frontends.
func (r *tableReader) restrictions() {
	r.elements(r.restricted, func(e nfnl.Element) {
		r.update(e, "restriction", func(t *dataplane.Target) { t.Sources = []netip.Prefix{} })
	})
	r.intervals(r.schema.sources, func(e nfnl.Element, last []byte) {
		first := e.Key
		at := len(first) - int(r.addrLen)
		if !bytes.Equal(first[:at], last[:at]) {
			r.fault("source range from %x to %x spans two frontends", first, last)
		}
		r.update(e, "source", func(t *dataplane.Target) {
			if t.Sources == nil {
				r.fault("source ranges of an unrestricted frontend %x", first)
			}
			t.Sources = append(t.Sources, r.prefix(first[at:], last[at:]))
			slices.SortFunc(t.Sources, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
		})
	})
}

// intervals reads a set of intervals.
func (r *tableReader) intervals(set *nfnl.Set, visit func(first nfnl.Element, last []byte)) {
	var starts []nfnl.Element
	var ends [][]byte
	r.elements(set, func(e nfnl.Element) {
		if e.Key, e.Value = slices.Clone(e.Key), slices.Clone(e.Value); e.End {
			ends = append(ends, e.Key)
		} else {
			starts = append(starts, e)
		}
	})
	slices.SortFunc(starts, func(a, b nfnl.Element) int { return bytes.Compare(a.Key, b.Key) })
	slices.SortFunc(ends, bytes.Compare)
	for i, e := range starts {
		first, last := e.Key, bytes.Repeat([]byte{0xff}, len(e.Key))
		if i < len(ends) {
			last = nfnl.Before(ends[i])
		}
		if bytes.Compare(first, last) > 0 {
			r.fault("an interval of %s ends before it starts %x", set.Name, first)
		}
		visit(e, last)
	}
}

// prefix returns the prefix that contains exactly the addresses from first to last.
func (r *tableReader) prefix(first, last []byte) netip.Prefix {
	bits := 0
	for bits < len(first)*8 && (first[bits/8]^last[bits/8])&(0x80>>(bits%8)) == 0 {
		bits++
	}
	p := netip.PrefixFrom(r.ip(first), bits)
	if f, l := nfnl.Bounds(p); !bytes.Equal(f, first) || !bytes.Equal(l, last) {
		r.fault("not a prefix: %x to %x", first, last)
	}
	return p
}
