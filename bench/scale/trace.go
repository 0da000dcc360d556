// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/cluster"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// tracer finds the nftables chains that a packet passes.
type tracer struct {
	*lab.Program // nft monitor trace
	node         *node
	rules        map[string][]string // by "family table chain"
	read         int                 // bytes of the program's output
}

const traceTable = "trace-first-packet"

// startTracer has the kernel trace packets from the node's pods to Services.
func startTracer(ctx context.Context, n *node, dir string) (*tracer, error) {
	t := &tracer{node: n, rules: map[string][]string{}}
	out, err := n.Run(ctx, "nft", "--terse", "list", "ruleset")
	if err != nil {
		return nil, err
	}
	table, chain := "", ""
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		switch {
		case len(words) > 3 && words[0] == "table":
			table = words[1] + " " + words[2]
		case len(words) == 3 && words[0] == "chain":
			chain = table + " " + words[1]
		case len(words) > 0 && words[0] == "}" || len(words) == 3 && (words[0] == "set" || words[0] == "map"):
			chain = ""
		case chain != "" && len(words) > 0 && words[0] != "type":
			t.rules[chain] = append(t.rules[chain], plain(line))
		}
	}
	if _, err := n.Run(ctx, "nft", fmt.Sprintf(`table ip %s {
		chain c { type filter hook prerouting priority -400; ip daddr %v meta nftrace set 1; }
	}`, traceTable, cluster.IPv4.Services)); err != nil {
		return nil, err
	}
	t.Program, err = n.StartProgram(dir, "trace-"+n.Name(), "nft", "monitor", "trace")
	return t, err
}

var counters = regexp.MustCompile(`counter packets \d+ bytes \d+`)

// plain is a rule as it compares with another output of it.
func plain(rule string) string {
	return strings.Join(strings.Fields(counters.ReplaceAllString(rule, "counter")), " ")
}

// executed is how many of a chain's rules the kernel comes to for a packet that leaves the chain
// by a rule, as the trace has it: up to that one, or all if it is not found.
func executed(rules []string, left string) int {
	if i := slices.Index(rules, plain(left)); i >= 0 {
		return i + 1
	}
	return len(rules)
}

var tracedRule = regexp.MustCompile(` rule (.*) \(verdict (\w+)(?: (\S+))?\)`)

// connect sends the first packet of a connection from the client to a Service, and returns how
// many rules the node has executed for it.
func (t *tracer) connect(ctx context.Context, service int) (rules int, err error) {
	var fresh string
	// Packets are not traced before the program listens.
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(fresh, "trace id"); {
		if time.Now().After(deadline) {
			return 0, errors.New("no packet was traced")
		}
		if _, err := t.node.sendFirst(frontend(service)); err != nil {
			return 0, err
		}
		for before := -1; before != len(fresh); { // until it has printed all
			before = len(fresh)
			if err := ctx.Err(); err != nil {
				return 0, err
			}
			time.Sleep(300 * time.Millisecond)
			fresh = t.Log()[t.read:]
		}
	}
	t.read += len(fresh)
	first := ""
	left := map[string]string{} // by chain that it passed, the rule by which it left it
	last := map[string]string{} // the last rule that matched
	var stack []string          // chains that it is in
	for line := range strings.Lines(fresh) {
		words := strings.Fields(line) // trace id ID FAMILY TABLE CHAIN ...
		if len(words) < 7 || words[0] != "trace" || words[4] == traceTable {
			continue
		}
		if first == "" {
			first = words[2]
		}
		if words[2] != first {
			return 0, errors.New("more than one packet was traced")
		}
		chain := strings.Join(words[3:6], " ")
		if words[6] == "packet:" { // a hook
			stack, left[chain] = []string{chain}, ""
		}
		rule := tracedRule.FindStringSubmatch(line)
		if rule == nil || len(stack) == 0 {
			continue
		}
		if i := slices.Index(stack, chain); i >= 0 {
			stack = stack[:i+1] // those above it came to their ends
		}
		last[chain] = rule[1]
		to := words[3] + " " + words[4] + " " + rule[3]
		switch rule[2] {
		case "goto":
			left[chain], left[to] = rule[1], ""
			stack[len(stack)-1] = to
		case "jump":
			left[to] = ""
			stack = append(stack, to)
		case "return":
			left[chain] = rule[1]
		case "accept", "drop":
			for _, c := range stack {
				left[c] = last[c]
			}
		}
	}
	for chain, rule := range left {
		rules += executed(t.rules[chain], rule)
	}
	if rules == 0 {
		return 0, fmt.Errorf("no chain with rules was passed: %s", lab.Tail(fresh, 20))
	}
	return rules, nil
}
