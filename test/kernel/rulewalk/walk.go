// SPDX-License-Identifier: Apache-2.0

// Package rulewalk counts the iptables rules that one packet was sent through.
//
// A rule's counter says that the rule has matched. The kernel also executed the rules
// before it in its chain, and those of chains in which none matched. So
// the packet is followed from chain to chain, by what counted, and every rule on its way
// up to the one that ends a chain is one that was executed. The two variants of iptables
// are the same in this.
package rulewalk

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Walk is the path of a packet through the rules.
type Walk struct {
	// Rules is how many were executed.
	Rules int
	// Destination is where it was sent to instead (DNAT), e.g. "10.0.1.2:8080"; "" if
	// nowhere else.
	Destination string
}

// Follow finds the path of the only packet that passed between two dumps, through the built-in
// chains of all tables with one of the names, e.g. PREROUTING, FORWARD and POSTROUTING. It
// returns an error if a counter that has changed is not on that path, or changed by more than
// one packet, if the packet was dropped, or if the rules have changed.
func Follow(before, after Dump, builtin ...string) (Walk, error) {
	w := walker{before: before, after: after}
	counted, err := w.counted()
	if err != nil {
		return Walk{}, err
	}
	for table := range after {
		for _, chain := range builtin {
			if _, err := w.chain(table, chain); err != nil {
				return w.Walk, err
			}
		}
	}
	if w.matched != counted {
		return w.Walk, fmt.Errorf("%d rules have counted a packet, %d of them on its way: there was more than one packet", counted, w.matched)
	}
	return w.Walk, nil
}

type walker struct {
	Walk
	before, after Dump
	matched       int // of those executed
}

// counted is how many rules have counted the packet.
func (w *walker) counted() (n int, err error) {
	if len(w.before) != len(w.after) {
		return 0, errChanged
	}
	for table, chains := range w.after {
		if len(w.before[table]) != len(chains) {
			return 0, errChanged
		}
		for chain, rules := range chains {
			if len(w.before[table][chain]) != len(rules) {
				return 0, errChanged
			}
			for i, r := range rules {
				was := w.before[table][chain][i]
				switch {
				case was.Text != r.Text || r.Packets < was.Packets:
					return 0, errChanged
				case r.Packets > was.Packets+1:
					return 0, fmt.Errorf("rule %q of chain %s has counted %d packets", r.Text, chain, r.Packets-was.Packets)
				case r.Packets > was.Packets:
					n++
				}
			}
		}
	}
	return n, nil
}

var errChanged = errors.New("rules have changed meanwhile")

// leaves are the targets after which a packet meets no more rules of the table.
var leaves = map[string]bool{"ACCEPT": true, "DNAT": true, "SNAT": true, "REDIRECT": true, "MASQUERADE": true}

// chain follows the packet through a chain and those it leads to, and says whether it has
// left the table there. A built-in chain that the table does not have is not an error.
func (w *walker) chain(table, name string) (left bool, err error) {
	for i, r := range w.after[table][name] {
		w.Rules++
		if r.Packets == w.before[table][name][i].Packets {
			continue
		}
		w.matched++
		goTo := r.Option("-g")
		to := cmp.Or(goTo, r.Option("-j"))
		_, isChain := w.after[table][to]
		switch {
		case isChain:
			// A packet that returns from a chain of -g continues after the last -j.
			if left, err := w.chain(table, to); left || err != nil || goTo != "" {
				return left, err
			}
		case to == "RETURN":
			return false, nil
		case to == "DROP" || to == "REJECT":
			return true, fmt.Errorf("the packet was dropped by rule %q of chain %s", r.Text, name)
		case leaves[to]:
			if d := r.Option("--to-destination"); d != "" {
				w.Destination = d
			}
			return true, nil
		}
	}
	return false, nil
}

// Dump is the output of "iptables-save -c": rules by table and chain. Chains without rules are
// in it too.
type Dump map[string]map[string][]Rule

// Rule is one rule.
type Rule struct {
	// Packets is how many packets it has matched.
	Packets uint64
	// Text is what follows the chain's name, e.g. "-p tcp -j ACCEPT".
	Text string
}

// Parse reads the output of "iptables-save -c", or of ip6tables-save.
func Parse(save string) (Dump, error) {
	d := Dump{}
	var table map[string][]Rule
	n := 0
	for line := range strings.Lines(save) {
		n++
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#' || line == "COMMIT":
		case line[0] == '*':
			table = map[string][]Rule{}
			d[line[1:]] = table
		case table == nil:
			return nil, fmt.Errorf("line %d: %q is in no table", n, line)
		case line[0] == ':':
			chain, _, _ := strings.Cut(line[1:], " ")
			table[chain] = nil
		default:
			chain, r, err := parseRule(line)
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", n, err)
			}
			table[chain] = append(table[chain], r)
		}
	}
	return d, nil
}

// parseRule reads "[packets:bytes] -A CHAIN text".
func parseRule(line string) (chain string, r Rule, err error) {
	counters, rest, _ := strings.Cut(line, " -A ")
	packets, _, _ := strings.Cut(strings.TrimPrefix(counters, "["), ":")
	if r.Packets, err = strconv.ParseUint(packets, 10, 64); err != nil || rest == "" {
		return "", r, fmt.Errorf("%q is not a rule with counters", line)
	}
	chain, r.Text, _ = strings.Cut(rest, " ")
	return chain, r, nil
}

// Option is the first value of an option such as "-d" in a rule, and "" if it has none.
// Text in quotes, such as a comment, is not an option.
func (r Rule) Option(name string) string {
	var words []string
	for i, part := range strings.Split(r.Text, `"`) {
		if i%2 == 0 { // outside of quotes
			words = append(words, strings.Fields(part)...)
		}
	}
	for i, word := range words[:max(0, len(words)-1)] {
		if word == name {
			return words[i+1]
		}
	}
	return ""
}
