// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"errors"
	"strings"

	"github.com/slipstream-proxy/slipstream/backend/nftables/nfnl"
	"github.com/slipstream-proxy/slipstream/desired"
	"golang.org/x/sys/unix"
)

// generation watches iptables-nft: its tables are those of nf_tables with the same
// names.
type generation struct{ conn *nfnl.Conn }

func openGeneration(netns int) (*generation, error) {
	conn, err := nfnl.Dial(netns)
	if err != nil {
		return nil, err
	}
	return &generation{conn}, nil
}

func (g *generation) close() error { return g.conn.Close() }

func (g *generation) stamp() (s stamp, err error) {
	s.values[0].a, err = g.conn.Generation()
	return s, err
}

func (g *generation) look(f desired.Family, table string) (t *tally, err error) {
	of := nfnl.Table{Family: nfnl.IPv4, Name: table}
	if f == desired.IPv6 {
		of.Family = nfnl.IPv6
	}
	for range 100 {
		t = newTally()
		err = g.conn.Rules(of, func(r nfnl.RuleInfo) {
			if strings.HasPrefix(r.Chain, prefix) {
				t.rules[r.Chain]++
				return
			}
			for _, chain := range entered {
				if bytes.Contains(r.Expressions, []byte(chain+"\x00")) {
					t.entries[chain]++
				}
			}
		})
		if !errors.Is(err, nfnl.ErrInterrupted) {
			break
		}
	}
	if errors.Is(err, unix.ENOENT) {
		return newTally(), nil
	}
	return t, err
}
