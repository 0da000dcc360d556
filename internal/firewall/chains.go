// SPDX-License-Identifier: Apache-2.0

// Package firewall evaluates the rules that other programs have in the kernel, of nf_tables, iptables-nft and
// iptables-legacy.
package firewall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/xtables"
)

// OurTable and LimitsTable are the names of the tables of nftables mode, FastPathTable that of the fast path's, of family
// inet, and OurChains the prefix of the chains of iptables mode.
const (
	OurTable      = "slipstream"
	LimitsTable   = "slipstream-limits"
	FastPathTable = "slipstream-fastpath"
	OurChains     = "SLIP-"
)

// Chains reads the base chains of a family, in the order in which packets pass them, also if there is an error: those
// that are wanted, nil for all.
func Chains(ctx context.Context, conn *nfnl.Conn, ipv6 bool, wanted func(*nfnl.BaseChain) bool) (all []Chain, err error) {
	family, legacy := nfnl.IPv4, xtables.IPv4
	if ipv6 {
		family, legacy = nfnl.IPv6, xtables.IPv6
	}
	walkers := map[nfnl.Table]*walker{}
	for _, f := range []nfnl.Family{family, nfnl.INET} {
		chains, failed := conn.BaseChains(f)
		err = errors.Join(err, failed)
		for _, c := range chains {
			if info, failed := conn.Table(c.Table); failed == nil && info.Dormant || wanted != nil && !wanted(&c) {
				continue
			}
			own := c.Table.Name == OurTable || c.Table.Name == LimitsTable || c.Table == (nfnl.Table{Family: nfnl.INET, Name: FastPathTable})
			if _, read := walkers[c.Table]; !read && !own {
				walkers[c.Table], failed = newWalker(conn, c.Table)
				err = errors.Join(err, failed)
			}
			all = append(all, Chain{fmt.Sprintf("table %s %s", c.Table.Family, c.Table.Name), c.Name, c.Hook, c.Priority, c.Drops, walkers[c.Table]})
		}
	}
	for table := range legacyPriorities {
		lines, failed := legacyRules(ctx, legacy, table)
		err = errors.Join(err, failed)
		all = append(all, legacyTable(Command(ipv6), table, lines)...)
	}
	slices.SortStableFunc(all, func(a, b Chain) int {
		return cmp.Or(cmp.Compare(a.Hook, b.Hook), cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Table, b.Table))
	})
	return all, err
}

// small is the size of a table of x_tables, in bytes, up to which reading it each second costs nothing worth mentioning.
const small = 1 << 16

// Elsewhere describes what the generation of nf_tables does not tell of, in the network namespace of conn, which has to be the
// calling thread's: BPF programs, and tables of x_tables; of large ones it does not tell all changes. It is "" if there are none.
func Elsewhere(conn *nfnl.Conn) (all string, err error) {
	programs, err := programs(conn)
	if err != nil {
		return "", err
	}
	for _, p := range programs {
		all += fmt.Sprintln(p)
	}
	for _, f := range []*xtables.Family{xtables.IPv4, xtables.IPv6} {
		names, err := f.Tables()
		if err != nil {
			return all, err
		}
		if len(names) == 0 { // also without IPv6, which has no sockets then
			continue
		}
		conn, err := xtables.Dial(f)
		if err != nil {
			return all, err
		}
		defer conn.Close()
		for _, name := range names {
			if _, has := legacyPriorities[name]; !has {
				continue
			}
			info, err := conn.Info(name)
			if err != nil {
				return all, err
			}
			hash := uint64(0)
			if info.Size <= small {
				t, err := conn.Read(name)
				if err != nil {
					return all, err
				}
				hash = t.Hash()
			}
			all += fmt.Sprintln(f, name, info, hash)
		}
	}
	return all, nil
}

// Command returns the name of the command for a family.
func Command(ipv6 bool) string {
	if ipv6 {
		return "ip6tables"
	}
	return "iptables"
}

// legacyRules returns the rules of a table of iptables-legacy or ip6tables-legacy, as its command
// iptables-legacy-save prints them. There are none if the kernel has no such table. An idle one needs no command, which the
// image may not have.
func legacyRules(ctx context.Context, f *xtables.Family, table string) (lines []string, err error) {
	names, err := f.Tables()
	if err != nil || !slices.Contains(names, table) {
		return nil, err // reading the table would create it
	}
	conn, err := xtables.Dial(f)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	t, err := conn.Read(table)
	if err != nil {
		return nil, fmt.Errorf("table %s of %s: %w", table, f, err)
	}
	if t.Idle() {
		for _, c := range t.Chains() {
			if c.Hook {
				lines = append(lines, ":"+c.Name+" ACCEPT [0:0]")
			}
		}
		return lines, nil
	}
	out, err := exec.CommandContext(ctx, f.String()+"-save", "-t", table).Output()
	if err != nil {
		return nil, fmt.Errorf("table %s of %s: %w", table, f, err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n"), nil
}
