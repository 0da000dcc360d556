// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/feature"
)

// toy is the simplest dataplane that passes what every mode has to pass, and the example of
// docs/adding-a-mode.md. It keeps the whole content in memory. After each change it describes one
// nf_tables table for each family as text (toyrules_test.go), has nft load the text in an empty network
// namespace, and compares what nft lists there with what it lists in the node's. The difference is
// programmed in one transaction. So every change costs as much as the whole content.
type toy struct {
	config   dataplane.Config
	sequence dataplane.Sequence
	content  toyContent
	written  toyTables
	missing  desired.Families

	text     string // what was spelled last, and its spelling
	spelling toyTables
}

func newToy(c dataplane.Config) (dataplane.Dataplane, error) { return &toy{config: c}, nil }

// toyContent is everything that changes have described.
type toyContent struct {
	frontends  map[desired.FrontendKey]*desired.Frontend
	pools      dataplane.Pools[dataplane.Pool]
	sets       [desired.Programmed]map[desired.Member]bool
	local      desired.LocalTraffic
	masquerade desired.MasqueradePolicy
}

// toyContentOf is the content of a full description.
func toyContentOf(full *desired.Change) toyContent {
	c := toyContent{frontends: map[desired.FrontendKey]*desired.Frontend{}, local: full.Local, masquerade: full.Masquerade}
	for i := range c.sets {
		c.sets[i] = map[desired.Member]bool{}
	}
	c.apply(full)
	return c
}

func (c *toyContent) apply(change *desired.Change) {
	for i := range change.Pools {
		p := &change.Pools[i]
		if p.New {
			pool := dataplane.NewPool(p)
			c.pools.Set(p.ID, &pool)
		}
		pool := c.pools.Get(p.ID)
		pool.Update(p)
		if pool.IfEmpty = p.IfEmpty; p.Gone {
			c.pools.Set(p.ID, nil)
		}
	}
	for _, f := range change.Frontends {
		if f.New == nil {
			delete(c.frontends, f.Key())
		} else {
			c.frontends[f.Key()] = f.New
		}
	}
	for set := range c.sets {
		for m, added := range change.Sets[set].All() {
			if c.sets[set][m] = true; !added {
				delete(c.sets[set], m)
			}
		}
	}
}

// Reconcile implements dataplane.Dataplane.
func (t *toy) Reconcile(ctx context.Context, full *desired.Change) (dataplane.Stats, error) {
	t.sequence.Begin()
	t.content = toyContentOf(full)
	return t.program(ctx)
}

// Apply implements dataplane.Dataplane.
func (t *toy) Apply(ctx context.Context, change *desired.Change) (dataplane.Stats, error) {
	if err := t.sequence.BeginApply(ctx, change); err != nil {
		return dataplane.Stats{}, err
	}
	t.content.apply(change)
	return t.program(ctx)
}

// program makes the kernel have the content.
func (t *toy) program(ctx context.Context) (stats dataplane.Stats, err error) {
	have, err := t.list(ctx)
	if err != nil {
		return stats, err
	}
	want, err := t.spell(ctx, &t.content, have)
	if err != nil {
		return stats, err
	}
	var script strings.Builder
	for f := range t.served {
		stats.Elements += have[f].change(&script, f, want[f])
	}
	if stats.Bytes = script.Len(); stats.Bytes > 0 {
		_, err = t.run(ctx, script.String(), "nft", "-f", "-")
	}
	if t.written = want; err == nil {
		t.sequence.Done()
	}
	return stats, err
}

// served yields the families that the node supports.
func (t *toy) served(yield func(f desired.Family) bool) {
	for f := range desired.Family(len(t.missing)) {
		if !t.missing[f] && !yield(f) {
			return
		}
	}
}

// list reads the tables. One that does not exist is nil.
func (t *toy) list(ctx context.Context) (toyTables, error) {
	out, err := t.run(ctx, "", "nft", "-sp", "list", "ruleset")
	return parseToyTables(out), err
}

