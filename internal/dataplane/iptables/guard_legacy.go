// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"fmt"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/xtables"
)

// legacyWatch looks at iptables-legacy.
type legacyWatch map[desired.Family]*xtables.Conn

func openLegacy(netns int) (w legacyWatch, err error) {
	w = legacyWatch{}
	err = inside(netns, func() (err error) {
		if w[desired.IPv4], err = xtables.Dial(xtables.IPv4); err != nil {
			return err
		}
		if conn, err := xtables.Dial(xtables.IPv6); err == nil { // else a kernel without IPv6
			w[desired.IPv6] = conn
		}
		return nil
	})
	return w, err
}

func (w legacyWatch) close() (err error) {
	for _, conn := range w {
		err = errors.Join(err, conn.Close())
	}
	return err
}

// stamp reads no tables of families that are not served: reading would create them.
func (w legacyWatch) stamp(of []*table) (s stamp, err error) {
	for _, t := range of {
		for i, name := range chainTables {
			if s.tables[t.family][i], err = w[t.family].Info(name); err != nil {
				return s, fmt.Errorf("reading table %s of %s: %w", name, t.family, err)
			}
		}
	}
	return s, nil
}

// expect knows only the number of entries.
func (w legacyWatch) expect(s *stamp, f desired.Family, table, entries, _ int) {
	s.tables[f][table] = xtables.Info{Entries: s.tables[f][table].Entries + uint32(entries)}
}

func (w legacyWatch) look(f desired.Family, table string, _ registry) (*tally, error) {
	got, err := w[f].Read(table)
	if err != nil {
		return nil, err
	}
	t := newTally()
	for _, c := range got.Chains() {
		if owner.Owns(c.Name) {
			t.rules[c.Name] = int32(c.Rules())
			continue
		}
		for i := c.First; i <= c.Last; i++ {
			t.jumps[got.Jump(i)]++
		}
	}
	return t, nil
}

func (w legacyWatch) packets(f desired.Family, table, chain string) (all []uint64, err error) {
	got, err := w[f].Read(table)
	if err != nil {
		return nil, err
	}
	for _, c := range got.Chains() {
		for i := range c.Rules() {
			if c.Name == chain {
				all = append(all, got.Packets(c.First+1+i))
			}
		}
	}
	return all, nil
}
