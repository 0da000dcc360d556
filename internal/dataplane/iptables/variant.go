// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/iptchains"
)

// Variant is one of the two programs of the name iptables. Rules of both take effect
// at the same time, so a node should use one of them.
type Variant string

const (
	// Legacy is iptables by way of the kernel's x_tables.
	Legacy Variant = "legacy"
	// NFT is iptables by way of nf_tables.
	NFT Variant = "nft"
)

var variants = []Variant{NFT, Legacy}

var families = []desired.Family{desired.IPv4, desired.IPv6}

// hints are chains in the table mangle by which the kubelet shows, also to programs in
// containers, which variant the node uses.
var hints = []string{"KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"}

// Detect finds out which variant to use in a network namespace, given by file descriptor
// (0 is the calling thread's): the one where the kubelet has left its hint, or else where
// an earlier run has its rules, or else the one that has more rules, or else the one that
// the command iptables is (update-alternatives), or else nf_tables. It has to work for one
// family at least.
func Detect(ctx context.Context, netns int) (Variant, error) {
	found := map[Variant]survey{}
	var failed []error
	for _, v := range variants {
		s, err := v.survey(netns)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		found[v] = s
	}
	best := slices.Clone(variants)
	l, n := found[Legacy], found[NFT]
	if c := cmp.Or(l.hinted-n.hinted, l.ours-n.ours, l.rules-n.rules); c > 0 || c == 0 && systemVariant(ctx) == Legacy {
		slices.Reverse(best)
	}
	for _, v := range best {
		if _, installed := found[v]; !installed {
			continue
		}
		for _, f := range families {
			err := v.probe(ctx, netns, f)
			if err == nil {
				return v, nil
			}
			if isTemporary(err) {
				return "", err // the other variant is not better
			}
			failed = append(failed, err)
		}
	}
	return "", fmt.Errorf("neither iptables-nft nor iptables-legacy works: %w", errors.Join(failed...))
}

// systemVariant is the variant that the command iptables is, by its version.
func systemVariant(ctx context.Context) Variant {
	out, err := run(ctx, 0, nil, "iptables", "--version")
	if err == nil && bytes.Contains(out, []byte("(legacy)")) {
		return Legacy
	}
	return NFT
}

// survey describes a variant's rules.
type survey struct {
	hinted, ours int // 1 if it is so
	rules        int // and jumps
}

// localnetUses is how much chainLocalnet adds to survey.rules: its rule, the rule that leads
// there, and the jump of the latter.
const localnetUses = 3

// survey does not create tables of x_tables: they would exist for ever.
func (v Variant) survey(netns int) (s survey, err error) {
	var missing []error
	for _, f := range families {
		if _, err := exec.LookPath(v.command(f, "-restore")); err != nil {
			missing = append(missing, fmt.Errorf("%s is not installed", v.command(f, "-restore")))
		}
	}
	if len(missing) == len(families) {
		return s, errors.Join(missing...)
	}
	return s, dataplane.Inside(netns, func() error {
		for _, table := range iptchains.Tables() {
			if table.Legacy != (v == Legacy) {
				continue
			}
			err := table.View(func(view iptchains.View) error {
				chains, err := view.Chains()
				for _, c := range chains {
					s.rules += c.Uses
					switch {
					case table.Name == "mangle" && slices.Contains(hints, c.Name):
						s.hinted = 1
					case c.Name == chainServices:
						s.ours = 1
					case c.Name == chainLocalnet: // it stays, with its entry rule, after Remove
						s.rules -= localnetUses
					}
				}
				return err
			})
			if err != nil {
				return fmt.Errorf("reading %s: %w", table, err)
			}
		}
		return nil
	})
}

// probe finds out whether a variant works. (Listing one chain
// does not make nf_tables list all, as saving the table would.)
func (v Variant) probe(ctx context.Context, netns int, f desired.Family) error {
	_, err := run(ctx, netns, nil, v.command(f, ""), "-w", lockSeconds, "-t", tableNAT, "-S", "PREROUTING")
	return err
}
