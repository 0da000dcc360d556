// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// fanOut is the maximum number of rules with which a chain chooses among endpoints, up to
// fanOut * fanOut * fanOut endpoints.
const fanOut = 16

// poolPrefixes begin the names of the chains of pools, by desired.Scope; that of pools with the
// verdict Pass last.
var poolPrefixes = [...]string{desired.Cluster: prefix + "SVC-", desired.Local: prefix + "LOC-", 2: prefix + "PASS-"}

// stickyPrefix begins the names of the chains of endpoints with session affinity.
const stickyPrefix = prefix + "SEP-"

// hashOf returns 13 characters that stand for names, the same in every run. The name of a
// chain can have 28.
func hashOf(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:8])
}

// pool is a pool as programmed.
type pool struct {
	dataplane.Pool // rules are in the order of its slots, one for each backend
	weights        dataplane.Weights
	shares         map[desired.Backend]int // of connections; nil if all are equal

	// With session affinity, endpoints that were removed but may return. A client that
	// goes to another endpoint meanwhile is removed from their lists of clients, unless
	// they are endpoints of sibling, the same Service's pool of the other scope, still.
	retired []desired.Backend
	sibling *pool

	chains []string // of this pool, in the kernel
	dirty  bool     // chains have to be written
}

// maxRetired is how many of them a pool keeps. The kernel deletes a list of clients with
// the last rule that uses it. A full restore keeps none.
const maxRetired = 16

// replace removes and adds backends such that few chains of a large pool change.
func (p *pool) replace(removed, added []desired.Backend) {
	if p.Sticky {
		p.retired = append(p.retired, removed...)
		p.retired = slices.DeleteFunc(p.retired, func(b desired.Backend) bool { return slices.Contains(added, b) })
		p.retired = p.retired[max(0, len(p.retired)-maxRetired):]
	}
	p.Replace(removed, added)
}

// name is the name of the pool's first chain. A pool without frontends has no chains.
func (p *pool) name() string {
	if p.IfEmpty == desired.Pass {
		return poolPrefixes[2] + p.hash()
	}
	return poolPrefixes[p.Scope] + p.hash()
}

func (p *pool) hash(parts ...string) string {
	s := p.Service
	return hashOf(append([]string{s.Namespace, s.Name, s.Port, p.protocol().String()}, parts...)...)
}

// protocol is the protocol of all frontends.
func (p *pool) protocol() desired.Protocol { return p.Frontends[0].Protocol }

// write writes the pool's chains and deletes those that it no longer has.
func (p *pool) write(out *script) {
	former := p.chains
	p.chains, p.dirty = nil, false
	if len(p.Frontends) > 0 {
		w := poolWriter{pool: p, out: out, protocol: "-p " + protocolName(p.protocol()), seconds: p.Frontends[0].Affinity}
		w.root()
	}
	for _, name := range former {
		if !slices.Contains(p.chains, name) {
			out.drop(name)
		}
	}
}

// poolWriter writes a pool's chains.
type poolWriter struct {
	*pool
	out      *script
	protocol string
	seconds  uint32 // for which clients stay with their endpoint, or 0
}

func (w *poolWriter) chain(name string, text []byte) {
	w.chains = append(w.chains, name)
	w.out.chain(name, text)
}

// root writes the pool's first chain. With session affinity, it first looks for the
// endpoint that has seen the client.
func (w *poolWriter) root() {
	var text []byte
	if w.seconds > 0 {
		for _, b := range w.Slots {
			check := fmt.Sprintf("rcheck --seconds %d --reap", w.seconds)
			text = fmt.Appendf(text, "%s -g %s\n", w.recent(check, b), w.endpointChain(b))
			w.chain(w.endpointChain(b), fmt.Appendf(nil, "%s %s%s\n", w.protocol, w.recent("set", b), dnat(b)))
		}
		for _, b := range w.retired {
			if w.sibling == nil || !slices.Contains(w.sibling.Slots, b) {
				text = append(append(text, w.recent("remove", b)...), '\n')
			}
		}
	}
	w.chain(w.name(), w.choose(text, 0, len(w.Slots)))
}

// recent matches by, or changes, the list of clients of an endpoint, which both scopes
// share.
func (w *poolWriter) recent(do string, b desired.Backend) string {
	mask := [...]string{desired.IPv4: "255.255.255.255", desired.IPv6: "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}[w.Family]
	return fmt.Sprintf("-m recent --%s --name %s --mask %s --rsource", do, prefix+w.hash(b.String()), mask)
}

func (w *poolWriter) endpointChain(b desired.Backend) string {
	return stickyPrefix + w.hash(b.String(), w.Scope.String())
}

func dnat(b desired.Backend) string { return " -j DNAT --to-destination " + b.String() }

// sum returns the sum of the shares of the slots in [from, to).
func (p *pool) sum(from, to int) (n int) {
	if p.shares == nil {
		return to - from
	}
	for _, b := range p.Slots[from:to] {
		n += p.shares[b]
	}
	return n
}

// choose appends rules that choose one of the slots in [from, to), with the probability of its
// share. Many slots are divided into groups, each with a chain.
func (w *poolWriter) choose(text []byte, from, to int) []byte {
	step := 1
	for step*fanOut < to-from && step < fanOut*fanOut {
		step *= fanOut
	}
	for at := from; at < to; at += step {
		end := min(at+step, to)
		var match, target string
		switch {
		case step > 1:
			name := w.name() + "-" + strconv.Itoa(at/step)
			if step > fanOut {
				name += "B" // for big
			}
			w.chain(name, w.choose(nil, at, end))
			target = " -g " + name
		case w.seconds > 0:
			target = " -g " + w.endpointChain(w.Slots[at])
		default:
			match, target = w.protocol, dnat(w.Slots[at])
		}
		rule := match + probability(w.sum(at, end), w.sum(at, to)) + target
		text = append(append(text, strings.TrimPrefix(rule, " ")...), '\n')
	}
	return text
}

// probability matches with the probability n/of.
func probability(n, of int) string {
	if n == of {
		return ""
	}
	const one = 1 << 31 // as the kernel has it, so that iptables-save prints the same
	p := math.Round(one*float64(n)/float64(of)) / one
	return " -m statistic --mode random --probability " + strconv.FormatFloat(p, 'f', 11, 64)
}
