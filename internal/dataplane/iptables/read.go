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

var _ dataplane.Reader = (*Dataplane)(nil)

// ReadFrontend implements dataplane.Reader. The commands of iptables can only list everything.
func (b *Dataplane) ReadFrontend(ctx context.Context, want *desired.Change) (*dataplane.Content, error) {
	return dataplane.ReadOne(ctx, b.Read, want)
}

// Read implements dataplane.Reader. It reads the kernel alone, and uses nothing that the
// Dataplane remembers.
func (b *Dataplane) Read(ctx context.Context) (*dataplane.Content, error) {
	c := dataplane.NewContent()
	for _, t := range b.tables {
		r := reader{family: t.family, content: c, chains: map[string][]rule{}}
		var err error
		if t.read, err = b.readTables(ctx, t.family); err != nil {
			return nil, err
		}
		for _, name := range chainTables {
			r.add(t.read[name])
		}
		// The rules of chainServices that are not the tree's match sets.
		r.chains[chainServices] = slices.DeleteFunc(r.chains[chainServices], func(l rule) bool { return l.has("--match-set") })
		if r.sets, err = readSets(b.sets, t.family); err != nil {
			return nil, err
		}
		r.breakLoops()
		r.read()
	}
	slices.Sort(c.Faults)
	return c, nil
}

// readTables reads all of one family, by table.
func (b *Dataplane) readTables(ctx context.Context, f desired.Family) (map[string]*saved, error) {
	there := map[string]*saved{}
	for _, name := range chainTables {
		text, err := b.variant.save(ctx, b.config.NetNS, f, name)
		if err != nil {
			return nil, err
		}
		there[name] = parseSave(text)
	}
	return there, nil
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
		default:
			r[last] = strings.TrimSpace(r[last] + " " + word)
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
	refused map[desired.FrontendKey]string // NodePorts without endpoints, and the chains for them
}

func (r *reader) add(there *saved) {
	for _, name := range there.chains {
		r.chains[name] = []rule{}
		for line := range bytes.Lines(there.rules[name]) {
			r.chains[name] = append(r.chains[name], parseRule(string(line)))
		}
	}
}

func (r *reader) fault(format string, args ...any) {
	r.content.Faults = append(r.content.Faults, fmt.Sprintf("%s: ", r.family)+fmt.Sprintf(format, args...))
}

func (r *reader) read() {
	frontends := r.content.Frontends
	r.refused = map[desired.FrontendKey]string{}
	for _, line := range r.leaves(chainRefusedTree) {
		key, _ := r.frontendOf(line)
		r.refused[key] = r.follow(chainRefusedTree, func(l rule) bool { return l.matches(key) })
	}
	r.tree(chainServices, func(k desired.FrontendKey, t dataplane.Target) { frontends[k] = t })
	for _, root := range []string{chainExternalTree, chainNodeTree, chainInsideTree} {
		r.tree(root, func(k desired.FrontendKey, t dataplane.Target) {
			if _, twice := frontends[k]; twice {
				r.fault("frontend %s is in two trees", k)
			}
			t.External = true
			frontends[k] = t
		})
	}
	for _, root := range []string{chainLocalTree, chainOutsideTree} {
		r.tree(root, func(k desired.FrontendKey, local dataplane.Target) {
			t := frontends[k]
			t.FromOutside = &local.Choice
			frontends[k] = t
			if local.Affinity != t.Affinity && len(local.Backends) > 0 {
				r.fault("frontend %s has an affinity of %d s and of %d s from outside", k, t.Affinity, local.Affinity)
			}
		})
	}
	r.memberships()
	r.sources()
	for set, kind := range setKindOf {
		for m := range r.sets[kind] {
			switch set {
			case desired.ClusterIPs, desired.NodeAddresses:
				r.content.Sets[set][desired.Address(m.Net.Addr())] = true
			case desired.ServiceCIDRs:
				r.content.Sets[set][desired.Range(m.Net)] = true
			}
		}
	}
	r.hairpins()
}

