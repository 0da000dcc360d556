// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"bytes"
	"context"
	"errors"
	"hash/fnv"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// This file says what the rules of others at the hooks prerouting, forward and postrouting do to packets of established
// connections. Counters alone do not count, and rules behind one that accepts such packets do not. A mark that all packets
// of a connection get in prerouting does not count either, as routing by marks is the rule there. Rules of two kinds
// matter:
//
//   - Some do the same to all packets of a direction of a connection: they drop them by addresses, ports or
//     interfaces. Packets that have passed all chains were judged by these.
//   - Others limit, mark, change or log packets, or drop some, for example by their length.

// Field is what all packets of one direction of a connection have in common.
type Field uint8

// The fields, as packets of the direction have them in the hook forward, after DNAT and before SNAT.
const (
	Other Field = iota
	Source
	Destination
	SourcePort
	DestinationPort
	In
	Out
	mark
)

// Condition is that a field is in one of some ranges, or in none of them.
type Condition struct {
	Field  Field
	Not    bool
	Ranges []Range
}

// Range is values of a field, in the network's order. Names of interfaces have 16 bytes.
type Range struct{ First, Last []byte }

// Step says what becomes of packets for which all of its conditions hold: Keep is that a rule treats single packets, or that
// this is not known. Otherwise a chain has no more rules for them. The first step that applies decides.
type Step struct {
	When []Condition
	Keep bool
}

// Way is the rules of one chain for packets of a family and a protocol.
type Way struct {
	IPv6     bool
	Protocol uint8
	AfterNAT bool // the chain sees sources after SNAT
	Before   bool // the chain sees destinations before DNAT
	Steps    []Step
}

// Established is what rules do to packets of established connections.
type Established struct {
	Ways   []Way  // of chains that have steps to keep
	Judges bool   // rules drop all packets of some connections, in one direction or both
	Skips  []Skip // all of them
	Hash   uint64 // of the rules that these depend on
}

// Skip is a rule, or the policy of a chain, that has no effect on packets that skip it.
type Skip struct {
	Rule string `json:"rule"`
	Does string `json:"does"` // to packets of established connections that it matches
	Keep bool   `json:"keeps,omitempty"`
}

// mostSteps bounds what is known of a chain. If there are more, all packets that pass it are kept.
const mostSteps = 500

// Examine evaluates the rules in the network namespace of conn, which has to be the calling thread's.
func Examine(ctx context.Context, conn *nfnl.Conn) (*Established, error) {
	e := &Established{}
	sum := fnv.New64a()
	var err error
	for _, ipv6 := range []bool{false, true} {
		chains, failed := Chains(ctx, conn, ipv6, func(c *nfnl.BaseChain) bool { return c.Type != "nat" && hooks[c.Hook] })
		err = errors.Join(err, failed)
		for _, c := range chains {
			if c.walker == nil || !hooks[c.Hook] {
				continue
			}
			for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
				c.walker.hash = sum
				c.Drops(&Packet{Protocol: protocol, Established: true, Translated: true, IPv6: ipv6})
				w := c.walker
				e.Judges = e.Judges || w.judges
				for _, s := range w.skips {
					e.Skips = append(e.Skips, Skip{c.Table + ": " + s.Rule, s.Does, s.Keep})
				}
				const priorityNATSource = 100
				if steps := relevant(w.steps); len(steps) > 0 {
					after, before := c.Hook == unix.NF_INET_POST_ROUTING && c.Priority >= priorityNATSource, c.Hook == unix.NF_INET_PRE_ROUTING && c.Priority < PriorityDNAT
					e.Ways = append(e.Ways, Way{ipv6, protocol, after, before, steps})
				}
			}
		}
	}
	programs, failed := programs(conn)
	for _, p := range programs {
		e.Skips = append(e.Skips, Skip{p.String(), "may do anything", true})
		for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			e.Ways = append(e.Ways, Way{IPv6: p.family == nfnl.IPv6, Protocol: protocol, Steps: []Step{{Keep: true}}})
		}
	}
	err = errors.Join(err, failed)
	e.Hash = sum.Sum64()
	return e, err
}

// hooks are those that packets on the fast path skip.
var hooks = map[uint32]bool{unix.NF_INET_PRE_ROUTING: true, unix.NF_INET_FORWARD: true, unix.NF_INET_POST_ROUTING: true}

