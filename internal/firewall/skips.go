// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// Skips returns what the fast path can skip in the calling thread's network namespace. What cannot be evaluated
// counts as if it matched. What cannot be read is the last one.
func Skips(ctx context.Context) []Skip {
	conn, err := nfnl.Dial(0)
	if err != nil {
		return []Skip{unread(err)}
	}
	defer conn.Close()
	e, err := Examine(ctx, conn)
	all := e.Skips
	slices.SortFunc(all, func(a, b Skip) int { return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Does, b.Does)) })
	all = slices.CompactFunc(all, func(a, b Skip) bool { return a.Rule == b.Rule })
	if err != nil {
		all = append(all, unread(err))
	}
	return all
}

func unread(err error) Skip {
	return Skip{fmt.Sprintf("rules that cannot be read (%v)", err), "could not tell", true}
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

// SkipLines describes skips, the first of them, by a line for each: all that the fast path can skip, or those that keep
// connections off it.
func SkipLines(skips []Skip, all bool) (lines []string) {
	const most = 8
	shown := slices.DeleteFunc(slices.Clone(skips), func(s Skip) bool { return !all && !s.Keep })
	for i, s := range shown {
		if i == most {
			return append(lines, fmt.Sprintf("and %d more", len(shown)-most))
		}
		lines = append(lines, s.Does+": "+s.Rule)
	}
	return lines
}
