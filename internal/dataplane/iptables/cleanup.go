// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Cleanup implements dataplane.Dataplane. It removes what there is of ours in both
// variants.
func (b *Backend) Cleanup() error {
	b.valid = false
	return remove(b.config.NetNS)
}

// remove removes all that any backend of this kind has programmed in a network namespace
// (0: the process's), in both variants. Where there is no iptables, there is nothing to
// remove, which is no error.
func remove(netns int) (err error) {
	for _, v := range variants {
		err = errors.Join(err, v.cleanIfWorks(netns))
	}
	return errors.Join(err, RemoveSets(netns))
}

// RemoveSets removes the IP sets of any backend of this kind from a network namespace (0:
// the process's). No rule may use them any more.
func RemoveSets(netns int) error {
	return inside(netns, func() (err error) {
		s, broken := openSets()
		if broken != nil {
			return nil // a kernel without sets
		}
		defer s.close()
		for _, f := range families {
			err = errors.Join(err, s.destroy(f))
		}
		return err
	})
}

// cleanOther removes what an earlier run has left in the variant that is not used.
func (b *Backend) cleanOther() (err error) {
	for _, v := range variants {
		if v != b.variant {
			err = errors.Join(err, v.cleanIfWorks(b.config.NetNS))
		}
	}
	return err
}

// cleanIfWorks removes our rules from a variant. Of one that does not work there can be
// nothing.
func (v Variant) cleanIfWorks(netns int) error {
	if _, broken := v.survey(netns); broken != nil {
		return nil
	}
	return v.clean(netns)
}

// clean removes our rules from a variant.
func (v Variant) clean(netns int) (err error) {
	for _, f := range families {
		tables, broken := v.tables(netns, f)
		if broken != nil {
			continue
		}
		for _, table := range tables {
			err = errors.Join(err, v.cleanTable(netns, f, table))
		}
	}
	return err
}

func (v Variant) cleanTable(netns int, f desired.Family, table string) error {
	text, err := v.save(netns, f, table)
	if errors.Is(err, errNoTable) {
		return nil
	}
	if err != nil {
		return err
	}
	there := parseSave(text)
	out := &script{now: registry{}}
	for _, rule := range there.entries {
		out.rule("-D " + rule)
	}
	for _, name := range there.chains {
		out.drop(name)
	}
	if out.empty() {
		return nil
	}
	return v.restore(netns, f, out.finish(table))
}
