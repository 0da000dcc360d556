// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"fmt"
	"testing"

	"github.com/google/nftables/expr"
)

// These benchmarks measure the cost of changes to different forms of rulesets. The design
// of package dataplane/nftables is based on them. Run them with
//
//	go test ./internal/netfilter/nfnl -run '^$' -bench . -benchtime 200x

// filled makes a table with a map of n values and a map of n verdicts.
func filled(b *testing.B, n int) *Conn {
	c, _ := dial(b)
	commit(b, c, func(batch *Batch) {
		batch.AddTable(table, "")
		batch.AddChain(table, Chain{Name: "base", Hook: &Hook{"nat", 0, -100}})
		batch.AddChain(table, Chain{Name: "target"})
		batch.AddSet(table, numbers)
		batch.AddSet(table, chains)
		batch.AddRule(table, "base", "", []expr.Any{
			&expr.Meta{Key: expr.MetaKeyMARK, Register: 8},
			&expr.Lookup{SourceRegister: 8, IsDestRegSet: true, SetName: chains.Name},
		})
		for i := range uint32(n) {
			batch.AddElement(table, numbers, key(i), key(i), "")
		}
		for i := range uint32(n) {
			batch.AddVerdict(table, chains, key(i), Goto, "target")
		}
	})
	return c
}

// each commits b.N small batches.
func each(b *testing.B, c *Conn, fill func(*Batch, uint32)) {
	var batch Batch
	i := uint32(1 << 24)
	for b.Loop() {
		batch.Reset()
		fill(&batch, i)
		if err := c.Commit(0, &batch); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

var benchSizes = []int{1_000, 10_000, 100_000}

// BenchmarkVerdictMap adds one element to a map that has many: of values, and of
// verdicts.
func BenchmarkVerdictMap(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprintf("value/%d", n), func(b *testing.B) {
			each(b, filled(b, n), func(batch *Batch, i uint32) { batch.AddElement(table, numbers, key(i), key(i), "") })
		})
		b.Run(fmt.Sprintf("verdict/%d", n), func(b *testing.B) {
			each(b, filled(b, n), func(batch *Batch, i uint32) { batch.AddVerdict(table, chains, key(i), Goto, "target") })
		})
	}
}

// BenchmarkNewRule adds a chain with one rule that uses a map of many values,
// next to one that uses no map.
func BenchmarkNewRule(b *testing.B) {
	for _, n := range benchSizes {
		for name, use := range map[string][]expr.Any{
			"no-map": {&expr.Counter{}},
			"map": {
				&expr.Meta{Key: expr.MetaKeyMARK, Register: 8},
				&expr.Lookup{SourceRegister: 8, DestRegister: 8, IsDestRegSet: true, SetName: numbers.Name},
			},
		} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				each(b, filled(b, n), func(batch *Batch, i uint32) {
					name := fmt.Sprint("c", i)
					batch.AddChain(table, Chain{Name: name})
					batch.AddRule(table, name, "", use)
				})
			})
		}
	}
}
