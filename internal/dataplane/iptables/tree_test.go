// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// chainsOf applies scripts as the kernel would.
type chainsOf map[string][]rule

func (c chainsOf) apply(t *testing.T, s *script) {
	t.Helper()
	fresh := map[string]bool{}
	for line := range strings.Lines(string(s.finish(tableNAT, math.MaxInt))) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, ":"):
			name, _, _ := strings.Cut(line[1:], " ")
			c[name], fresh[name] = nil, true
		case strings.HasPrefix(line, "-A "):
			name, text, _ := strings.Cut(line[3:], " ")
			if !fresh[name] {
				t.Fatalf("a rule for a chain that the script does not write: %s", line)
			}
			c[name] = append(c[name], parseRule(text))
		case strings.HasPrefix(line, "-X "):
			delete(c, line[3:])
		}
	}
	for name, rules := range c {
		for _, r := range rules {
			if _, there := c[r["-g"]]; !there && strings.HasPrefix(r["-g"], branchPrefix) {
				t.Fatalf("chain %s leads to %s, which is not there", name, r["-g"])
			}
		}
	}
}

// walk returns where a packet leaves a tree, after how many rules, by way of how many
// chains.
func (c chainsOf) walk(chain string, key desired.FrontendKey) (to string, rules, chains int) {
	for {
		chains++
		next := ""
		for _, r := range c[chain] {
			rules++
			if r.matches(key) {
				next = r["-g"]
				break
			}
		}
		if !strings.HasPrefix(next, branchPrefix) {
			return next, rules, chains
		}
		chain = next
	}
}

// keyMakers make frontends as clusters have them, and unlikely ones.
var keyMakers = map[string]func(r *rand.Rand, i int) desired.FrontendKey{
	"consecutive": func(_ *rand.Rand, i int) desired.FrontendKey {
		return tcpKey(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80)
	},
	"random addresses": func(r *rand.Rand, _ int) desired.FrontendKey {
		n := r.Uint32()
		return tcpKey(netip.AddrFrom4([4]byte{10, 96 | byte(n>>16)&15, byte(n >> 8), byte(n)}), 80)
	},
	"random IPv6": func(r *rand.Rand, _ int) desired.FrontendKey {
		var a [16]byte
		a[0], a[1], a[14], a[15] = 0xfd, 0, byte(r.Uint32()), byte(r.Uint32())
		a[13] = byte(r.Uint32()) & 15
		return tcpKey(netip.AddrFrom16(a), 80)
	},
	"node ports": func(_ *rand.Rand, i int) desired.FrontendKey {
		k := tcpKey(netip.IPv4Unspecified(), 30000+uint16(i/3))
		k.Protocol = protocols[i%3]
		return k
	},
	"node ports of many addresses": func(r *rand.Rand, i int) desired.FrontendKey {
		var a [16]byte
		a[0], a[1] = 0xfe, 0x80
		binary.BigEndian.PutUint64(a[8:], uint64(i%9)*0x9e3779b97f4a7c15) // far from each other
		k := tcpKey(netip.AddrFrom16(a), 30000+uint16(i/18))
		k.Protocol = protocols[i/9%2]
		return k
	},
	"powers of two": func(_ *rand.Rand, i int) desired.FrontendKey {
		var a [16]byte
		a[0], a[15-i/8%15] = 0xfd, 1<<(i%8)
		return tcpKey(netip.AddrFrom16(a), uint16(i))
	},
}

func tcpKey(a netip.Addr, port uint16) desired.FrontendKey {
	return desired.FrontendKey{AddrPort: netip.AddrPortFrom(a, port), Protocol: desired.TCP}
}

func editOf(k desired.FrontendKey, gone bool) edit {
	return edit{leaf{frontendTreeKey(k), matchFrontend(k) + " -g " + targetOf(k)}, gone}
}

// directionOf is the direction of a tree of frontends.
func directionOf(k desired.FrontendKey) string {
	if k.OnNode() {
		return ""
	}
	return "-d"
}

func targetOf(k desired.FrontendKey) string { return poolPrefixes[0] + hashOf(k.String()) }

