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
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/feature"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/iptchains"
	"golang.org/x/sys/unix"
)

// probeName names the chain and the set that a probe makes for a moment. No rule leads
// to the chain. If the proxy is killed at that moment, the next probe removes both.
const probeName = prefix + "PROBE"

// probeOwner owns the chain.
var probeOwner = iptchains.Owner{
	Name:    "slipstream",
	Owns:    func(chain string) bool { return chain == probeName },
	Entered: func(string) bool { return false },
}

// extension is a match or target that rules of ours have.
type extension struct {
	name, table string
	rules       []string // as iptables-restore takes them; %s stands for an address
	config      string   // the kernel's option
}

const xt = "CONFIG_NETFILTER_XT_"

// extensions are all of them. TestExtensions holds the list to the rules.
var extensions = []extension{
	{"match set", tableNAT, []string{"-m set --match-set " + probeName + " dst"}, xt + "SET"},
	{"match addrtype", tableNAT, []string{"-m addrtype --src-type LOCAL", "-m addrtype ! --dst-type LOCAL"}, xt + "MATCH_ADDRTYPE"},
	{"match comment", tableNAT, []string{"-m comment --comment probe"}, xt + "MATCH_COMMENT"},
	{"match conntrack", tableNAT, []string{"-m conntrack --ctstate DNAT"}, xt + "MATCH_CONNTRACK"},
	{"match mark", tableNAT, []string{"-m mark --mark 0x1/0x1"}, xt + "MARK"},
	{"match recent", tableNAT, []string{
		"-m recent --name " + probeName + " --rcheck --seconds 1 --reap --rsource",
		"-m recent --name " + probeName + " --set --rsource",
	}, xt + "MATCH_RECENT"},
	{"match statistic", tableNAT, []string{"-m statistic --mode random --probability 0.5"}, xt + "MATCH_STATISTIC"},
	{"target MARK", tableNAT, []string{"-j MARK --set-xmark 0x1/0x1"}, xt + "MARK"},
	{"target DNAT", tableNAT, []string{"-p tcp -j DNAT --to-destination %s:1"}, xt + "NAT"},
	{"target MASQUERADE", tableNAT, []string{"-j MASQUERADE --random-fully"}, xt + "TARGET_MASQUERADE"},
	{"target REJECT", tableFilter, []string{"-j REJECT", "-p tcp -j REJECT --reject-with tcp-reset"}, "CONFIG_IP_NF_TARGET_REJECT and CONFIG_IP6_NF_TARGET_REJECT"},
}

// Probe implements dataplane.Prober. It makes a set of each type, and then has the
// kernel take a chain to which no rule leads, with all matches and targets that rules of
// ours have.
func (b *Dataplane) Probe(ctx context.Context) ([]dataplane.Missing, error) {
	if err := b.removeProbe(ctx); err != nil {
		return nil, err
	}
	var tables []*table // of families that can be served
	for _, t := range b.tables {
		err := b.probeSets(ctx, t.family)
		if err == nil {
			err = b.probeRules(ctx, t.family)
		}
		switch m, is := errors.AsType[feature.Missing](err); {
		case err == nil:
			tables = append(tables, t)
		case is && !errors.Is(err, unix.EPERM) && !isTemporary(err):
			b.missing = append(b.missing, dataplane.Missing{Family: t.family, Missing: m})
		default:
			return nil, fmt.Errorf("probing the features of the node: %w", err)
		}
	}
	b.tables = tables
	return b.missing, nil
}

// removeProbe removes the chains and the set of a probe, without commands.
func (b *Dataplane) removeProbe(ctx context.Context) error {
	const removeTimeout = 5 * time.Second // how long the removal may take
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	err := dataplane.Inside(b.config.NetNS, func() error { return iptchains.Remove(ctx, probeOwner) })
	if err = errors.Join(err, b.sets.Destroy(ctx, probeName)); err != nil {
		return fmt.Errorf("removing the chains of a probe: %w", err)
	}
	return nil
}

// probeSets looks for the first type of IP sets that the kernel lacks.
func (b *Dataplane) probeSets(ctx context.Context, f desired.Family) error {
	for _, k := range setTypes {
		if err := b.sets.Create(probeName, k.typ, f == desired.IPv6); err != nil {
			config := "CONFIG_IP_SET_" + strings.ToUpper(strings.NewReplacer(":", "_", ",", "").Replace(k.typ))
			return feature.Missing{Feature: "IP sets of the type " + k.typ, Err: err, Remedy: "needs " + config}
		}
		if err := b.sets.Destroy(ctx, probeName); err != nil {
			return err
		}
	}
	return nil
}

// probeRules looks for the first extension that does not work.
func (b *Dataplane) probeRules(ctx context.Context, f desired.Family) error {
	refused, err := b.tryRules(ctx, f, extensions)
	if refused == nil || err != nil {
		return err
	}
	for i, e := range extensions {
		if refused, err := b.tryRules(ctx, f, extensions[i:i+1]); err != nil {
			return err
		} else if refused != nil {
			return feature.Missing{Feature: e.name, Err: refused, Remedy: "needs " + e.config}
		}
	}
	return feature.Missing{Feature: "rules", Err: refused, Remedy: "see the error"}
}

// tryRules has the kernel take the rules of extensions, in one restore, and removes them.
func (b *Dataplane) tryRules(ctx context.Context, f desired.Family, all []extension) (refused, err error) {
	if err := b.sets.Create(probeName, "hash:ip", f == desired.IPv6); err != nil {
		return nil, err
	}
	address := [...]string{desired.IPv4: "127.0.0.1", desired.IPv6: "[::1]"}[f]
	var input []byte
	for _, table := range chainTables {
		var text []byte
		for _, e := range all {
			for _, rule := range e.rules {
				if e.table == table {
					text = append(text, strings.Replace(rule, "%s", address, 1)+"\n"...)
				}
			}
		}
		if text == nil {
			continue
		}
		out := &script{now: registry{}}
		out.chain(probeName, text)
		input = append(input, out.finish(table, math.MaxInt)...)
	}
	refused = b.variant.restore(ctx, b.config.NetNS, f, input)
	return refused, b.removeProbe(context.WithoutCancel(ctx))
}

var temporary = regexp.MustCompile("(?i)xtables lock|resource temporarily unavailable")

// isTemporary says whether a command was stopped, or may have failed because of other
// programs: one holds the lock of iptables-legacy, or the node is too busy.
func isTemporary(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		err != nil && temporary.MatchString(err.Error())
}

// missing describes a family for which a variant's commands do not work.
func (v Variant) missing(f desired.Family, err error) dataplane.Missing {
	m := dataplane.Missing{Family: f, Missing: feature.Missing{Feature: "table nat of iptables-" + string(v), Err: err, Remedy: "needs CONFIG_NF_TABLES_" + f.String() + ", CONFIG_NFT_NAT and CONFIG_NFT_COMPAT"}}
	command := v.command(f, "-restore")
	if _, none := exec.LookPath(command); none != nil {
		m.Feature, m.Err, m.Remedy = "command "+command, none, "install iptables 1.8 or later"
	} else if v == Legacy {
		m.Remedy = "needs CONFIG_IP_NF_NAT"
		if f == desired.IPv6 {
			m.Remedy = "needs CONFIG_IP6_NF_NAT"
		}
	}
	return m
}
