// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

var families = []nfnl.Family{nfnl.IPv4, nfnl.IPv6}

// inNFTables is a step with a connection to nf_tables.
func inNFTables(do func(Options, *nfnl.Conn)) step {
	return func(o Options) bool {
		conn, err := nfnl.Dial(0)
		if err != nil {
			o.failed(fmt.Errorf("looking for what %s left in nf_tables: %w", o.owner.Name, err))
			return false
		}
		defer conn.Close()
		do(o, conn)
		return false
	}
}

// isMissing says whether an error is a kernel's that lacks a subsystem.
func isMissing(err error) bool {
	for _, errno := range []unix.Errno{unix.EINVAL, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// removeTable removes the owner's table of a family, if the kernel has nf_tables for it.
func (o Options) removeTable(conn *nfnl.Conn, family nfnl.Family) {
	table := nfnl.Table{Family: family, Name: o.owner.Table}
	switch removed, err := removeTable(conn, table); {
	case isMissing(err):
	case err != nil:
		o.failed(fmt.Errorf("removing %s's nftables table %s %s: %w", o.owner.Name, table.Family, table.Name, err))
	case removed:
		o.removed(fmt.Sprintf("nftables table %s %s", table.Family, table.Name))
	}
}

func removeTable(conn *nfnl.Conn, table nfnl.Table) (removed bool, err error) {
	if _, err := conn.Table(table); err != nil {
		if errors.Is(err, unix.ENOENT) {
			err = nil
		}
		return false, err
	}
	var batch nfnl.Batch
	batch.DeleteTable(table)
	return true, conn.Commit(0, &batch)
}

// removeChains removes the owner's chains from a table of iptables-nft.
func (o Options) removeChains(conn *nfnl.Conn, table nfnl.Table) {
	name := fmt.Sprintf("iptables-nft table %s %s", table.Family, table.Name)
	if _, err := conn.Table(table); errors.Is(err, unix.ENOENT) || isMissing(err) {
		return
	}
	plan, err := tryChains(conn, table, o.owner)
	for _, k := range plan.kept {
		o.stays(k.describe(o.owner.Name, name))
	}
	switch {
	case err != nil:
		o.failed(fmt.Errorf("removing %s's chains from %s: %w", o.owner.Name, name, err))
		return
	case len(plan.chains) == 0 && len(plan.jumps) == 0:
		return
	}
	o.removed(fmt.Sprintf("%d chains of iptables-nft table %s %s", len(plan.chains), table.Family, table.Name))
}

// Others commit to nf_tables too, we ourselves among them, and whenever they do while
// something is read, the kernel gives up (nfnl.ErrInterrupted). So it is read again, up to
// maxTries times. Where a plan does not fit any more, there is another one; that takes a
// few seconds at the most.
const (
	maxTries   = 100
	retryPause = 20 * time.Millisecond
)

// tryChains plans what goes from a table, and does it.
func tryChains(conn *nfnl.Conn, table nfnl.Table, owner *Owner) (plan chainsPlan, err error) {
	for try := 1; ; try++ {
		if plan, err = planChains(conn, table, owner); err == nil && len(plan.chains)+len(plan.jumps) > 0 {
			err = plan.run(conn)
		}
		if try == maxTries || !isDisturbance(err) {
			return plan, err
		}
		time.Sleep(rand.N(2 * retryPause))
	}
}

// isDisturbance says whether an error is that somebody else was changing the table.
func isDisturbance(err error) bool {
	return errors.Is(err, nfnl.ErrInterrupted) || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOENT)
}

// chainsPlan is what goes from a table of iptables-nft.
type chainsPlan struct {
	table  nfnl.Table
	jumps  []ownJump
	chains []string
	kept   []keptChain
}

// ownJump is an owner's rule in a built-in chain.
type ownJump struct {
	chain  string
	handle uint64
}

func planChains(conn *nfnl.Conn, table nfnl.Table, owner *Owner) (plan chainsPlan, err error) {
	plan.table = table
	var all, others []string
	err = nfnl.Undisturbed(func() error {
		all, others = nil, nil
		return conn.Chains(table, func(c nfnl.ChainInfo) {
			if owner.Chain(c.Name) {
				all = append(all, c.Name)
			} else {
				others = append(others, c.Name)
			}
		})
	})
	if err != nil || len(all) == 0 {
		return plan, err
	}
	keep := keeper{}
	for _, chain := range others {
		jumps, err := jumpsIn(conn, table, chain)
		if err != nil {
			return plan, err
		}
		for _, j := range jumps {
			switch {
			case !owner.Chain(j.To):
			case owner.jump(chain, j.To):
				plan.jumps = append(plan.jumps, ownJump{chain, j.Handle})
			default:
				plan.kept = append(plan.kept, keptChain{j.To, chain})
				keep.add(j.To)
			}
		}
	}
	err = keep.follow(func(chain string, visit func(string)) error {
		jumps, err := jumpsIn(conn, table, chain)
		for _, j := range jumps {
			visit(j.To)
		}
		return err
	})
	plan.chains = keep.without(all)
	return plan, err
}

// jumpsIn are the jumps in a chain.
func jumpsIn(conn *nfnl.Conn, table nfnl.Table, chain string) (all []nfnl.RuleJump, err error) {
	err = nfnl.Undisturbed(func() error {
		all = nil
		return conn.RuleJumps(table, chain, func(j nfnl.RuleJump) { all = append(all, j) })
	})
	return all, err
}

// run takes the jumps away in one transaction: from then on nothing reaches the chains.
// There can be so many of these that they go in several; others who change nf_tables,
// ourselves included, need not wait for all of them.
func (p *chainsPlan) run(conn *nfnl.Conn) error {
	var batch nfnl.Batch
	for _, j := range p.jumps {
		batch.DeleteRule(p.table, j.chain, j.handle)
	}
	if err := conn.Commit(0, &batch); err != nil {
		return err
	}
	batch.Reset()
	_, err := conn.CommitPieces(&batch, func() {
		for _, chain := range p.chains {
			batch.FlushChain(p.table, chain)
		}
		for _, chain := range p.chains { // nothing leads there any more
			batch.DeleteChain(p.table, chain)
		}
	})
	return err
}
