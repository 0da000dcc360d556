// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// probeTable is the name of the table that a probe has the kernel prepare. It never
// exists.
const probeTable = "slipstream-probe"

// Probe implements dataplane.Prober. For each family, the kernel prepares a
// transaction that makes all that a table of ours has, without Services, and gives it
// up ([nfnl.Conn.DryRun]). The table is dormant, so that its chains are not attached to
// hooks meanwhile: where nobody has the kernel translate addresses, that would be a
// moment in which it sets connections up for that.
func (b *Backend) Probe(ctx context.Context) (missing []dataplane.Missing, err error) {
	for f := range schemas {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		m, err := b.probe(schemas[f])
		if err != nil {
			return nil, err
		}
		if m != nil {
			m.Family = desired.Family(f)
			missing = append(missing, *m)
			b.without[f] = true
		}
	}
	return missing, nil
}

// probe returns the first thing that the kernel refuses of a schema, or nil.
func (b *Backend) probe(s schema) (*dataplane.Missing, error) {
	const anyTimeout = 10800
	var batch nfnl.Batch
	s.table.Name = probeTable
	batch.AddDormantTable(s.table)
	err := errors.Join(s.writeInside(&batch, b.config, &desired.Change{}), s.writeRemember(&batch, anyTimeout))
	entry := ruleWriter{schema: &s, batch: &batch}
	entry.entry()
	if err = errors.Join(err, entry.err); err != nil {
		return nil, err
	}
	err = b.conn.DryRun(&batch)
	var refused *nfnl.BatchError
	switch {
	case err == nil:
		return nil, nil
	case !errors.As(err, &refused), refused.Errno == unix.EPERM:
		return nil, fmt.Errorf("trying what the kernel can do: %w", err)
	}
	feature, remedy := s.feature(refused)
	return &dataplane.Missing{Feature: feature, Err: err, Remedy: remedy}, nil
}

// feature is the feature of the kernel that a refusal shows to be missing, and what
// it takes.
func (s *schema) feature(refused *nfnl.BatchError) (feature, remedy string) {
	const unexpected = "needs Linux 5.13 or later"
	switch {
	case refused.Op == "":
		return "nf_tables", "needs CONFIG_NF_TABLES"
	case refused.Op == "add table":
		return "tables of the family " + s.table.Family.String(), "needs CONFIG_NF_TABLES_" + s.family().String()
	case refused.Op == "add chain":
		return "chain type nat", "needs CONFIG_NFT_NAT"
	case refused.Op == "add set", refused.Op == "add element":
		return "set " + refused.Object, unexpected
	case refused.Expr == "":
		return "rules of chain " + refused.Object, unexpected
	}
	config := map[string]string{
		"ct": "CT", "fib": "FIB_" + s.family().String(), "masq": "MASQ", "nat": "NAT", "numgen": "NUMGEN", "reject": "REJECT",
	}[refused.Expr]
	if config == "" {
		return "expression " + refused.Expr, unexpected
	}
	return "expression " + refused.Expr, "needs CONFIG_NFT_" + config
}
