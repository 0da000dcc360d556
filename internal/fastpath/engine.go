// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"cmp"
	"context"

	"github.com/google/nftables/expr"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/ebpf"
	"github.com/slipstream-proxy/slipstream/internal/feature"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/node/netif"
)

// fastEngine forwards the packets of offloaded connections. What the engines have in common is the table
// that selects the connections, and the Controller, whose lock is held in all methods except run,
// flushed, cleanup and close.
type fastEngine interface {
	// chains returns the chains of the table, and objects writes what the engine has there beside sets.
	chains() []nfnl.Chain
	objects(b *nfnl.Batch)

	// fits reports whether an existing table is the engine's, so that its flows may stay.
	fits(t *nfnl.Contents) bool

	// offload writes the last rules, for the connections that all others have let through.
	offload(rule writeRule)

	// begin is called before the table is written, and programmed when it is complete. That removes
	// what another engine of an earlier run has outside of the table.
	begin()
	programmed() error

	// survey reads what other programs have at interfaces, and outdated reports whether that may
	// have changed since. takes reports whether an interface can take part by the last survey. If
	// another program is the reason, it says what is there.
	survey() error
	outdated() bool
	takes(i *netif.Interface) (can bool, barred string)

	// setDevices programs which interfaces take part, by the batch, which is committed next, or at once.
	// Refused is the error for interfaces that the engine leaves out. After a commit has failed,
	// recovers reports whether setDevices can do it another way. leave only removes interfaces.
	setDevices(b *nfnl.Batch, wanted deviceSet) (refused, err error)
	recovers(err error) bool
	leave() error

	// keepsMTU reports whether flows keep the MTU of their start.
	keepsMTU() bool

	// renew writes what returns connections to the slow path, to be committed; flushed does the rest,
	// when no packet has the former rules any more.
	renew(t *nfnl.Contents) (*nfnl.Batch, error)
	flushed(f *Flush) error

	// checkTable checks the engine's objects in the table after a commit of another program, and
	// check what it has elsewhere. Damage is an error that wraps dataplane.ErrDamaged.
	checkTable(t *nfnl.Contents) error
	check() error

	stats(s *Stats) error
	run(ctx context.Context)
	cleanup() error
	close() error
}

// writeRule writes a rule of the table.
type writeRule = func(chain, comment string, parts ...[]expr.Any)

func writeTo(b *nfnl.Batch) writeRule {
	return func(chain, comment string, parts ...[]expr.Any) { b.AddRule(table, chain, comment, parts...) }
}

// chooseEngine probes the kernel, and sets Config.Engine to the one to open.
func (c *Controller) chooseEngine() (err error) {
	c.config.Engine = cmp.Or(c.config.Engine, Flowtable)
	if c.config.Engine == EBPF {
		return nil
	}
	c.byName, err = probe(c.conn)
	if c.config.Engine == AutoEngine && feature.Lacks(err) {
		c.config.Engine = EBPF
		return nil
	}
	c.config.Engine = Flowtable
	return err
}

// open opens the engine.
func (c *Controller) open() error {
	err := c.chooseEngine()
	if err != nil || c.config.Engine != EBPF {
		return err
	}
	program, err := ebpf.Open(c.config.NetNS, c.config.withoutTCX, cmp.Or(c.config.lease, ebpf.Lease))
	if err != nil {
		return feature.Missing{Feature: "engine ebpf", Remedy: "see docs/fastpath.md", Err: err}
	}
	c.engine, c.mustFlush = &ebpfEngine{Controller: c, program: program}, program.Adopted()
	return nil
}
