// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables/expr"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/firewall"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// Bypass says which rules of other programs connections on the fast path may bypass. The zero value is BypassNone.
type Bypass string

// The choices for rules.
const (
	// BypassNone is none that do something to packets of established connections, beside counting: a connection
	// that such a rule can match stays on the slow path.
	BypassNone Bypass = "none"
	// BypassAll is all.
	BypassAll Bypass = "all"
)

// foreign are the rules of other programs that connections on the fast path would bypass, as package firewall reads them.
//
// What rules do to all packets of a direction of a connection, the kernel decides: a connection is offloaded only after a packet
// of each direction has passed all chains since the rules last changed. The base chain judge, after all others, notes that,
// except for packets that a rule can match whose effect differs from packet to packet.
type foreign struct {
	mu         sync.Mutex // held while they are read
	conn       *nfnl.Conn
	next       time.Time // they are not read before
	generation uint32    // of the ruleset that was read; 0 if none
	elsewhere  string    // what firewall.Elsewhere said then
	at         time.Time

	// Under the Controller's lock:
	known  *firewall.Established // nil if they could not be read
	chains []string              // that are programmed for them
	due    bool                  // offloaded connections have yet to pass them
}

// share is the part of the time that reading rules may take, and elsewherePeriod how often they are read in any case if
// some are elsewhere than in nf_tables, as not all changes are seen there.
const (
	share           = 20
	elsewherePeriod = time.Minute
)

// passed are the connections of which a packet has passed all chains, by direction.
var passed = [...]*nfnl.Set{nfnl.Original: passedSet("passed-original"), nfnl.Reply: passedSet("passed-reply")}

func passedSet(name string) *nfnl.Set {
	return &nfnl.Set{Name: name, KeyType: nfnl.TypeInteger, KeyLen: 4, KeyTypeof: nfnl.CtID, Flags: unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL, Size: 1 << 16}
}

// followRules reads the rules of others if they may have changed, and has connections pass them if they have.
func (c *Controller) followRules(ctx context.Context) {
	err := c.readRules(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.foreign.due && c.sequence.Check() == nil { // otherwise Reconcile programs what they require first
		c.foreign.due = false
		c.mu.Unlock()
		failed := c.Flush(ctx, Flush{All: true})
		c.mu.Lock()
		c.foreign.due = c.foreign.due || failed != nil
		err = errors.Join(err, failed)
	}
	if err != nil && ctx.Err() == nil {
		c.stats.Errors++
		c.logOnce(err, "Fast path: rules of other programs could not be followed, will try again")
	}
}

// readRules reads the rules if they may have changed, and programs what they require.
func (c *Controller) readRules(ctx context.Context) error {
	o := &c.foreign
	o.mu.Lock()
	defer o.mu.Unlock()
	if c.config.Bypass == BypassAll || time.Now().Before(o.next) {
		return nil
	}
	return dataplane.Inside(c.config.NetNS, func() error {
		generation, err := o.conn.Generation()
		elsewhere, failed := firewall.Elsewhere(o.conn)
		if err = errors.Join(err, failed); err == nil && generation == o.generation && elsewhere == o.elsewhere && (elsewhere == "" || time.Since(o.at) < elsewherePeriod) {
			return nil
		}
		o.generation, o.at = 0, time.Now()
		var rules *firewall.Established
		if err == nil {
			rules, err = firewall.Examine(ctx, o.conn)
		}
		o.next = time.Now().Add(max(retry, share*time.Since(o.at)) - retry/2)
		if err != nil {
			rules = nil // no connection is offloaded
		}
		if err = errors.Join(err, c.judgeBy(rules)); err == nil {
			o.generation, o.elsewhere = generation, elsewhere
		}
		return err
	})
}

// judgeBy programs what the rules of others require, if it differs.
func (c *Controller) judgeBy(rules *firewall.Established) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.foreign.known
	c.foreign.known = rules
	if rules != nil && was != nil && rules.Judges == was.Judges && reflect.DeepEqual(rules.Ways, was.Ways) && (rules.Hash == was.Hash || !rules.Judges && len(rules.Ways) == 0) || rules == was {
		return nil
	}
	c.foreign.due = c.foreign.due || c.built
	if c.sequence.Check() != nil {
		return nil // Reconcile programs it
	}
	var b nfnl.Batch
	for _, name := range c.foreign.chains {
		b.FlushChain(table, name)
	}
	for _, name := range c.foreign.chains {
		b.DeleteChain(table, name)
	}
	b.FlushChain(table, chainUnjudged)
	for _, s := range passed {
		b.FlushSet(table, s)
	}
	c.writeJudges(&b)
	if err := c.conn.Commit(0, &b); err != nil {
		c.foreign.known = nil
		c.sequence.Begin() // the next Check finds that Reconcile has to program all
		return err
	}
	return c.guard.expect(c)
}

