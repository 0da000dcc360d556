// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/cluster"
	"github.com/slipstream-proxy/slipstream/test/lab"
)

// tracer finds the nftables chains that a packet passes.
type tracer struct {
	*lab.Program // nft monitor trace
	node         *node
	rules        map[string]int // by "table chain"
	read         int            // bytes of the program's output
}

const traceTable = "trace-first-packet"

// startTracer has the kernel trace packets from the node's pods to Services.
func startTracer(ctx context.Context, n *node, dir string) (*tracer, error) {
	t := &tracer{node: n, rules: map[string]int{}}
	out, err := n.Run(ctx, "nft", "--terse", "list", "ruleset")
	if err != nil {
		return nil, err
	}
	table, chain := "", ""
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		switch {
		case len(words) > 3 && words[0] == "table":
			table = words[2]
		case len(words) == 3 && words[0] == "chain":
			chain = table + " " + words[1]
		case len(words) > 0 && words[0] == "}" || len(words) == 3 && (words[0] == "set" || words[0] == "map"):
			chain = ""
		case chain != "" && len(words) > 0 && words[0] != "type":
			t.rules[chain]++
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

var tracedJump = regexp.MustCompile(`\(verdict (?:jump|goto) (\S+)\)`)

// connect sends the first packet of a connection from the client to a Service, and returns how
// many rules the chains have that it passed.
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
	first, passed := "", map[string]bool{}
	for line := range strings.Lines(fresh) {
		words := strings.Fields(line) // trace id ID FAMILY TABLE CHAIN ...
		if len(words) < 6 || words[0] != "trace" || words[4] == traceTable {
			continue
		}
		if first == "" {
			first = words[2]
		}
		if words[2] != first {
			return 0, errors.New("more than one packet was traced")
		}
		passed[words[4]+" "+words[5]] = true
		if to := tracedJump.FindStringSubmatch(line); to != nil {
			passed[words[4]+" "+to[1]] = true
		}
	}
	for chain := range passed {
		rules += t.rules[chain]
	}
	if rules == 0 {
		return 0, fmt.Errorf("no chain with rules was passed: %s", lab.Tail(fresh, 20))
	}
	return rules, nil
}