// spell returns the tables that a content needs as list would read them: nft has its own spelling of
// rules, which differs between versions.
func (t *toy) spell(ctx context.Context, c *toyContent, had toyTables) (toyTables, error) {
	var text string
	for f := range t.served {
		text += c.table(f, 1<<t.config.MasqueradeBit, had[f]).String(f)
	}
	if text == t.text {
		return t.spelling, nil
	}
	out, err := t.run(ctx, text, "unshare", "--net", "sh", "-c", "nft -f - && nft -sp list ruleset")
	if err == nil {
		t.text, t.spelling = text, parseToyTables(out)
	}
	return t.spelling, err
}

// run runs a command in the dataplane's network namespace.
func (t *toy) run(ctx context.Context, input, name string, args ...string) (string, error) {
	var out, problem bytes.Buffer
	err := dataplane.Inside(t.config.NetNS, func() error {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &problem
		return cmd.Run()
	})
	if err != nil {
		err = fmt.Errorf("%s: %w: %.2000s", name, errors.Join(ctx.Err(), err), problem.String())
	}
	return out.String(), err
}

// Check implements dataplane.Dataplane.
func (t *toy) Check(ctx context.Context) error {
	if err := t.sequence.Check(); err != nil {
		return err
	}
	have, err := t.list(ctx)
	for f := range t.served {
		if n := have[f].change(&strings.Builder{}, f, t.written[f]); n > 0 && err == nil {
			err = fmt.Errorf("%w: %d objects of %s", dataplane.ErrDamaged, n, f)
		}
	}
	return err
}

// Cleanup implements dataplane.Dataplane.
func (t *toy) Cleanup(ctx context.Context) error {
	t.sequence.Begin()
	var script string
	for f := range t.served {
		script += toyTable(nil).String(f) + "delete table " + toyFamilies[f].name + " toy\n"
	}
	_, err := t.run(ctx, script, "nft", "-f", "-")
	return err
}

// Close implements dataplane.Dataplane.
func (t *toy) Close() error { return nil }

// Describe implements dataplane.Dataplane.
func (t *toy) Describe(f *desired.Frontend, id desired.PoolID) (d dataplane.Detail) {
	d.Object = "chain " + toyFrontend(f)
	if t.content.pools.Get(id) != nil {
		d.Scheduler = desired.Random.String()
	}
	return d
}

// Supports is a [desired.Config.Supports].
func (t *toy) Supports(a desired.Algorithm) error { return dataplane.OnlyRandom(a) }

// Probe implements dataplane.Prober, in an empty network namespace.
func (t *toy) Probe(ctx context.Context) (all []dataplane.Missing, _ error) {
	for f := range desired.Family(len(t.missing)) {
		one := toy{config: t.config, missing: desired.Families{true, true}}
		one.missing[f] = false
		if _, err := one.spell(ctx, &t.content, toyTables{}); ctx.Err() != nil {
			return nil, err
		} else if err != nil {
			t.missing[f] = true
			all = append(all, dataplane.Missing{Family: f, Missing: feature.Missing{Feature: "nft", Err: err, Remedy: "needs the command nft and nf_tables"}})
		}
	}
	return all, nil
}

// Read implements dataplane.Reader.
func (t *toy) Read(ctx context.Context) (*dataplane.Content, error) {
	c := dataplane.NewContent()
	have, err := t.list(ctx)
	for f := range t.served {
		have[f].read(f, c)
	}
	return c, err
}

// ReadFrontend implements dataplane.Reader.
func (t *toy) ReadFrontend(ctx context.Context, want *desired.Change) (*dataplane.Content, error) {
	return dataplane.ReadOne(ctx, t.Read, want)
}

// Rules implements dataplane.Reader.
func (t *toy) Rules(ctx context.Context, full *desired.Change) (n int, faults []string, err error) {
	content := toyContentOf(full)
	have, err := t.list(ctx)
	if err != nil {
		return 0, nil, err
	}
	want, err := t.spell(ctx, &content, have)
	for f := range t.served {
		if have[f] == nil {
			continue
		}
		for _, head := range have[f].heads(want[f]) {
			h, w, isChain := have[f][head], want[f][head], strings.HasPrefix(head, "chain ")
			if isChain {
				n += len(h.items)
			}
			if !slices.Equal(h.declaration, w.declaration) || isChain && !slices.Equal(h.items, w.items) {
				faults = append(faults, fmt.Sprintf("%s: %s is %v, must be %v", f, head, h, w))
			}
		}
	}
	return n, faults, err
}
