// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/feature"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// probeTable is the name of the table in the transactions of a probe, which are never committed.
const probeTable = "slipstream-probe"

// Probe implements dataplane.Prober. For each family, the kernel prepares a transaction that creates a table with all
// chains, sets and rules, and aborts it ([nfnl.Conn.DryRun]). The table is dormant, so that its chains are not attached
// to hooks meanwhile, which would enable NAT in the kernel.
func (b *Dataplane) Probe(ctx context.Context) (missing []dataplane.Missing, err error) {
	for f := range schemas {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var m feature.Missing
		if err := b.probe(schemas[f]); errors.As(err, &m) {
			missing = append(missing, dataplane.Missing{Family: desired.Family(f), Missing: m})
			b.unsupported[f] = true
		} else if err != nil {
			return nil, err
		}
	}
	return missing, nil
}

// probe looks for the first feature of a schema that the kernel lacks.
func (b *Dataplane) probe(s schema) error {
	const anyTimeout = 10800
	var batch nfnl.Batch
	s.table.Name = probeTable
	batch.AddDormantTable(s.table)
	s.write(&batch, b.config, &desired.Change{})
	s.writeRemember(&batch, anyTimeout)
	s.writeEntry(&batch)
	err := b.conn.DryRun(&batch)
	var refused *nfnl.BatchError
	switch {
	case err == nil:
		b.probeHash(s)
		return nil
	case !errors.As(err, &refused), !refused.Lacks():
		return fmt.Errorf("trying what the kernel can do: %w", err)
	}
	name, remedy := s.feature(refused)
	return feature.Missing{Feature: name, Remedy: remedy, Err: err}
}

// feature derives the missing feature of the kernel from its refusal, and what provides it.
func (s *schema) feature(refused *nfnl.BatchError) (name, remedy string) {
	const unexpected = "needs Linux 5.13 or later"
	switch {
	case refused.Op == "":
		return "nf_tables", "needs CONFIG_NF_TABLES"
	case refused.Op == "add table":
		return "tables of the family " + s.table.Family.String(), "needs CONFIG_NF_TABLES_" + s.family.String()
	case refused.Op == "add chain":
		return "chain type nat", "needs CONFIG_NFT_NAT"
	case refused.Op == "add set", refused.Op == "add element":
		return "set " + refused.Object, unexpected
	case refused.Expr == "":
		return "rules of chain " + refused.Object, unexpected
	}
	config := map[string]string{
		"ct": "CT", "dynset": "LIMIT", "fib": "FIB_" + s.family.String(), "masq": "MASQ", "nat": "NAT", "numgen": "NUMGEN", "objref": "OBJREF", "reject": "REJECT",
	}[refused.Expr]
	if config == "" {
		return "expression " + refused.Expr, unexpected
	}
	return "expression " + refused.Expr, "needs CONFIG_NFT_" + config
}
