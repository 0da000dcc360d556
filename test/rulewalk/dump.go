// SPDX-License-Identifier: Apache-2.0

package rulewalk

import (
	"fmt"
	"strconv"
	"strings"
)

// Dump is what "iptables-save -c" prints: rules by table and chain. Chains without any
// rules are in it too.
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
