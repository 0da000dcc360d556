// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// Contents are a table's objects, without the elements of sets.
type Contents struct {
	TableInfo
	Chains     []ChainInfo
	Rules      []RuleInfo // those of one chain are in order
	Sets       []Set
	Flowtables []Flowtable
}

// Contents reads a table. It returns nil if the table does not exist.
func (c *Conn) Contents(t Table) (*Contents, error) {
	all := &Contents{}
	var err error
	if all.TableInfo, err = c.Table(t); errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err == nil {
		all.Chains, err = c.Chains(t)
	}
	if err == nil {
		all.Rules, err = c.Rules(t, "")
	}
	if err == nil {
		all.Sets, err = c.Sets(t)
	}
	if err == nil {
		all.Flowtables, err = c.Flowtables(t)
	}
	if err != nil {
		return nil, fmt.Errorf("reading table %s %s: %w", t.Family, t.Name, err)
	}
	return all, nil
}

// Fingerprint is a hash of the chains and their rules, as the kernel returns them, except for
// the chains that skip, if not nil, selects. The kernel's encoding of a rule differs from
// the one in which it was sent, so a fingerprint can only be compared with an earlier one.
func (t *Contents) Fingerprint(skip func(chain string) bool) uint64 {
	hash := fnv.New64a()
	write := func(chain string, parts ...[]byte) {
		if skip != nil && skip(chain) {
			return
		}
		fmt.Fprintln(hash, chain)
		for _, p := range parts {
			fmt.Fprint(hash, len(p), ":")
			hash.Write(p)
		}
	}
	for _, c := range t.Chains {
		write(c.Name, c.Base)
	}
	for _, r := range t.Rules {
		write(r.Chain, r.Expressions, r.Comment)
	}
	return hash.Sum64()
}

// Compatible returns those of the sets that the table has, and reports whether these have the same types there.
func (t *Contents) Compatible(sets []*Set) (has []*Set, compatible bool) {
	compatible = true
	for _, s := range sets {
		i := slices.IndexFunc(t.Sets, func(got Set) bool { return got.Name == s.Name })
		if i >= 0 {
			has, compatible = append(has, s), compatible && t.Sets[i].sameType(s)
		}
	}
	return has, compatible
}

// SameHooks reports whether both have the same base chains, with their hooks and policies.
func (t *Contents) SameHooks(o *Contents) bool { return maps.Equal(t.bases(), o.bases()) }

func (t *Contents) bases() map[string]string {
	all := map[string]string{}
	for _, c := range t.Chains {
		if len(c.Base) > 0 {
			all[c.Name] = string(c.Base)
		}
	}
	return all
}

func (s *Set) sameType(o *Set) bool {
	return s.KeyType == o.KeyType && s.KeyLen == o.KeyLen && s.Flags == o.Flags && s.DataType == o.DataType &&
		(s.DataType == TypeVerdict || s.DataLen == o.DataLen)
}

// Flowtable returns the flowtable with a name, or nil if the table does not have it or the
// kernel does not return it (see [Conn.Flowtables]).
func (t *Contents) Flowtable(name string) *Flowtable {
	if t == nil {
		return nil
	}
	for i := range t.Flowtables {
		if t.Flowtables[i].Name == name {
			return &t.Flowtables[i]
		}
	}
	return nil
}

// CommitRead tries at most this often while others commit, and while something is missing.
const (
	commitTries  = 20
	missingTries = 3
)

// CommitRead commits the batches that prepare returns after it has read the ruleset. It starts again if another program
// commits meanwhile, or if something that was read does not exist any more, such as a flowtable's device. Its last try
// does not detect commits of others. It returns the generation that was committed for; 0 if unknown.
func (c *Conn) CommitRead(ctx context.Context, prepare func() ([]*Batch, error)) (uint32, error) {
	for try := 1; ; try++ {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		generation, err := c.Generation()
		if err != nil {
			return 0, fmt.Errorf("reading the ruleset's generation: %w", err)
		}
		if try == commitTries {
			generation = 0
		}
		batches, err := prepare()
		if err == nil {
			err = c.Commit(generation, batches...)
		}
		again := errors.Is(err, ErrGeneration) || errors.Is(err, ErrInterrupted) || errors.Is(err, unix.ENOENT) && try < missingTries
		if !again || try == commitTries {
			return generation, err
		}
	}
}
