// SPDX-License-Identifier: Apache-2.0

package iptchains

import (
	"context"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/xtables"
)

// legacy is a table of iptables-legacy.
type legacy struct {
	conn  *xtables.Conn
	name  string
	table *xtables.Table // as last read
	index map[string]xtables.Chain
}

func openLegacy(t Table) (View, error) {
	if names, err := t.xtables().Tables(); err != nil || !slices.Contains(names, t.Name) {
		return nil, err
	}
	conn, err := xtables.Dial(t.xtables())
	if err != nil {
		return nil, err
	}
	return &legacy{conn: conn, name: t.Name}, nil
}

func (l *legacy) close() { l.conn.Close() }

func (l *legacy) lock(ctx context.Context) (func(), error) { return xtables.Lock(ctx) }

func (l *legacy) Chains() (all []Chain, err error) {
	if l.table, err = l.conn.Read(l.name); err != nil {
		return nil, err
	}
	l.index = map[string]xtables.Chain{}
	jumps := map[string]int{}
	for _, c := range l.table.Chains() {
		l.index[c.Name] = c
		for i := c.First; i <= c.Last; i++ {
			jumps[l.table.Jump(i)]++
		}
	}
	for _, c := range l.table.Chains() {
		all = append(all, Chain{c.Name, c.Rules() + jumps[c.Name]})
	}
	return all, nil
}

func (l *legacy) Jumps(chain string) (all []Jump, err error) {
	c, ok := l.index[chain]
	for i := c.First; ok && i <= c.Last; i++ {
		if to := l.table.Jump(i); to != "" {
			all = append(all, Jump{chain, to, uint64(i)})
		}
	}
	return all, nil
}

func (l *legacy) Packets(chain string) (all []uint64, err error) {
	if _, err := l.Chains(); err != nil {
		return nil, err
	}
	c := l.index[chain]
	for i := range c.Rules() {
		all = append(all, l.table.Packets(c.First+1+i))
	}
	return all, nil
}

func (l *legacy) Remove(_ context.Context, rules []Jump, chains []string) error {
	gone := map[int]bool{}
	for _, j := range rules {
		gone[int(j.rule)] = true
	}
	for _, name := range chains {
		for i := l.index[name].First; i <= l.index[name].Last; i++ {
			gone[i] = true
		}
	}
	return l.conn.Replace(l.table, func(entry int) bool { return gone[entry] })
}