// TestTree changes trees at random, and makes sure that all frontends are found and
// no others, that there are not too many chains on the way, and that the outcome
// depends on the frontends alone.
func TestTree(t *testing.T) {
	for name, key := range keyMakers {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			tr := tree{name: chainServices, direction: directionOf(key(r, 0)), branches: 5}
			kernel, known, has := chainsOf{}, registry{}, map[desired.FrontendKey]bool{}
			for step := range 60 {
				var edits []edit
				for range 1 + r.IntN(1<<r.IntN(9)) {
					k := key(r, r.IntN(600))
					gone := has[k] && r.IntN(3) > 0 || step > 55
					edits = append(edits, editOf(k, gone))
					has[k] = !gone
				}
				out := &script{known: known, now: registry{}}
				tr.edits = edits
				tr.write(out)
				kernel.apply(t, out)
				out.done(known)
				maps.DeleteFunc(has, func(_ desired.FrontendKey, is bool) bool { return !is })

				fresh, all := tree{name: tr.name, direction: tr.direction, branches: tr.branches}, []edit{}
				for k := range has {
					all = append(all, editOf(k, false))
				}
				again, other := &script{now: registry{}}, chainsOf{}
				fresh.edits = all
				fresh.write(again)
				other.apply(t, again)
				if fmt.Sprint(kernel) != fmt.Sprint(other) {
					t.Fatalf("step %d: changes and a tree made at once differ", step)
				}
				for i := range 600 {
					k := key(r, i)
					want := ""
					if has[k] {
						want = targetOf(k)
					}
					if to, _, chains := kernel.walk(tr.name, k); to != want || chains > 1+tr.branches {
						t.Fatalf("step %d: packets to %s come to %q by way of %d chains, want %q", step, k, to, chains, want)
					}
				}
			}
		})
	}
}

// TestTreeOfMany makes sure that a packet meets few rules, however many frontends
// there are, and that a change writes few.
func TestTreeOfMany(t *testing.T) {
	const n = 10_000
	for _, v := range []Variant{Legacy, NFT} {
		for name, n := range map[string]int{"consecutive": n, "random addresses": n, "random IPv6": n, "node ports": 3_000} {
			t.Run(string(v)+"/"+name, func(t *testing.T) { testTreeOfMany(t, n, name, v) })
		}
	}
}

func testTreeOfMany(t *testing.T, n int, name string, v Variant) {
	branches, _, node := branches(v)
	key, r := keyMakers[name], rand.New(rand.NewPCG(3, 4))
	if key(r, 0).OnNode() {
		branches = node
	}
	tr := tree{name: chainServices, direction: directionOf(key(r, 0)), branches: branches}
	kernel, known := chainsOf{}, registry{}
	has := map[desired.FrontendKey]bool{}
	for i := range n {
		has[key(r, i)] = true
	}
	var edits []edit
	for k := range has {
		edits = append(edits, editOf(k, false))
	}
	out := &script{now: registry{}}
	tr.edits = edits
	tr.write(out)
	kernel.apply(t, out)
	out.done(known)
	most, sum, deep := 0, 0, 0
	for k := range has {
		to, rules, chains := kernel.walk(tr.name, k)
		if to != targetOf(k) {
			t.Fatalf("packets to %s come to %q", k, to)
		}
		most, sum, deep = max(most, rules), sum+rules, max(deep, chains)
	}
	t.Logf("%d frontends, %d chains: %.1f rules on average, at most %d, by way of %d chains", len(has), len(kernel), float64(sum)/float64(len(has)), most, deep)
	if limit := map[Variant]int{Legacy: 18, NFT: 20}[v]; most > limit || deep > 1+branches {
		t.Errorf("up to %d rules, by way of up to %d chains", most, deep)
	}
	lines := 0
	for i := range 100 {
		out := &script{known: known, now: registry{}}
		tr.edits = []edit{editOf(key(r, n+i), false)}
		tr.write(out)
		out.finish(tableNAT, math.MaxInt)
		out.done(known)
		lines = max(lines, out.lines)
	}
	if lines > 40 {
		t.Errorf("a new frontend writes up to %d lines", lines)
	}
}
