// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// growth is what our own partial restores do to the stamp. What the kernel tells
// afterwards is compared with it, so that what others did meanwhile, such as before they
// let go of the lock that iptables-restore waits for, is not taken for ours.
type growth [len(lookedAt)]tableGrowth

type tableGrowth struct {
	restores uint32
	entries  uint32 // modulo 2^32, where there are fewer now
}

// add adds one restore.
func (g *growth) add(f desired.Family, table string, s *script) {
	for n, of := range lookedAt {
		if of.family == f && of.table == table {
			g[n].restores++
			g[n].entries += uint32(s.growth())
		}
	}
}

// growth is how many entries more a table has in x_tables when the script is done.
func (s *script) growth() (entries int) {
	const ofChain = 2 // its beginning and its end
	for name, is := range s.now {
		was, there := s.known[name]
		entries += int(is.rules - was.rules)
		if !there {
			entries += ofChain
		}
	}
	gone := map[string]bool{}
	for _, name := range s.dead {
		was, there := s.known[name]
		if _, written := s.now[name]; there && !written && !gone[name] {
			gone[name] = true
			entries -= int(was.rules) + ofChain
		}
	}
	return entries
}

// follows says whether a stamp of nf_tables can be what restores have made of another:
// each table is a transaction.
func (g *generation) follows(before, after stamp, by growth) bool {
	is := before.values[0].generation
	for _, t := range by {
		for range t.restores {
			is = nfnl.NextGeneration(is)
		}
	}
	return after.values[0].generation == is
}

// follows says the same of x_tables, where the number of entries tells.
func (t *tableInfo) follows(before, after stamp, by growth) bool {
	for n, was := range before.values {
		is := after.values[n]
		if by[n].restores == 0 && is != was || is.rules != was.rules+by[n].entries {
			return false
		}
	}
	return true
}
