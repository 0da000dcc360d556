// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

var _ dataplane.Reader = (*Backend)(nil)

// Read implements dataplane.Reader. It reads the kernel alone, and uses nothing that the
// Backend remembers.
func (b *Backend) Read(ctx context.Context) (*dataplane.Content, error) {
	c := dataplane.NewContent()
	for _, t := range b.tables {
		r := reader{family: t.family, content: c, chains: map[string][]rule{}}
		text, err := b.variant.save(ctx, b.config.NetNS, t.family, tableNAT)
		if err != nil {
			return nil, err
		}
		there := parseSave(text)
		for _, name := range there.chains {
			r.chains[name] = []rule{}
			for line := range bytes.Lines(there.rules[name]) {
				r.chains[name] = append(r.chains[name], parseRule(string(line)))
			}
		}
		r.chains[chainServices] = withoutHead(r.chains[chainServices])
		if r.sets, err = readSets(b.sets, t.family); err != nil {
			return nil, err
		}
		r.read()
	}
	slices.Sort(c.Faults)
	return c, nil
}

// withoutHead skips the rules of chainServices that are not the tree's. They match sets.
func withoutHead(chain []rule) []rule {
	for len(chain) > 0 && chain[0].has("--match-set") {
		chain = chain[1:]
	}
	return chain
}

// rule is a rule as iptables-save prints it: options and their values. The name of a
// negated option begins with "!".
type rule map[string]string

func parseRule(text string) rule {
	r := rule{}
	not, last := "", ""
	for _, word := range strings.Fields(text) {
		switch {
		case word == "!":
			not = "!"
		case strings.HasPrefix(word, "-"):
			last = not + word
			r[last], not = "", ""
		case r[last] == "":
			r[last] = word
		default:
			r[last] += " " + word
		}
	}
	return r
}

func (line rule) has(option string) bool {
	_, has := line[option]
	return has
}

// reader reads one family.
type reader struct {
	family  desired.Family
	content *dataplane.Content
	chains  map[string][]rule
	sets    [setKinds]map[member]bool
}

func (r *reader) fault(format string, args ...any) {
	r.content.Faults = append(r.content.Faults, fmt.Sprintf("%s: ", r.family)+fmt.Sprintf(format, args...))
}

func (r *reader) read() {
	r.tree(chainServices, func(k desired.FrontendKey, to string) {
		r.content.Frontends[k] = r.target(k, to)
	})
	r.tree(chainExternalTree, func(k desired.FrontendKey, to string) {
		t := r.target(k, to)
		t.External = true
		r.content.Frontends[k] = t
	})
	r.tree(chainLocalTree, func(k desired.FrontendKey, to string) {
		local := r.target(k, to)
		t := r.content.Frontends[k]
		t.FromOutside = &local.Choice
		r.content.Frontends[k] = t
		if local.Affinity != t.Affinity {
			r.fault("frontend %s has an affinity of %d s and of %d s from outside", k, t.Affinity, local.Affinity)
		}
	})
	r.frontendSets()
	for m := range r.sets[setClusterIPs] {
		r.content.ClusterIPs[m.Net.Addr()] = true
	}
	for _, p := range unsplit(sortedPrefixes(r.sets[setServiceCIDRs])) {
		r.content.ServiceCIDRs[p] = true
	}
	r.hairpins()
}

func sortedPrefixes(all map[member]bool) (out []netip.Prefix) {
	for m := range all {
		out = append(out, m.Net)
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return out
}

// leaves are the rules of a tree that do not lead to other chains of it.
func (r *reader) leaves(root string) (out []rule) {
	for _, line := range r.chains[root] {
		if to := line["-g"]; strings.HasPrefix(to, branchPrefix) {
			if _, there := r.chains[to]; !there {
				r.fault("chain %s leads to %s, which does not exist", root, to)
			}
			out = append(out, r.leaves(to)...)
		} else {
			out = append(out, line)
		}
	}
	return out
}

// tree visits a tree's frontends, and checks that their packets find them.
func (r *reader) tree(root string, visit func(key desired.FrontendKey, to string)) {
	for _, line := range r.leaves(root) {
		key, ok := frontendOf(line)
		if !ok || line["-g"] == "" {
			r.fault("a rule of %s is not a frontend's: %v", root, line)
			continue
		}
		if to := r.follow(root, func(l rule) bool { return l.matches(key) }); to != line["-g"] {
			r.fault("packets to %s go to %q instead of %s", key, to, line["-g"])
		}
		visit(key, line["-g"])
	}
}

// follow is the chain outside of a tree to which a packet goes.
func (r *reader) follow(chain string, matches func(rule) bool) string {
	for _, line := range r.chains[chain] {
		if !matches(line) {
			continue
		}
		if to := line["-g"]; strings.HasPrefix(to, branchPrefix) {
			return r.follow(to, matches)
		}
		return line["-g"]
	}
	return ""
}

// frontendOf is the frontend whose packets a rule matches.
func frontendOf(line rule) (k desired.FrontendKey, ok bool) {
	p, err := netip.ParsePrefix(line["-d"])
	port, err2 := strconv.ParseUint(line["--dport"], 10, 16)
	for _, proto := range protocols {
		if protocolName(proto) == line["-p"] {
			k.Protocol = proto
		}
	}
	k.AddrPort = netip.AddrPortFrom(p.Addr(), uint16(port))
	return k, err == nil && err2 == nil && p.IsSingleIP() && k.Protocol != 0
}

// matches says whether packets to a frontend match a rule of a tree.
func (line rule) matches(k desired.FrontendKey) bool {
	if d := line["-d"]; d != "" {
		if p, err := netip.ParsePrefix(d); err != nil || !p.Contains(k.Addr()) {
			return false
		}
	}
	if p := line["-p"]; p != "" && p != protocolName(k.Protocol) {
		return false
	}
	if d := line["--dport"]; d != "" {
		first, last, isRange := strings.Cut(d, ":")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err != nil || err2 != nil || uint64(k.Port()) < from || uint64(k.Port()) > to {
			return false
		}
	}
	return true
}
