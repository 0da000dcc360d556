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

func openLegacy(f *xtables.Family, name string) (view, error) {
	if names, err := f.Tables(); err != nil || !slices.Contains(names, name) {
		return nil, err
	}
	conn, err := xtables.Dial(f)
	if err != nil {
		return nil, err
	}
	return &legacy{conn: conn, name: name}, nil
}

func (l *legacy) close() { l.conn.Close() }

func (l *legacy) lock(ctx context.Context) (func(), error) { return xtables.Lock(ctx) }

func (l *legacy) chains() (names []string, err error) {
	if l.table, err = l.conn.Read(l.name); err != nil {
		return nil, err
	}
	l.index = map[string]xtables.Chain{}
	for _, c := range l.table.Chains() {
		l.index[c.Name] = c
		names = append(names, c.Name)
	}
	return names, nil
}

func (l *legacy) countRules(rules map[string]int) error {
	for name, c := range l.index {
		rules[name] += c.Rules()
	}
	return nil
}

func (l *legacy) jumps(chain string) (all []jump, err error) {
	c, ok := l.index[chain]
	for i := c.First; ok && i <= c.Last; i++ {
		if to := l.table.Jump(i); to != "" {
			all = append(all, jump{to, uint64(i)})
		}
	}
	return all, nil
}

func (l *legacy) remove(_ context.Context, p *plan) error {
	gone := map[int]bool{}
	for _, j := range p.jumps {
		gone[int(j.rule)] = true
	}
	for _, name := range p.chains {
		for i := l.index[name].First; i <= l.index[name].Last; i++ {
			gone[i] = true
		}
	}
	return l.conn.Replace(l.table, func(entry int) bool { return gone[entry] })
}