// breakLoops removes rules that lead back to a chain on the way to them. The kernel has such rules
// if no packet gets there.
func (r *reader) breakLoops() {
	onTheWay := map[string]bool{} // false for a chain that has been left
	var walk func(string)
	walk = func(chain string) {
		onTheWay[chain] = true
		r.chains[chain] = slices.DeleteFunc(r.chains[chain], func(l rule) bool {
			to := l["-g"]
			above, seen := onTheWay[to]
			if _, there := r.chains[to]; there && !seen {
				walk(to)
			}
			if above {
				r.fault("chain %s leads back to %s", chain, to)
			}
			return above
		})
		onTheWay[chain] = false
	}
	for chain := range r.chains {
		if _, seen := onTheWay[chain]; !seen {
			walk(chain)
		}
	}
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
func (r *reader) tree(root string, visit func(desired.FrontendKey, dataplane.Target)) {
	for _, line := range r.leaves(root) {
		key, ok := r.frontendOf(line)
		if !ok || line["-g"] == "" {
			r.fault("a rule of %s is not a frontend's: %v", root, line)
			continue
		}
		if to := r.follow(root, func(l rule) bool { return l.matches(key) }); to != line["-g"] {
			r.fault("packets to %s go to %q instead of %s", key, to, line["-g"])
		}
		visit(key, r.target(key, line["-g"]))
	}
}

// follow is the chain outside of a tree to which a packet goes.
func (r *reader) follow(chain string, matches func(rule) bool) string {
	for _, line := range r.chains[chain] {
		if matches(line) {
			if to := line["-g"]; strings.HasPrefix(to, branchPrefix) {
				return r.follow(to, matches)
			}
			return line["-g"]
		}
	}
	return ""
}

// frontendOf is the frontend whose packets a rule matches.
func (r *reader) frontendOf(line rule) (k desired.FrontendKey, ok bool) {
	p, err := netip.ParsePrefix(line["-d"])
	if !line.has("-d") { // a NodePort's
		any := map[desired.Family]netip.Addr{desired.IPv4: netip.IPv4Unspecified(), desired.IPv6: netip.IPv6Unspecified()}[r.family]
		p, err = netip.PrefixFrom(any, any.BitLen()), nil
	}
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
	if line.has("-d") && !contains(line["-d"], k.Addr()) || line.has("-p") && line["-p"] != protocolName(k.Protocol) {
		return false
	}
	if !line.has("--dport") {
		return true
	}
	first, last, isRange := strings.Cut(line["--dport"], ":")
	if !isRange {
		last = first
	}
	from, err := strconv.ParseUint(first, 10, 16)
	to, err2 := strconv.ParseUint(last, 10, 16)
	return err == nil && err2 == nil && from <= uint64(k.Port()) && uint64(k.Port()) <= to
}

// contains says whether a prefix, as text, contains an address.
func contains(prefix string, a netip.Addr) bool {
	p, err := netip.ParsePrefix(prefix)
	return err == nil && p.Contains(a)
}

// target reads where a frontend leads, from a pool's first chain on.
func (r *reader) target(k desired.FrontendKey, to string) (t dataplane.Target) {
	rules, there := r.chains[to]
	if !there {
		r.fault("frontend %s leads to chain %s, which does not exist", k, to)
	}
	looked := map[desired.Backend]bool{}
	choose := rules[:0:0]
	for _, line := range rules {
		switch {
		case line.has("--seconds"):
			n, _ := strconv.ParseUint(line["--seconds"], 10, 32)
			t.Affinity = uint32(n)
			b, _ := r.endpoint(line)
			looked[b] = true
		case !line.has("--remove"):
			choose = append(choose, line)
		}
	}
	weights := map[desired.Backend]float64{}
	if left := r.choose(choose, 1, weights); len(choose) > 0 && left > 1e-6 {
		r.fault("frontend %s chooses nothing with a probability of %g", k, left)
	}
	t.Choice = dataplane.ChoiceByShares(weights)
	for b := range weights {
		if t.Affinity > 0 && !looked[b] {
			r.fault("frontend %s does not know clients of %s", k, b)
		}
	}
	if t.Affinity > 0 && len(looked) != len(weights) {
		r.fault("frontend %s has %d endpoints and knows clients of %d", k, len(weights), len(looked))
	}
	if len(t.Backends) == 0 && (r.sets[setDrop][frontendMember(k)] || r.refused[k] == chainNodeDrop) {
		t.IfEmpty = desired.Drop
	}
	if strings.HasPrefix(to, poolPrefixes[2]) {
		t.IfEmpty = desired.Pass
	}
	return t
}

// choose adds to weights the probability with which rules choose each backend, given the
// probability with which they are reached, and returns that of choosing none.
func (r *reader) choose(rules []rule, of float64, weights map[desired.Backend]float64) float64 {
	for _, line := range rules {
		for option := range line {
			if !slices.Contains([]string{"-p", "-m", "--mode", "--probability", "-g", "-j", "--to-destination"}, option) {
				r.fault("a rule for an endpoint that does more: %v", line)
				break
			}
		}
		p := 1.0
		if text := line["--probability"]; text != "" {
			p, _ = strconv.ParseFloat(text, 64)
		}
		if b, ok := r.endpoint(line); ok {
			weights[b] += of * p
			of -= of * p
			continue
		}
		next, there := r.chains[line["-g"]]
		if !there {
			r.fault("a rule for an endpoint that leads nowhere: %v", line)
			continue
		}
		missed := r.choose(next, of*p, weights)
		of -= of*p - missed
	}
	return of
}

// endpoint is the endpoint to which a rule sends packets, directly or through the chain of
// an endpoint with session affinity.
func (r *reader) endpoint(line rule) (b desired.Backend, ok bool) {
	if to := line["-g"]; strings.HasPrefix(to, stickyPrefix) && len(r.chains[to]) == 1 {
		line = r.chains[to][0]
	}
	ap, err := netip.ParseAddrPort(line["--to-destination"])
	return desired.NewBackend(ap), err == nil
}

// memberships compares the sets of frontends with the rules.
func (r *reader) memberships() {
	for k := range frontendSets {
		for m := range r.sets[k] {
			if _, there := r.content.Frontends[keyOf(m)]; !there {
				r.fault("%s has %s, which is not a frontend", setTypes[k].name, keyOf(m))
			}
		}
	}
	for f := range r.refused {
		if _, there := r.content.Frontends[f]; !there {
			r.fault("%s is refused, which is not a NodePort", f)
		}
	}
	for f, t := range r.content.Frontends {
		if desired.FamilyOf(f.Addr()) != r.family {
			continue
		}
		c := t.Choice
		if t.FromOutside != nil && (len(c.Backends) > 0 || t.FromOutside.IfEmpty == desired.Pass) {
			c = *t.FromOutside
		}
		empty := len(c.Backends) == 0
		if f.OnNode() {
			want := ""
			if empty {
				want = map[desired.Verdict]string{desired.Reject: chainNodeReject, desired.Drop: chainNodeDrop}[c.IfEmpty]
			}
			if r.refused[f] != want {
				r.fault("NodePort %s is refused by %q instead of %q", f, r.refused[f], want)
			}
			continue
		}
		for k, want := range map[setKind]bool{
			setExternal: t.External, setLocal: t.FromOutside != nil,
			setReject: empty && c.IfEmpty == desired.Reject, setDrop: empty && c.IfEmpty == desired.Drop,
		} {
			if has := r.sets[k][frontendMember(f)]; has != want {
				r.fault("%s %s %s", setTypes[k].name, map[bool]string{true: "has", false: "lacks"}[has], f)
			}
		}
	}
}

// sources reads who may connect to restricted frontends.
func (r *reader) sources() {
	sources := map[desired.FrontendKey][]netip.Prefix{}
	for m := range r.sets[setSources] {
		sources[keyOf(m)] = append(sources[keyOf(m)], m.Net)
		if !r.sets[setRestricted][frontendMember(keyOf(m))] {
			r.fault("SOURCES has %s, which is not restricted", m)
		}
	}
	for m := range r.sets[setRestricted] {
		t := r.content.Frontends[keyOf(m)]
		t.Sources = append([]netip.Prefix{}, sources[keyOf(m)]...) // not nil if empty
		slices.SortFunc(t.Sources, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
		r.content.Frontends[keyOf(m)] = t
	}
}

// hairpins reads the addresses that are masqueraded when they send to themselves.
func (r *reader) hairpins() {
	leaves := r.leaves(chainHairpinTree)
	for _, line := range leaves {
		p, err := netip.ParsePrefix(line["-s"])
		if err != nil || line["-d"] != line["-s"] || line["-g"] != chainMasquerade {
			r.fault("a rule of %s is not a hairpin's: %v", chainHairpinTree, line)
			continue
		}
		self := func(l rule) bool { return contains(l["-s"], p.Addr()) }
		if r.follow(chainHairpinTree, self) != chainMasquerade || !r.sets[setHairpin][addrMember(p.Addr())] {
			r.fault("%s is not masqueraded when sent to itself", p.Addr())
		}
		r.content.Sets[desired.HairpinIPs][desired.Address(p.Addr())] = true
	}
	if n := len(r.sets[setHairpin]); n != len(leaves) {
		r.fault("HAIRPIN has %d addresses for %d rules", n, len(leaves))
	}
}