// writeJudges writes the chains that the rules of others require.
func (c *Controller) writeJudges(b *nfnl.Batch) {
	o := &c.foreign
	o.chains = nil
	rule := writeTo(b)
	chain := func(hook *nfnl.Hook, name string) string {
		b.AddChain(table, nfnl.Chain{Name: name, Hook: hook})
		o.chains = append(o.chains, name)
		return name
	}
	end := verdict(expr.VerdictAccept, "")
	switch {
	case c.config.Bypass == BypassAll:
		return
	case o.known == nil:
		rule(chainUnjudged, "rules of others are not known", end)
		return
	case !o.known.Judges && len(o.known.Ways) == 0:
		return
	}
	for _, s := range passed {
		rule(chainUnjudged, "", ct(ctKeyID), notIn(s), end)
	}
	candidates := chain(nil, chainCandidates)
	first := chain(&nfnl.Hook{Type: "filter", Num: unix.NF_INET_POST_ROUTING, Priority: forwardPriority - 1}, chainJudge)
	rule(first, "", packetsUpTo(c.config.Threshold), ret())
	rule(first, "", stateIs(notOfConnection), ret())
	c.selected(rule, first, candidates)
	for direction, set := range passed {
		for i := range families {
			f := &families[i]
			for _, protocol := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} { // always in this order, for Verify
				name := map[byte]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp"}[protocol]
				to := chain(nil, fmt.Sprintf("%s-%s-%s", set.Name, f.name, name))
				rule(candidates, "", directionIs(direction), is(meta(expr.MetaKeyNFPROTO), byte(f.Family)), is(meta(expr.MetaKeyL4PROTO), protocol), goTo(to))
				rule(to, "", ct(ctKeyID), in(set), ret())
				for n, way := range o.known.Ways {
					if way.IPv6 == (f.Family == nfnl.IPv6) && way.Protocol == protocol {
						inner := chain(nil, fmt.Sprint(to, "-", n))
						rule(to, "", verdict(expr.VerdictJump, inner))
						f.writeWay(rule, inner, uint8(direction), &way)
					}
				}
				const passedFor = 2 * time.Minute
				rule(to, "", remember(set, passedFor))
			}
		}
	}
}

// The kernel takes at most 128 expressions and 4 kB for a rule: two expressions for a range.
const (
	mostRanges = 48      // in one rule
	mostRules  = 1 << 12 // in one chain
)

// writeWay writes the steps of one chain for packets of a direction. What is kept ends there, and is not noted.
func (f *family) writeWay(rule writeRule, chain string, direction uint8, way *firewall.Way) {
	left := mostRules
	for _, s := range way.Steps {
		end := ret()
		if s.Keep {
			end = verdict(expr.VerdictAccept, "")
		}
		alternatives, whole, ranges := [][]expr.Any{nil}, true, 0
		for _, c := range s.When {
			op, inEach, rules := expr.CmpOpEq, 1, len(alternatives)*len(c.Ranges)
			if c.Not { // all of them have to hold
				op, inEach, rules = expr.CmpOpNeq, len(c.Ranges), len(alternatives)
			}
			if ranges+inEach > mostRanges || rules > min(left, 1<<10) {
				whole = false // more packets are kept
				continue
			}
			ranges += inEach
			load := f.load(c.Field, direction, way)
			var more [][]expr.Any
			for _, r := range c.Ranges {
				for _, a := range alternatives {
					more = append(more, append(slices.Concat(a, load), &expr.Range{Op: op, Register: regKey, FromData: r.First, ToData: r.Last}))
				}
				if c.Not {
					alternatives, more = more, nil
				}
			}
			if !c.Not {
				alternatives = more
			}
		}
		if !whole && !s.Keep {
			continue
		}
		left -= len(alternatives)
		for _, a := range alternatives {
			rule(chain, "", a, end)
		}
	}
}

// load loads a field of a packet in the hook postrouting, as it was where the rule is.
func (f *family) load(field firewall.Field, direction uint8, way *firewall.Way) []expr.Any {
	address := &expr.Payload{DestRegister: regKey, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: f.AddrLen()}
	if f.Family == nfnl.IPv6 {
		address.Offset = 8
	}
	port := &expr.Payload{DestRegister: regKey, Base: expr.PayloadBaseTransportHeader, Len: 2}
	switch {
	case field == firewall.In:
		return meta(expr.MetaKeyIIFNAME)
	case field == firewall.Out:
		return meta(expr.MetaKeyOIFNAME)
	case field == firewall.Destination && way.Before:
		return []expr.Any{nfnl.CtDestination.Load(f.Family, direction, regKey)}
	case field == firewall.DestinationPort && way.Before:
		return []expr.Any{nfnl.CtDestinationPort.Load(f.Family, direction, regKey)}
	case field == firewall.Destination:
		address.Offset += f.AddrLen()
		return []expr.Any{address}
	case field == firewall.DestinationPort:
		port.Offset = 2
		return []expr.Any{port}
	case field == firewall.Source && way.AfterNAT:
		return []expr.Any{address}
	case field == firewall.Source:
		return []expr.Any{nfnl.CtSource.Load(f.Family, direction, regKey)}
	case way.AfterNAT:
		return []expr.Any{port}
	}
	return []expr.Any{nfnl.CtSourcePort.Load(f.Family, direction, regKey)}
}

// is compares a byte that was loaded.
func is(load []expr.Any, value byte) []expr.Any {
	return append(load, &expr.Cmp{Op: expr.CmpOpEq, Register: regKey, Data: []byte{value}})
}

// directionIs matches packets of a direction.
func directionIs(direction int) []expr.Any {
	return is(ct(expr.CtKeyDIRECTION), byte(direction))
}