// relevant leaves out steps that make no difference.
func relevant(steps []Step) (all []Step) {
	for i, s := range steps {
		rest := steps[i+1:]
		next := slices.IndexFunc(rest, func(o Step) bool { return o.Keep })
		if !s.Keep && next < 0 {
			break
		}
		if !s.Keep && slices.ContainsFunc(rest[:next], s.within) || slices.ContainsFunc(all, s.within) {
			continue
		}
		if all = append(all, s); len(s.When) == 0 || len(all) > mostSteps {
			break
		}
	}
	if len(all) > mostSteps {
		return []Step{{Keep: true}}
	}
	return all
}

// within reports whether another step applies whenever this one does.
func (s Step) within(o Step) bool {
	return !slices.ContainsFunc(o.When, func(c Condition) bool { return !slices.ContainsFunc(s.When, c.equal) })
}

func (c Condition) equal(o Condition) bool {
	return c.Field == o.Field && c.Not == o.Not && slices.EqualFunc(c.Ranges, o.Ranges, func(a, b Range) bool {
		return bytes.Equal(a.First, b.First) && bytes.Equal(a.Last, b.Last)
	})
}

// path is what is known of packets that reach a rule.
type path struct {
	certain bool        // they are all
	when    []Condition // hold for them
	whole   bool        // all others do not reach it
	varies  bool        // whether they reach it is no property of their connection
}

// outcome is what a rule does to the walker's packet.
type outcome struct {
	match   matching
	v       verdict
	effect  string
	expires bool // an element by which it matches may expire
	path
}

// and adds a condition that is not known to hold, or that another field is equal to something.
func (o *outcome) and(c Condition, varies bool) {
	if c.Field == Other || c.Field == mark || c.Ranges == nil {
		o.whole, o.varies = false, o.varies || varies
		return
	}
	o.when = append(o.when, c)
}

// through is the path of packets that a rule matches.
func (p path) through(o *outcome) path {
	if o.match == yes {
		return p
	}
	return path{false, slices.Concat(p.when, o.when), p.whole && o.whole, p.varies || o.varies}
}

func (w *walker) step(p path, keep bool) {
	if keep || p.whole {
		w.steps = append(w.steps, Step{p.when, keep})
	}
}

// width is the size of a field in bytes.
func (f Field) width(ipv6 bool) int {
	switch {
	case f == In || f == Out:
		return unix.IFNAMSIZ
	case f == SourcePort || f == DestinationPort:
		return 2
	case ipv6:
		return 16
	}
	return 4
}

// fills returns the range of all values that begin with some bytes, or nil.
func (f Field) fills(first, last []byte, ipv6 bool) []Range {
	n := f.width(ipv6) - len(first)
	if n < 0 || len(first) != len(last) {
		return nil
	}
	return []Range{{append(slices.Clone(first), make([]byte, n)...), append(slices.Clone(last), bytes.Repeat([]byte{0xff}, n)...)}}
}

// constant are expressions of nf_tables and matches of iptables whose results are the same for all packets of one direction of
// a connection. (A packet's mark is, as what sets one is an effect. Programs can set that of a connection at any time.)
var constant = map[string]bool{
	"fib": true, "rt": true, "socket": true, "xfrm": true, "byteorder": true,
	"conntrack": true, "state": true, "comment": true, "tcp": true, "udp": true, "multiport": true, "addrtype": true, "mark": true,
	"iprange": true, "mac": true, "pkttype": true, "physdev": true, "policy": true, "rpfilter": true, "icmp": true, "icmp6": true, "sctp": true,
}

// constantMeta are keys of "meta" that are like that, and varyingCT those of "ct" that are not.
var constantMeta = map[uint32]bool{
	unix.NFT_META_PROTOCOL: true, unix.NFT_META_L4PROTO: true, unix.NFT_META_NFPROTO: true, unix.NFT_META_MARK: true, unix.NFT_META_PKTTYPE: true, unix.NFT_META_IIF: true, unix.NFT_META_OIF: true, unix.NFT_META_IIFTYPE: true,
	unix.NFT_META_OIFTYPE: true, unix.NFT_META_IIFGROUP: true, unix.NFT_META_OIFGROUP: true, unix.NFT_META_BRI_IIFNAME: true,
	unix.NFT_META_BRI_OIFNAME: true, unix.NFT_META_RTCLASSID: true,
}

var varyingCT = map[uint32]bool{unix.NFT_CT_EXPIRATION: true, unix.NFT_CT_PKTS: true, unix.NFT_CT_BYTES: true, unix.NFT_CT_AVGPKT: true,
	unix.NFT_CT_MARK: true, unix.NFT_CT_LABELS: true}

// note adds text to the hash of the rules that were met.
func (w *walker) note(parts ...[]byte) {
	if w.hash != nil {
		for _, p := range parts {
			_, _ = w.hash.Write(p) // it has no error
		}
	}
}
