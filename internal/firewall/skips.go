// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// This file says what packets of established connections skip on the fast path: rules of others at the
// hooks forward and postrouting that would drop, limit, change, mark or log them. Counters alone do not
// count. A rule that accepts established connections hides those behind it in its base chain.

// Skip is a rule, or the policy of a chain, that has no effect on the fast path.
type Skip struct {
	Rule string `json:"rule"`
	Does string `json:"does"` // to packets of established connections that it matches
}

// Skips returns what the fast path skips in the calling thread's network namespace. What cannot be evaluated
// counts as if it matched. What cannot be read is the last one.
func Skips(ctx context.Context) (all []Skip) {
	conn, err := nfnl.Dial(0)
	if err != nil {
		return []Skip{unread(err)}
	}
	defer conn.Close()
	for _, ipv6 := range []bool{false, true} {
		chains, failed := Chains(ctx, conn, ipv6)
		err = errors.Join(err, failed)
		for _, c := range chains {
			if c.walker == nil || c.nat || c.Hook != unix.NF_INET_FORWARD && c.Hook != unix.NF_INET_POST_ROUTING {
				continue
			}
			for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
				c.Drops(&Packet{Protocol: protocol, Established: true, IPv6: ipv6})
				for _, d := range c.walker.drops {
					does := "may drop"
					if d.Certain {
						does = "drops"
					}
					all = append(all, Skip{d.Rule, does})
				}
				for _, s := range c.walker.skips {
					all = append(all, Skip{c.Table + ": " + s.Rule, s.Does})
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b Skip) int { return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Does, b.Does)) })
	all = slices.CompactFunc(all, func(a, b Skip) bool { return a.Rule == b.Rule })
	if err != nil {
		all = append(all, unread(err))
	}
	return all
}

func unread(err error) Skip {
	return Skip{fmt.Sprintf("rules that cannot be read (%v)", err), "could not tell"}
}

// effects are those of expressions of nf_tables, and of targets and matches of iptables, beside verdicts.
var effects = map[string]string{
	"limit": "limits", "quota": "limits", "connlimit": "limits", "hashlimit": "limits", "dynset": "limits or records",
	"log": "logs", "LOG": "logs", "NFLOG": "logs", "dup": "copies", "TEE": "copies", "fwd": "redirects", "tproxy": "redirects",
	"queue": "passes to a program", "NFQUEUE": "passes to a program", "recent": "limits or records", "connbytes": "limits",
	"MARK": "marks", "CONNMARK": "marks", "CLASSIFY": "marks", "DSCP": "changes", "TOS": "changes", "TTL": "changes", "HL": "changes",
}

// state returns the state of the packet's connection, in the encoding of nf_tables.
func (p *Packet) state() uint32 {
	if p.Established {
		return 1 << 1 // NF_CT_STATE_BIT(IP_CT_ESTABLISHED)
	}
	return 1 << 3 // NF_CT_STATE_BIT(IP_CT_NEW)
}

func (p *Packet) stateName() string {
	if p.Established {
		return "ESTABLISHED"
	}
	return "NEW"
}

// xtMatch evaluates a match of iptables in a rule of nf_tables, which is known of states only.
func (p *Packet) xtMatch(name string, info []byte) matching {
	const stateOnly, stateAt, flagsAt = 1, 150, 146 // struct xt_conntrack_mtinfo3
	switch {
	case name == "comment":
		return yes
	case name == "state" && len(info) >= 4:
		return matchingOf(binary.NativeEndian.Uint32(info)&p.state() != 0)
	case name == "conntrack" && len(info) >= stateAt+4:
		field := func(at int) uint16 { return binary.NativeEndian.Uint16(info[at:]) }
		has := matchingOf(field(stateAt)&uint16(p.state()) != 0)
		if field(flagsAt+2)&stateOnly != 0 {
			has = yes - has
		}
		if flags := field(flagsAt); flags&stateOnly == 0 || flags != stateOnly && has == yes || field(stateAt) > 1<<5 && has == no {
			return maybe // translated addresses, for example
		}
		return has
	}
	return maybe
}

// SkipLines describes skips, the first of them, by a line for each.
func SkipLines(all []Skip) (lines []string) {
	const most = 8
	for i, s := range all {
		if i == most {
			return append(lines, fmt.Sprintf("and %d more", len(all)-most))
		}
		lines = append(lines, s.Does+": "+s.Rule)
	}
	return lines
}
