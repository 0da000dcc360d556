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
	Name   string // such as "nat"
	Legacy bool   // of iptables-legacy, and not of iptables-nft
	IPv6   bool
}

// Tables are the tables in which owners have chains, in the order in which to remove these:
// nat before the tables that act on its marks.
func Tables() (all []Table) {
	for _, legacy := range []bool{false, true} {
		for _, ipv6 := range []bool{false, true} {
			for _, name := range []string{"nat", "filter", "mangle"} {
				all = append(all, Table{name, legacy, ipv6})
			}
		}
	}
	return all
}

// xtables is the family of a table of iptables-legacy.
func (t Table) xtables() *xtables.Family {
	if t.IPv6 {
		return xtables.IPv6
	}
	return xtables.IPv4
}

// nft is the table of nf_tables that a table of iptables-nft is.
func (t Table) nft() nfnl.Table {
	if t.IPv6 {
		return nfnl.Table{Family: nfnl.IPv6, Name: t.Name}
	}
	return nfnl.Table{Family: nfnl.IPv4, Name: t.Name}
}

// String is the table in messages.
func (t Table) String() string {
	if t.Legacy {
		return fmt.Sprintf("%s table %s", t.xtables(), t.Name)
	}
	return fmt.Sprintf("iptables-nft table %s %s", t.nft().Family, t.Name)
}

// View calls do with the table in the calling thread's network namespace. It does not call do
// if there is no such table, and creates none.
func (t Table) View(do func(View) error) error {
	open := openNFT
	if t.Legacy {
		open = openLegacy
	}
	v, err := open(t)
	if v == nil || err != nil {
		return err
	}
	defer v.close()
	return do(v)
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
	Kept   []error // chains that stay, as rules of others lead to them
}

// maxTries is how often Remove tries in the presence of concurrent changes. Each commit
// interrupts a reading of nf_tables, so many tries are needed.
const maxTries = 100

// Remove removes an owner's chains, and the owner's jumps to them, from the table in the
// calling thread's network namespace. A chain to which a rule of another owner leads
// stays, with all to which it leads. A table that does not exist is not created.
func (t Table) Remove(ctx context.Context, o Owner) (done Removed, err error) {
	var p plan
	err = t.View(func(v View) (err error) {
		for try := 1; ; try++ {
			p, err = tryRemove(ctx, v, &o)
			disturbed := errors.Is(err, nfnl.ErrInterrupted) || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EAGAIN)
			if try == maxTries || !disturbed || ctx.Err() != nil {
				return err
			}
			time.Sleep(rand.N(40 * time.Millisecond))
		}
	})
	for _, j := range p.kept {
		done.Kept = append(done.Kept, fmt.Errorf("%s's chain %s in %s stays: a rule in chain %s, which is not %[1]s's, leads there", o.Name, j.To, t, j.From))
	}
	if err != nil {
		return done, fmt.Errorf("removing %s's chains from %s: %w", o.Name, t, err)
	}
	done.Chains = len(p.chains)
	return done, nil
}

// tryRemove does not take the lock where the owner has no chain.
func tryRemove(ctx context.Context, v View, o *Owner) (p plan, err error) {
	all, err := v.Chains()
	if err != nil || !slices.ContainsFunc(all, func(c Chain) bool { return o.Owns(c.Name) }) {
		return p, err
	}
	unlock, err := v.lock(ctx)
	if err != nil {
		return p, err
	}
	defer unlock()
	if p, err = makePlan(v, o); err != nil || len(p.chains)+len(p.jumps) == 0 {
		return p, err
	}
	return p, v.Remove(ctx, p.jumps, p.chains)
}

// plan is what to remove.
type plan struct {
	chains []string
	jumps  []Jump // of the owner, in built-in chains
	kept   []Jump // of others, to chains that therefore stay
}

func makePlan(v View, o *Owner) (p plan, err error) {
	all, err := v.Chains()
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
		jumps, err := v.Jumps(chain)
		for _, j := range jumps {
			err = errors.Join(err, add(j.To))
		}
		return err
	}
	for _, c := range all {
		if o.Owns(c.Name) {
			continue
		}
		jumps, err := v.Jumps(c.Name)
		if err != nil {
			return p, err
		}
		for _, j := range jumps {
			switch {
			case !o.Owns(j.To):
			case IsBuiltin(c.Name) && o.Entered(j.To):
				p.jumps = append(p.jumps, j)
			default:
				p.kept = append(p.kept, j)
				if err := add(j.To); err != nil {
					return p, err
				}
			}
		}
	}
	for _, c := range all {
		if o.Owns(c.Name) && !keep[c.Name] {
			p.chains = append(p.chains, c.Name)
		}
	}
	return p, nil
}
