// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
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
func (b *Backend) Probe(ctx context.Context) (_ []dataplane.Missing, err error) {
	if err := b.removeProbe(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if ctx.Err() != nil { // then the command that removes the chain may not have run
			err = errors.Join(err, b.removeProbe(context.WithoutCancel(ctx)))
		}
	}()
	for _, t := range slices.Clone(b.tables) {
		m, err := b.probeSets(ctx, t.family)
		if err == nil && m == nil {
			m, err = b.probeRules(ctx, t.family)
		}
		if err == nil && m != nil && (errors.Is(m.Err, unix.EPERM) || isTemporary(m.Err)) {
			err = m.Err
		}
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			return nil, fmt.Errorf("trying what the node can do: %w", err)
		case m == nil:
			continue
		}
		m.Family = t.family
		b.missing = append(b.missing, *m)
		b.tables = slices.DeleteFunc(b.tables, func(other *table) bool { return other == t })
	}
	return b.missing, nil
}

// removeTimeout is how long removeProbe may take.
const removeTimeout = 5 * time.Second

// removeProbe removes what a probe has left that was killed, without commands. A chain of
// it in the table nat uses the set.
func (b *Backend) removeProbe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	if b.sets.Destroy(ctx, probeName) == nil {
		return nil
	}
	err := inside(b.config.NetNS, func() error { return iptchains.Remove(ctx, probeOwner) })
	if err = errors.Join(err, b.sets.Destroy(ctx, probeName)); err != nil {
		return fmt.Errorf("removing what an earlier probe has left: %w", err)
	}
	return nil
}

// probeSets returns the first type of IP sets that the kernel lacks.
func (b *Backend) probeSets(ctx context.Context, f desired.Family) (*dataplane.Missing, error) {
	for _, k := range setTypes {
		if err := b.sets.Create(probeName, k.typ, f == desired.IPv6); err != nil {
			config := "CONFIG_IP_SET_" + strings.ToUpper(strings.NewReplacer(":", "_", ",", "").Replace(k.typ))
			return &dataplane.Missing{Feature: "IP sets of the type " + k.typ, Err: err, Remedy: "needs " + config}, nil
		}
		if err := b.sets.Destroy(ctx, probeName); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// probeRules returns the first extension that does not work, or nil.
func (b *Backend) probeRules(ctx context.Context, f desired.Family) (m *dataplane.Missing, err error) {
	if err := b.sets.Create(probeName, "hash:ip", f == desired.IPv6); err != nil {
		return nil, err
	}
	err = b.tryRules(ctx, f, extensions)
	for i := 0; err != nil && m == nil; i++ {
		if i == len(extensions) { // each works by itself
			m = &dataplane.Missing{Feature: "rules", Err: err, Remedy: "see the error"}
		} else if err := b.tryRules(ctx, f, extensions[i:i+1]); err != nil {
			m = &dataplane.Missing{Feature: extensions[i].name, Err: err, Remedy: "needs " + extensions[i].config}
		}
	}
	return m, b.sets.Destroy(ctx, probeName)
}

// tryRules has the kernel take the rules of extensions, and removes them.
func (b *Backend) tryRules(ctx context.Context, f desired.Family, all []extension) (err error) {
	address := "127.0.0.1"
	if f == desired.IPv6 {
		address = "[::1]"
	}
	for _, table := range []string{tableNAT, tableFilter} {
		var rules strings.Builder
		for _, e := range all {
			for _, rule := range e.rules {
				if e.table == table {
					rules.WriteString("-A " + probeName + " " + strings.Replace(rule, "%s", address, 1) + "\n")
				}
			}
		}
		if rules.Len() == 0 || err != nil {
			continue
		}
		head, tail := "*"+table+"\n:"+probeName+" - [0:0]\n", "COMMIT\n"
		if err = b.variant.restore(ctx, b.config.NetNS, f, []byte(head+rules.String()+tail)); err == nil {
			err = b.variant.restore(ctx, b.config.NetNS, f, []byte(head+"-X "+probeName+"\n"+tail))
		}
	}
	return err
}

// isTemporary says whether a command may have failed because of other programs: one holds
// the lock of iptables-legacy, or the node is too busy.
func isTemporary(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) ||
		err != nil && (strings.Contains(err.Error(), "xtables lock") || strings.Contains(err.Error(), "Resource temporarily unavailable"))
}

// missing says what a family lacks of which a variant's commands do not work.
func (v Variant) missing(f desired.Family, err error) dataplane.Missing {
	m := dataplane.Missing{Family: f, Feature: "table nat of iptables-" + string(v), Err: err, Remedy: "needs CONFIG_NF_TABLES_" + f.String() + ", CONFIG_NFT_NAT and CONFIG_NFT_COMPAT"}
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
