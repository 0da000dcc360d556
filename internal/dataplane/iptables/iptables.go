// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipset"
)

// Options are the options of this dataplane only.
type Options struct {
	// Variant is which iptables to use; empty for the one that the node uses.
	Variant Variant

	// SyncPeriod is the time after which Check asks for a full restore; 0 for never.
	// Full restores that take long are due later, so that they take at most a tenth of
	// the time: changes wait for them.
	SyncPeriod time.Duration
}

// Dataplane is the dataplane of iptables mode. It needs the commands of one of the variants,
// of version 1.8 or later, and in the kernel IP sets and the extensions set, recent,
// statistic, addrtype, conntrack, mark and comment; and CAP_NET_ADMIN in the network
// namespace.
type Dataplane struct {
	config  dataplane.Config
	options Options
	variant Variant
	sets    *ipset.Conn
	guard   guard

	tables    []*table // one for each family that is served
	missing   []dataplane.Missing
	pools     dataplane.Pools[pool] // that the kernel has
	frontends map[desired.FrontendKey]*frontend
	sequence  dataplane.Sequence
	alone     bool // tables that are not used have none of our chains
	full      fullRestore
	counts    atomic.Pointer[Counts]
}

var _ dataplane.Dataplane = (*Dataplane)(nil)

// New finds out which iptables the node uses and programs nothing yet.
func New(ctx context.Context, c dataplane.Config, o Options) (*Dataplane, error) {
	b := &Dataplane{config: c, options: o, variant: o.Variant}
	if b.variant == "" {
		var err error
		if b.variant, err = Detect(ctx, c.NetNS); err != nil {
			return nil, err
		}
	}
	for _, f := range families {
		if err := b.variant.probe(ctx, c.NetNS, f); isTemporary(err) {
			return nil, err
		} else if err != nil {
			b.missing = append(b.missing, b.variant.missing(f, err))
			continue
		}
		b.tables = append(b.tables, &table{family: f})
	}
	if len(b.tables) == 0 {
		return nil, fmt.Errorf("iptables-%s does not work: %s", b.variant, b.missing[0])
	}
	var err error
	b.sets, err = ipset.Dial(c.NetNS)
	return b, err
}

// Variant is the variant in use.
func (b *Dataplane) Variant() Variant { return b.variant }

// Missing is what is known to be missing, without a probe.
func (b *Dataplane) Missing() []dataplane.Missing { return b.missing }

// Supports is a [desired.Config.Supports].
func (b *Dataplane) Supports(a desired.Algorithm) error { return dataplane.OnlyRandom(a) }

// Close implements dataplane.Dataplane.
func (b *Dataplane) Close() error {
	b.sets.Close()
	return nil
}

// Apply implements dataplane.Dataplane. It writes sets member by member, and only the
// chains that differ, in one restore for each family. A failure can leave part of the
// change, for the Reconcile that has to follow.
func (b *Dataplane) Apply(ctx context.Context, change *desired.Change) (dataplane.Stats, error) {
	if err := b.sequence.BeginApply(ctx, change); err != nil {
		return dataplane.Stats{}, fmt.Errorf("iptables: %w", err)
	}
	var stats dataplane.Stats
	steps := b.record(change)
	for _, step := range steps {
		step.scripts = newScripts(step.table.known)
		step.write()
		if err := b.commit(ctx, step, &stats); err != nil {
			return stats, b.explain(fmt.Errorf("restoring changes of %s: %w", step.table.family, err), change)
		}
	}
	b.sequence.Done()
	b.count(steps)
	// A change of another program while iptables-restore waits for its lock shows in the stamp only.
	now, err := b.stamp()
	b.guard.known = err == nil && b.guard.known && now.is(b.guard.stamp)
	b.guard.stamp = now
	return stats, err
}

// noRefusal matches what commands say of errors that no Service causes.
var noRefusal = regexp.MustCompile("(?i)permi|memory|no (buffer )?space|too many|busy|temporarily|generation id")

// explain finds the Service of a line that a command has refused.
func (b *Dataplane) explain(err error, change *desired.Change) error {
	said := err.Error()
	reason, _, _ := strings.Cut(said, " (-A ") // without the rule, as a Service may be called busy
	if exit, is := errors.AsType[*exec.ExitError](err); isTemporary(err) || !is || !exit.Exited() || noRefusal.MatchString(reason) {
		return err
	}
	for i := range change.Pools {
		if p := b.pools.Get(change.Pools[i].ID); p != nil && len(p.Frontends) > 0 && strings.Contains(said, "-A "+p.name()+" ") {
			return &dataplane.Refusal{Service: change.Pools[i].Service, Err: err}
		}
	}
	for _, c := range change.Frontends {
		if c.New != nil && strings.Contains(said, comment(c.New.Service)+" ") {
			return &dataplane.Refusal{Service: c.New.Service, Err: err}
		}
	}
	if strings.Contains(reason, "No such file") {
		return err
	}
	return &dataplane.Refusal{Err: err}
}

// commit writes a step to the kernel.
func (b *Dataplane) commit(ctx context.Context, s *step, stats *dataplane.Stats) error {
	t := s.table
	if err := b.writeSets(ctx, t, s.sets.before, stats); err != nil {
		return err
	}
	most := math.MaxInt
	if b.variant == NFT {
		most = transactionLines
	}
	var input []byte
	for _, name := range chainTables {
		if script := s.scripts[name]; !script.empty() {
			input = append(input, script.finish(name, most)...)
			stats.Elements += script.lines
		}
	}
	stats.Bytes += len(input)
	if len(input) > 0 {
		if err := b.variant.restore(ctx, b.config.NetNS, t.family, input); err != nil {
			return err
		}
	}
	for i, name := range chainTables {
		if script := s.scripts[name]; !script.empty() {
			b.guard.stamp.expect(b.variant, t.family, i, script.done(t.known[name]), script.commits)
		}
	}
	return b.writeSets(ctx, t, s.sets.after, stats)
}

func (b *Dataplane) writeSets(ctx context.Context, t *table, all []setWrite, stats *dataplane.Stats) error {
	for _, w := range all {
		if err := ctx.Err(); err != nil {
			return err
		}
		stats.Elements++
		write, n := b.sets.Delete, -1
		if w.add {
			write, n = b.sets.Add, 1
		}
		if err := write(setName(t.family, w.kind), w.member); err != nil {
			return err
		}
		t.members[w.kind] += n
	}
	return nil
}

// Describe implements dataplane.Dataplane.
func (b *Dataplane) Describe(_ *desired.Frontend, id desired.PoolID) dataplane.Detail {
	d := dataplane.Detail{Scheduler: desired.Random.String()}
	if p := b.pools.Get(id); p != nil && len(p.Frontends) > 0 {
		d.Object = "chain " + p.name() + " of the table nat"
	}
	return d
}
