// SPDX-License-Identifier: Apache-2.0

// Package iptchains removes an owner's chains from the tables of iptables, in both variants:
// iptables-nft, by netlink, and iptables-legacy, by socket options. It runs no command, so it
// works where none is installed. The chains of a table stop to see packets in one step. Rules
// of others stay as they are, with their counters.
package iptchains

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/xtables"
	"golang.org/x/sys/unix"
)

// Owner is a program that owns chains, by their names.
type Owner struct {
	Name string // for messages

	// Owns says whether a chain is the owner's. Entered says whether it is one to which
	// the owner itself jumps from built-in chains.
	Owns, Entered func(chain string) bool
}

// IsBuiltin says whether a chain is one of the kernel's hooks.
func IsBuiltin(chain string) bool {
	return slices.Contains([]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}, chain)
}

// Table is a table of one variant and family.
type Table struct {
	name string
	x    *xtables.Family // of iptables-legacy; nil for iptables-nft
	nft  nfnl.Table
}

// Tables are the tables in which owners have chains, in the order in which to remove these:
// nat before the tables that act on its marks.
func Tables() (all []Table) {
	names := []string{"nat", "filter", "mangle"}
	for _, f := range []nfnl.Family{nfnl.IPv4, nfnl.IPv6} {
		for _, name := range names {
			all = append(all, Table{name: name, nft: nfnl.Table{Family: f, Name: name}})
		}
	}
	for _, f := range []*xtables.Family{xtables.IPv4, xtables.IPv6} {
		for _, name := range names {
			all = append(all, Table{name: name, x: f})
		}
	}
	return all
}

// Legacy says whether the table is of iptables-legacy.
func (t Table) Legacy() bool { return t.x != nil }

// String is the table in messages.
func (t Table) String() string {
	if t.x != nil {
		return fmt.Sprintf("%s table %s", t.x, t.name)
	}
	return fmt.Sprintf("iptables-nft table %s %s", t.nft.Family, t.name)
}

// Name is the table's name: "nat".
func (t Table) Name() string { return t.name }

// Chains lists the names of the table's chains in the calling thread's network namespace,
// and about how many rules each has, since others may change the table. A table that does not
// exist has no chains, and is not created.
func (t Table) Chains() (rules map[string]int, err error) {
	v, err := t.open()
	if v == nil || err != nil {
		return nil, err
	}
	defer v.close()
	names, err := v.chains()
	if err != nil {
		return nil, err
	}
	rules = map[string]int{}
	for _, name := range names {
		rules[name] = 0
	}
	return rules, v.countRules(rules)
}

// Remove removes an owner's chains from all tables of the calling thread's network
// namespace. It removes as much as it can; chains that stay are errors too.
func Remove(ctx context.Context, o Owner) error {
	var errs []error
	for _, t := range Tables() {
		removed, err := t.Remove(ctx, o)
		errs = append(append(errs, removed.Kept...), err)
	}
	return errors.Join(errs...)
}

// Removed is what [Table.Remove] has done.
type Removed struct {
	Chains int     // how many were removed
	Any    bool    // the table was changed
	Kept   []error // chains that stay, as rules of others lead to them
}

// maxTries is how often Remove tries in the presence of concurrent changes. Each commit
// interrupts a reading of nf_tables, so many tries are needed.
const maxTries = 100

// Remove removes an owner's chains, and the owner's jumps to them, from the table in the
// calling thread's network namespace. A chain to which a rule of another owner leads
// stays, with all to which it leads. A table that does not exist is not created.
func (t Table) Remove(ctx context.Context, o Owner) (done Removed, err error) {
	v, err := t.open()
	if v == nil || err != nil {
		return done, t.failed(o, err)
	}
	defer v.close()
	var p plan
	for try := 1; ; try++ {
		p, err = tryRemove(ctx, v, &o)
		if try == maxTries || !isDisturbance(err) || ctx.Err() != nil {
			break
		}
		time.Sleep(rand.N(40 * time.Millisecond))
	}
	for _, k := range p.kept {
		done.Kept = append(done.Kept, fmt.Errorf("%s's chain %s in %s stays: a rule in chain %s, which is not %[1]s's, leads there", o.Name, k.chain, t, k.user))
	}
	if err == nil {
		done.Chains, done.Any = len(p.chains), p.any()
	}
	return done, t.failed(o, err)
}

// tryRemove does not take the lock where the owner has no chain.
func tryRemove(ctx context.Context, v view, o *Owner) (p plan, err error) {
	names, err := v.chains()
	if err != nil || !slices.ContainsFunc(names, o.Owns) {
		return p, err
	}
	unlock, err := v.lock(ctx)
	if err != nil {
		return p, err
	}
	defer unlock()
	if p, err = makePlan(v, o); err != nil || !p.any() {
		return p, err
	}
	return p, v.remove(ctx, &p)
}

func (t Table) failed(o Owner, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("removing %s's chains from %s: %w", o.Name, t, err)
}

// isDisturbance says whether an error comes from concurrent changes.
func isDisturbance(err error) bool {
	return errors.Is(err, nfnl.ErrInterrupted) || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EAGAIN)
}

// view is a table as one variant has it.
type view interface {
	// chains are the names of all chains, as they are now.
	chains() ([]string, error)
	// countRules adds about how many rules each of them has.
	countRules(map[string]int) error
	// jumps are the rules of one of them that lead to another.
	jumps(chain string) ([]jump, error)
	// lock keeps the commands of the variant from changing the table.
	lock(context.Context) (unlock func(), err error)
	remove(context.Context, *plan) error
	close()
}

type jump struct {
	to   string
	rule uint64 // in nf_tables its handle, in x_tables its index
}

// open returns nil where there is no such table.
func (t Table) open() (view, error) {
	if t.x != nil {
		return openLegacy(t.x, t.name)
	}
	return openNFT(t.nft)
}

// plan is what to remove.
type plan struct {
	chains []string
	jumps  []ownJump
	kept   []keptChain
}

type ownJump struct {
	chain string
	rule  uint64
}

type keptChain struct{ chain, user string }

func (p *plan) any() bool { return len(p.chains)+len(p.jumps) > 0 }

func makePlan(v view, o *Owner) (p plan, err error) {
	all, err := v.chains()
	if err != nil {
		return p, err
	}
	keep := map[string]bool{} // chains that stay, with those they lead to
	var add func(chain string) error
	add = func(chain string) error {
		if keep[chain] {
			return nil
		}
		keep[chain] = true
		jumps, err := v.jumps(chain)
		for _, j := range jumps {
			err = errors.Join(err, add(j.to))
		}
		return err
	}
	for _, chain := range all {
		if o.Owns(chain) {
			continue
		}
		jumps, err := v.jumps(chain)
		if err != nil {
			return p, err
		}
		for _, j := range jumps {
			switch {
			case !o.Owns(j.to):
			case IsBuiltin(chain) && o.Entered(j.to):
				p.jumps = append(p.jumps, ownJump{chain, j.rule})
			default:
				p.kept = append(p.kept, keptChain{j.to, chain})
				if err := add(j.to); err != nil {
					return p, err
				}
			}
		}
	}
	for _, chain := range all {
		if o.Owns(chain) && !keep[chain] {
			p.chains = append(p.chains, chain)
		}
	}
	return p, nil
}
