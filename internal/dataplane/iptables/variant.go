// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/desired"
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

// families are both.
var families = []desired.Family{desired.IPv4, desired.IPv6}

// hints are chains by which the kubelet shows which variant the node uses, also to
// programs in containers.
var hints = []string{":KUBE-IPTABLES-HINT", ":KUBE-KUBELET-CANARY"}

// Detect finds out which variant to use in a network namespace, given by file descriptor
// (0 is the calling thread's): the one where the kubelet has left its
// hint, or else where an earlier run has its rules, or else the one that has more rules, or else
// nf_tables.
func Detect(ctx context.Context, netns int) (Variant, error) {
	found := map[Variant]survey{}
	var failed []error
	for _, v := range variants {
		s, err := v.survey(ctx, netns)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		found[v] = s
	}
	if len(found) == 0 {
		return "", fmt.Errorf("neither iptables-nft nor iptables-legacy works: %w", errors.Join(failed...))
	}
	best := Variant("")
	for _, v := range variants {
		s, works := found[v]
		if works && (best == "" || s.betterThan(found[best])) {
			best = v
		}
	}
	return best, nil
}

// survey is what there is of a variant's rules.
type survey struct {
	hinted bool
	ours   bool
	rules  int
}

func (s survey) betterThan(t survey) bool {
	switch {
	case s.hinted != t.hinted:
		return s.hinted
	case s.ours != t.ours:
		return s.ours
	}
	return s.rules > t.rules
}

// survey looks what there is. A variant that does not work is an error, as far as can
// be told without making tables: those of x_tables would be there for ever.
func (v Variant) survey(ctx context.Context, netns int) (s survey, err error) {
	var failed []error
	for _, f := range families {
		if _, err := exec.LookPath(v.command(f, "-restore")); err != nil {
			failed = append(failed, fmt.Errorf("%s is not installed", v.command(f, "-restore")))
			continue
		}
		tables, err := v.tables(netns, f)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		for _, table := range tables {
			text, err := v.save(ctx, netns, f, table)
			if err != nil {
				failed = append(failed, err)
				break
			}
			for _, hint := range hints {
				s.hinted = s.hinted || table == "mangle" && bytes.Contains(text, []byte(hint+" "))
			}
			s.ours = s.ours || bytes.Contains(text, []byte(":"+chainServices+" "))
			s.rules += bytes.Count(text, []byte("\n-A "))
		}
	}
	if len(failed) >= len(families) {
		return s, errors.Join(failed...)
	}
	return s, nil
}

// tables are the names of those tables that there may be. To ask x_tables for one
// would make it.
func (v Variant) tables(netns int, f desired.Family) (names []string, err error) {
	if v == NFT {
		return []string{"mangle", "filter", "nat"}, nil
	}
	file := "/proc/thread-self/net/ip_tables_names"
	if f == desired.IPv6 {
		file = "/proc/thread-self/net/ip6_tables_names"
	}
	err = inside(netns, func() error {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			err = nil // not yet
		}
		names = strings.Fields(string(text))
		return err
	})
	return names, err
}

// probe finds out whether a variant works, by what it needs anyway. (To print one chain
// does not make nf_tables list all, as to save the table would.)
func (v Variant) probe(ctx context.Context, netns int, f desired.Family) error {
	_, err := run(ctx, netns, nil, v.command(f, ""), "-w", lockSeconds, "-t", tableNAT, "-S", "PREROUTING")
	return err
}
